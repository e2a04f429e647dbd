package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/gotest"
)

func write(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestFind finds fuzzers in test files of the module's own packages.
func TestFind(t *testing.T) {
	root := t.TempDir()
	const fuzzA = "package a\nimport \"testing\"\nfunc FuzzA(f *testing.F) {}\n"
	write(t, root, "go.mod", "module example")
	write(t, root, "b/c/x_test.go", fuzzA+"func FuzzB(f *testing.F) {}\nfunc TestA(t *testing.T) {}\nfunc FuzzHelper() {}\n")
	write(t, root, "a/a_test.go", strings.Replace(fuzzA, "package a", "package a_test", 1))
	write(t, root, "a/a.go", fuzzA)
	write(t, root, "a/testdata/x_test.go", fuzzA)
	write(t, root, "nested/go.mod", "module other")
	write(t, root, "nested/x_test.go", fuzzA)
	all, err := find(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range all {
		got = append(got, "./"+f.Name()+" "+f.name)
	}
	if diff := cmp.Diff([]string{"./a FuzzA", "./b/c FuzzA", "./b/c FuzzB"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestTemporaryFiles runs a fuzzer that leaves a temporary file behind, as workers do that the
// fuzzing engine kills.
func TestTemporaryFiles(t *testing.T) {
	root := t.TempDir()
	write(t, root, "go.mod", "module example")
	write(t, root, "a/a_test.go", "package a\nimport (\n\"os\"\n\"testing\"\n)\n"+
		"func FuzzA(f *testing.F) {\nif _, err := os.CreateTemp(\"\", \"\"); err != nil {\nf.Fatal(err)\n}\nf.Fuzz(func(*testing.T, int) {})\n}\n")
	all, err := find(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	parent := t.TempDir()
	t.Setenv("TMPDIR", parent)
	var out strings.Builder
	r := &runner{time: "1x", fresh: true, unguided: true, out: &out, tmp: t.TempDir()}
	if err := r.runAll(t.Context(), all); err != nil || !strings.Contains(out.String(), `"Action":"pass","Package":"example/a FuzzA","Test":"FuzzA"`) {
		t.Errorf("%v\n%s", err, out.String())
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

func TestChoose(t *testing.T) {
	a, c := gotest.Package{ImportPath: "m/a"}, gotest.Package{ImportPath: "m/b/c"}
	a.Module.Path, c.Module.Path = "m", "m"
	all := []fuzzer{{a, "FuzzA"}, {c, "FuzzA"}, {c, "FuzzB"}}
	for _, tt := range []struct{ name, dir, want, problem string }{
		{name: "FuzzB", want: "m/b/c"},
		{name: "FuzzA", dir: "./a", want: "m/a"},
		{name: "FuzzA", dir: "b/c/", want: "m/b/c"},
		{name: "FuzzA", problem: "choose one with PKG: ./a, ./b/c"},
		{name: "FuzzB", dir: "a", problem: "it is in ./b/c"},
		{name: "FuzzC", problem: "no fuzzer is called FuzzC"},
	} {
		f, err := choose(all, tt.name, tt.dir)
		if f.ImportPath != tt.want || (err != nil) != (tt.problem != "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
			t.Errorf("%s in %q: %q, %v", tt.name, tt.dir, f.ImportPath, err)
		}
	}
}
