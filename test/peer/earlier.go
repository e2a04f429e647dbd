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
	"testing"
)

// Earlier returns the path of the agent as of that commit, a full hash, of the tree's
// history, after building it if no kept binary fits. The test fails if the commit is not
// in the history, with what to do, or can't be built. It blocks for as long as the build
// takes, a minute or two the first time.
func Earlier(tb testing.TB, commit string) string {
	tb.Helper()
	root, err := Root()
	if err != nil {
		tb.Fatal(err)
	}
	path, err := earlier(tb.Context(), root, commit)
	if err != nil {
		tb.Fatalf("building the agent of commit %s: %v", commit, err)
	}
	return path
}

func earlier(ctx context.Context, root, commit string) (path string, err error) {
	if _, err := hex.DecodeString(commit); err != nil || len(commit) != 40 {
		return "", fmt.Errorf("%q is not the full hash of a commit", commit)
	}
	store, err := store()
	if err != nil {
		return "", err
	}
	path = filepath.Join(store, fmt.Sprintf("nodens-%s-%s-%s", commit, runtime.Version(), runtime.GOARCH))
	unlock, err := lock(path + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	tree := path + ".tree"
	defer func() { err = errors.Join(err, os.RemoveAll(tree)) }()
	if err := checkout(ctx, root, commit, tree); err != nil {
		return "", err
	}
	// A build that is stopped half way must not leave its file under this name.
	part := path + ".part"
	defer os.Remove(part)
	if err := compile(ctx, tree, part, []string{"-trimpath", "./cmd/nodens"}); err != nil {
		return "", err
	}
	return path, os.Rename(part, path)
}

// checkout writes the files of commit into the folder to, which it makes anew.
func checkout(ctx context.Context, root, commit, to string) error {
	if err := errors.Join(os.RemoveAll(to), os.MkdirAll(to, 0o755)); err != nil {
		return err
	}
	if text, err := exec.CommandContext(ctx, "git", "-C", root, "cat-file", "-e", commit+"^{commit}").CombinedOutput(); err != nil {
		return fmt.Errorf("it is not in the history of %s: this takes a clone of the repository, and a shallow one gets its history by `git fetch --unshallow`: %w\n%s", root, err, text)
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
