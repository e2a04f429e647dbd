package peer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// errHistory says that a commit is not in the clone.
var errHistory = errors.New("the commit is not in this clone's history; in a shallow clone run `git fetch --unshallow`")

// AgentAt returns the path of the agent's binary as of a commit, after building it if no
// kept binary fits. It blocks for as long as the build takes.
func AgentAt(ctx context.Context, commit string) (string, error) {
	path, err := agentAt(ctx, commit)
	if err != nil {
		return "", fmt.Errorf("building the agent of commit %s: %w", commit, err)
	}
	return path, nil
}

func agentAt(ctx context.Context, commit string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	parse := exec.CommandContext(ctx, "git", "rev-parse", "--verify", "--quiet", "--end-of-options", commit+"^{commit}")
	parse.Dir = root
	id, err := parse.Output()
	if err != nil {
		return "", errHistory
	}
	hash := strings.TrimSpace(string(id))
	return keep("nodens-at", hash[:16], func(part string) error {
		tree, err := os.MkdirTemp("", "nodens-history-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(tree)
		tar := filepath.Join(tree, "tree.tar")
		for _, args := range [][]string{{"git", "archive", "-o", tar, hash}, {"tar", "-xf", tar, "-C", tree}} {
			cmd := exec.CommandContext(ctx, args[0], args[1:]...)
			cmd.Dir = root
			if text, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w\n%s", args[0], err, text)
			}
		}
		return compile(ctx, tree, part, []string{"-trimpath", "./cmd/nodens"})
	})
}
