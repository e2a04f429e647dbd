package peer

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// commitAgents creates a repository with two commits, each with an agent that prints its own
// word, and returns the hash of the first.
func commitAgents(t *testing.T) (root, first string) {
	t.Helper()
	root = t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", root, "-c", "user.name=test", "-c", "user.email=test@example.test"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q")
	main := filepath.Join(root, "cmd", "nodens", "main.go")
	if err := errors.Join(os.MkdirAll(filepath.Dir(main), 0o755),
		os.WriteFile(filepath.Join(root, "go.mod"), []byte(rootModule+"\n\ngo 1.26\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"earlier", "later"} {
		if err := os.WriteFile(main, []byte("package main\n\nfunc main() { println(\""+word+"\") }\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		git("add", ".")
		git("commit", "-q", "-m", word)
	}
	return root, git("rev-parse", "HEAD~1")
}

// TestEarlier: the agent of a commit is built from that commit, and once. The error for a
// missing commit says what to do.
func TestEarlier(t *testing.T) {
	t.Setenv("NODENS_CACHE", t.TempDir())
	root, first := commitAgents(t)
	path, err := earlier(t.Context(), root, first)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(path).CombinedOutput(); err != nil || string(out) != "earlier\n" {
		t.Errorf("the agent printed %q, %v", out, err)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	if err != nil || len(left) != 1 {
		t.Errorf("the entry holds %q, want the binary only", left)
	}
	// The second time no repository is needed.
	again, err := earlier(t.Context(), t.TempDir(), first)
	if err != nil || again != path {
		t.Errorf("the second time: %s, %v", again, err)
	}
	shallow := filepath.Join(t.TempDir(), "shallow")
	if out, err := exec.Command("git", "clone", "-q", "--depth=1", "file://"+root, shallow).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Setenv("NODENS_CACHE", t.TempDir())
	if _, err := earlier(t.Context(), shallow, first); !errors.Is(err, errShallow) {
		t.Errorf("in a shallow clone: %v", err)
	}
	if _, err := earlier(t.Context(), t.TempDir(), first); err == nil || errors.Is(err, errShallow) {
		t.Errorf("without a history: %v", err)
	}
	if _, err := earlier(t.Context(), root, first[:12]); err == nil || !strings.Contains(err.Error(), "full hash") {
		t.Errorf("a short hash: %v", err)
	}
}
