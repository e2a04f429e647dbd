package peer

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// greeter writes a nested module with a program that prints a word.
func greeter(t *testing.T) (root string, tl tool) {
	t.Helper()
	root = t.TempDir()
	dir := filepath.Join(root, "nested")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"go.mod":  "module example.test/greeter\n\ngo 1.26\n",
		"go.sum":  "",
		"main.go": "package main\n\nfunc main() { println(\"hello\") }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root, tool{module: "nested", pkg: "example.test/greeter"}
}

func TestKept(t *testing.T) {
	t.Setenv("NODENS_CACHE", t.TempDir())
	root, tl := greeter(t)
	// Several at once: one builds, the others get what it built.
	paths := make([]string, 3)
	var wg sync.WaitGroup
	for i := range paths {
		wg.Go(func() {
			path, err := tl.kept(t.Context(), root, "greeter")
			if err != nil {
				t.Error(err)
			}
			paths[i] = path
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	if paths[0] != paths[1] || paths[0] != paths[2] {
		t.Fatalf("three builds of one program are kept as %q", paths)
	}
	out, err := exec.Command(paths[0]).CombinedOutput()
	if err != nil || string(out) != "hello\n" {
		t.Errorf("the program says %q, %v", out, err)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(paths[0]), "*.part*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}

	// A program that is there already is not built again: it would fail.
	if err := os.WriteFile(filepath.Join(root, "nested", "main.go"), []byte("broken"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := tl.kept(t.Context(), root, "greeter"); err != nil {
		t.Errorf("a kept program: %v", err)
	}
	// With another go.sum it is another program, and the build's own words
	// reach the caller.
	if err := os.WriteFile(filepath.Join(root, "nested", "go.sum"), []byte("\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := tl.kept(t.Context(), root, "greeter"); err == nil || !strings.Contains(err.Error(), "main.go") {
		t.Errorf("a build of a broken program: %v, want the compiler's message", err)
	}
}

// TestAgent: an agent that has not changed is not linked again, and each caller has a file
// of its own; what a build has left that was stopped is not taken for one.
func TestAgent(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("NODENS_CACHE", cache)
	kept := filepath.Join(cache, "nodens")
	if err := os.WriteFile(kept+".part", []byte("half"), 0o755); err != nil {
		t.Fatal(err)
	}
	first := Build(t, "nodens")
	text, err := exec.Command(first, "-version").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if err := os.WriteFile(first, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	// What is at the end of the kept file, where nobody looks, a new one would not have.
	const mark = "still the same"
	f, err := os.OpenFile(kept, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(mark); err != nil {
		t.Fatal(err)
	}
	f.Close()
	second, err := os.ReadFile(Build(t, "nodens"))
	if err != nil || !strings.HasSuffix(string(second), mark) {
		t.Errorf("it was linked again: %d bytes, %v", len(second), err)
	}
}

func TestBinaryUnknown(t *testing.T) {
	if _, err := Binary(t.Context(), "nobody", t.TempDir()); !errors.Is(err, errUnknown) {
		t.Errorf("Binary(nobody) = %v, want %v", err, errUnknown)
	}
}

// TestModules holds the table of tools against the nested modules: each
// program is a tool of its module, and a versioned one finds its version.
func TestModules(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	for name, tl := range tools {
		text, err := os.ReadFile(filepath.Join(root, tl.module, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), tl.pkg+"\n") {
			t.Errorf("%s: %s/go.mod has no tool %s", name, tl.module, tl.pkg)
		}
		args, err := tl.args(filepath.Join(root, tl.module))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		stamped := strings.Contains(strings.Join(args, " "), "/version.gitVersion=v1.")
		if stamped != tl.versioned {
			t.Errorf("%s: arguments %q: version set: %t, want %t", name, args, stamped, tl.versioned)
		}
	}
}
