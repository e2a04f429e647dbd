// These tests use run, which is not exported: a command has no callers.

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// repository returns a directory whose `make run` runs the shell script recipe, and an environment with
// a dig that answers each name with itself, but for "silent".
func repository(t *testing.T, recipe string) (dir string, env []string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range map[string]string{
		"Makefile": "run:\n\t@exec sh recipe\n",
		"recipe":   recipe,
		"dig":      "#!/bin/sh\n[ \"$1\" = silent ] || echo \"$1 answers\"\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir, []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
}

// TestRun: each printed dig line is run, and the agent is interrupted then.
func TestRun(t *testing.T) {
	dir, env := repository(t, "trap 'echo interrupted >stopped; exit 0' INT\necho 'nodens answers. Try:'\necho\necho '  dig a.test'\necho '  dig b.test'\necho\nwhile :; do sleep 0.01; done\n")
	s, err := run(t.Context(), dir, env)
	if err != nil {
		t.Fatal(err)
	}
	want := []line{{"dig a.test", "a.test answers\n"}, {"dig b.test", "b.test answers\n"}}
	if d := cmp.Diff(want, s.lines, cmp.AllowUnexported(line{})); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if s.took <= 0 {
		t.Errorf("the first answer took %v", s.took)
	}
	if _, err := os.Stat(filepath.Join(dir, "stopped")); err != nil {
		t.Errorf("it was not interrupted: %v", err)
	}
}

// TestRunFails: the error has what `make run` wrote.
func TestRunFails(t *testing.T) {
	for name, recipe := range map[string]string{
		"before it prints commands": "echo 'address already in use' >&2\nexit 1\n",
		"before it answers":         "echo '  dig silent'\necho 'address already in use' >&2\nexit 1\n",
	} {
		t.Run(name, func(t *testing.T) {
			dir, env := repository(t, recipe)
			_, err := run(t.Context(), dir, env)
			if err == nil || !strings.Contains(err.Error(), "address already in use") {
				t.Errorf("%v, want an error with the output", err)
			}
		})
	}
}
