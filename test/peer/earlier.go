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

	"github.com/nodens-dns/nodens/internal/toolcache"
)

// Earlier returns the path of the agent as of a commit, given by its full hash, after building
// it if no binary is kept. It blocks during the build, which takes a minute or two. The test
// is skipped if the repository is a shallow clone without the commit. It fails if a complete
// clone lacks the commit, or if the agent can't be built.
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

// EarlierBinary is [Earlier] for callers without a test. commit is any expression that
// git-rev-parse(1) accepts for a commit.
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

// errShallow means that a shallow clone lacks a commit.
var errShallow = errors.New("a shallow clone does not have it; run `git fetch --unshallow`")

// maxEarlier is the number of earlier agents that are kept: that of test/compat for a few
// clones, and those of recent benchmarks.
const maxEarlier = 4

// earlier returns the path of the agent as of commit in the repository at root. The binary
// stays in place for as long as this process lives.
func earlier(ctx context.Context, root, commit string) (string, error) {
	if _, err := hex.DecodeString(commit); err != nil || len(commit) != 40 {
		return "", fmt.Errorf("%q is not the full hash of a commit", commit)
	}
	cache, err := toolcache.Open()
	if err != nil {
		return "", err
	}
	entry := toolcache.Entry{
		Name: "nodens-earlier", Key: fmt.Sprintf("%s-%s-%s", commit, runtime.Version(), runtime.GOARCH), Limit: maxEarlier,
	}
	dir, _, err := cache.Use(ctx, entry, func(dir string) (err error) {
		tree := filepath.Join(dir, "tree")
		defer func() { err = errors.Join(err, os.RemoveAll(tree)) }()
		if err := Checkout(ctx, root, commit, tree); err != nil {
			return err
		}
		return compile(ctx, tree, filepath.Join(dir, "nodens"), "build", []string{"-trimpath", "./cmd/nodens"})
	})
	return filepath.Join(dir, "nodens"), err
}

// Checkout writes the files of a commit in the repository at root to the directory to. It
// removes what is there first.
func Checkout(ctx context.Context, root, commit, to string) error {
	if err := errors.Join(os.RemoveAll(to), os.MkdirAll(to, 0o755)); err != nil {
		return err
	}
	if text, err := exec.CommandContext(ctx, "git", "-C", root, "cat-file", "-e", commit+"^{commit}").CombinedOutput(); err != nil {
		if shallow, _ := exec.CommandContext(ctx, "git", "-C", root, "rev-parse", "--is-shallow-repository").Output(); strings.TrimSpace(string(shallow)) == "true" {
			return errShallow
		}
		return fmt.Errorf("%s has no such commit; it must be a clone of the repository: %w\n%s", root, err, text)
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
