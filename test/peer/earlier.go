package peer

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Earlier returns the path of the agent as of that commit, a full hash, of the tree's
// history, after building it if no kept binary fits. In a shallow clone without the commit
// the test is skipped, with what to do; it fails if the commit is not in the history of a
// whole clone, or can't be built. It blocks for as long as the build takes, a minute or two
// the first time.
func Earlier(tb testing.TB, commit string) string {
	tb.Helper()
	root, err := Root()
	if err != nil {
		tb.Fatal(err)
	}
	path, err := earlier(tb.Context(), root, commit)
	if errors.Is(err, errShallow) {
		tb.Skipf("the agent of commit %s: %v", commit, err)
	}
	if err != nil {
		tb.Fatalf("building the agent of commit %s: %v", commit, err)
	}
	return path
}

// EarlierBinary is [Earlier] for callers without a test. The commit may be anything that
// git takes for one.
func EarlierBinary(ctx context.Context, commit string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	text, err := exec.CommandContext(ctx, "git", "-C", root, "rev-parse", "--verify", "--end-of-options", commit+"^{commit}").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("finding the commit %s: %w\n%s", commit, err, text)
	}
	path, err := earlier(ctx, root, strings.TrimSpace(string(text)))
	if err != nil {
		return "", fmt.Errorf("building the agent of commit %s: %w", commit, err)
	}
	return path, nil
}

// errShallow says that the history is not there.
var errShallow = errors.New("a shallow clone does not have it; run `git fetch --unshallow`")

func earlier(ctx context.Context, root, commit string) (path string, err error) {
	if _, err := hex.DecodeString(commit); err != nil || len(commit) != 40 {
		return "", fmt.Errorf("%q is not the full hash of a commit", commit)
	}
	return keep("nodens-earlier", fmt.Sprintf("%s-%s-%s", commit, runtime.Version(), runtime.GOARCH), func(part string) (err error) {
		tree := part + ".tree"
		defer func() { err = errors.Join(err, os.RemoveAll(tree)) }()
		if err := Checkout(ctx, root, commit, tree); err != nil {
			return err
		}
		return compile(ctx, tree, part, []string{"-trimpath", "./cmd/nodens"})
	})
}

// Checkout writes the files of commit, of the repository at root, into the directory to,
// which it makes anew.
func Checkout(ctx context.Context, root, commit, to string) error {
	if err := errors.Join(os.RemoveAll(to), os.MkdirAll(to, 0o755)); err != nil {
		return err
	}
	if text, err := exec.CommandContext(ctx, "git", "-C", root, "cat-file", "-e", commit+"^{commit}").CombinedOutput(); err != nil {
		if shallow, _ := exec.CommandContext(ctx, "git", "-C", root, "rev-parse", "--is-shallow-repository").Output(); strings.TrimSpace(string(shallow)) == "true" {
			return errShallow
		}
		return fmt.Errorf("it is not in the history of %s, which must be a clone of the repository: %w\n%s", root, err, text)
	}
	archive := filepath.Join(to, ".tar")
	for _, args := range [][]string{
		{"git", "-C", root, "archive", "--format=tar", "-o", archive, commit},
		{"tar", "-x", "-f", archive, "-C", to},
	} {
		if text, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%q: %w\n%s", args, err, text)
		}
	}
	return os.Remove(archive)
}
