package layout

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/soak"
)

// optionalParts are the lines of the function optional in cmd/nodens/app/directives.go, the packages that a build without the line lacks,
// the only files that import these, and a directive that such a build refuses.
var optionalParts = []struct {
	line, directive string
	packages, files []string
}{
	{
		line: "authoritative(log)...", directive: "file",
		packages: []string{"server/zonefile", "server/transfer", "server/tsig"},
		files:    []string{"cmd/nodens/app/authoritative.go", "cmd/nodens/agent_other.go"},
	},
}

// TestOptionalImports: what a build may lack is imported by one file of the agent, and by one for systems without the agent.
func TestOptionalImports(t *testing.T) {
	for _, p := range packages(t) {
		for _, name := range p.GoFiles {
			text, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range optionalParts {
				for _, lacked := range part.packages {
					if file := p.dir() + "/" + name; bytes.Contains(text, []byte(`"`+module+lacked+`"`)) && !slices.Contains(part.files, file) {
						t.Errorf("%s imports %s, which only %v may import: a build may lack it", file, lacked, part.files)
					}
				}
			}
		}
	}
}

// TestBuildWithoutOptional builds the program without each optional part, for which it logs the size: there is no code of the
// part's packages in it, and `nodens check` says that this build lacks the directive.
func TestBuildWithoutOptional(t *testing.T) {
	if !soak.Enabled() {
		t.Skip("links the program twice; see " + soak.Variable)
	}
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	whole := buildProgram(t, root, filepath.Join(dir, "whole"))
	for _, part := range optionalParts {
		table := filepath.Join(root, "cmd/nodens/app/directives.go")
		text, err := os.ReadFile(table)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.SplitAfter(string(text), "\n")
		rest := slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return strings.Contains(l, part.line) })
		if len(rest) != len(lines)-1 {
			t.Fatalf("%s has %d lines with %s, want one", table, len(lines)-len(rest), part.line)
		}
		replaced, overlay, bin := filepath.Join(dir, "directives.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "without")
		paths, err := json.Marshal(map[string]map[string]string{"Replace": {table: replaced}})
		if err != nil {
			t.Fatal(err)
		}
		corefile := filepath.Join(dir, "Corefile")
		for name, text := range map[string]string{
			replaced: strings.Join(rest, ""), overlay: string(paths), corefile: "z.test {\n" + part.directive + "\n}\n",
		} {
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		without := buildProgram(t, root, bin, "-overlay", overlay)
		for _, lacked := range part.packages {
			// The table of functions has the names of methods. The package's errors, which are made when the program starts, stay.
			methods := []byte(module + lacked + ".(*")
			if !bytes.Contains(whole, methods) || bytes.Contains(without, methods) {
				t.Errorf("%s: no method is in the whole program, or one is in the program without %s", lacked, part.line)
			}
		}
		out, err := exec.Command(bin, "check", "--conf", corefile).CombinedOutput()
		if err == nil || !strings.Contains(string(out), `this build of nodens lacks the directive "`+part.directive+`"`) {
			t.Errorf("check: %v\n%s", err, out)
		}
		t.Logf("the program has %d bytes, without %s %d; compressed, as in the image, %d and %d", len(whole), part.line, len(without), compressed(t, whole), compressed(t, without))
	}
}

// compressed returns the size of text in a layer of an image.
func compressed(t *testing.T, text []byte) int {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Len()
}

// buildProgram builds nodens as for its image, and returns its bytes.
func buildProgram(t *testing.T, root, out string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("go", append(append([]string{"build", "-trimpath", "-ldflags=-s -w", "-o", out}, args...), "./cmd/nodens")...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, text)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
