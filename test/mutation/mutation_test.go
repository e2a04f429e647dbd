package main

// Inside the package: a command has no outside.

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// gremlins stands for the program. It reports the mutants of two files, and in a dry run that they can be tested. The
// other files of the package are excluded then.
const gremlins = `#!/bin/sh
status=LIVED
for arg; do
	case $arg in
	--dry-run) status=RUNNABLE ;;
	--output) out= ;;
	*) [ -n "${out-x}" ] || out=$arg ;;
	esac
	case $last in --exclude-files) echo "$arg" >>excluded ;; esac
	last=$arg
done
cat >"$out" <<END
{"files":[{"file_name":"till.go","mutations":[
	{"type":"CONDITIONALS_BOUNDARY","status":"$status","line":4,"column":7},
	{"type":"CONDITIONALS_NEGATION","status":"$status","line":4,"column":7},
	{"type":"ARITHMETIC_BASE","status":"NOT COVERED","line":5,"column":12}]}]}
END
`

const till = `package shop

func Change(a, b int) int {
	if a > b {
		return a - b
	}
	return 0
}
`

// TestRun: what lives is printed with its line, but for what is listed as equivalent.
func TestRun(t *testing.T) {
	root := t.TempDir()
	t.Chdir(root)
	for name, text := range map[string]string{
		"gremlins": gremlins, "shop/till.go": till,
		"test/mutation/equivalent.txt": "# A heading.\n\nshop/till.go\n\t# Reason.\n\tif a {CONDITIONALS_BOUNDARY}> b {\n",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	r := &run{gremlins: filepath.Join(root, "gremlins"), tally: make(tally), out: &out}
	if err := r.main(1, []string{"shop", "shop/other.go"}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"# shop: till.go", "shop/till.go:4: if a {CONDITIONALS_NEGATION}> b {",
		"# shop: other.go", "shop/till.go:4: if a {CONDITIONALS_NEGATION}> b {", // the stand-in has no other file
		"", "package killed timed out lived equivalent not viable not covered", "shop 0 0 2 2 0 2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
	if text, err := os.ReadFile("excluded"); string(text) != "^till\\.go$\n" {
		t.Errorf("excluded %q (%v), want till.go when other.go is tested", text, err)
	}
}

// TestChoose: the seed alone decides, also if the list comes in another order.
func TestChoose(t *testing.T) {
	var all report
	for _, name := range []string{"a.go", "b.go", "c.go", "d.go", "below/e.go"} {
		all.Files = append(all.Files, struct {
			Name      string   `json:"file_name"`
			Mutations []mutant `json:"mutations"`
		}{name, []mutant{{Status: "RUNNABLE"}, {Status: "RUNNABLE"}, {Status: "NOT COVERED"}}})
	}
	got := choose(all, 3, 1, "shop")
	slices.Reverse(all.Files)
	if other := choose(all, 3, 1, "shop"); len(got) != 2 || !slices.Equal(got, other) {
		t.Errorf("%v and %v with one seed, want two files", got, other)
	}
	if every := choose(all, 100, 1, "shop"); len(every) != 4 || slices.Contains(every, "below/e.go") {
		t.Errorf("all files are %v, want those of the package itself", every)
	}
	orders := make(map[string]bool)
	for seed := range uint64(20) {
		orders[strings.Join(choose(all, 3, seed, "shop"), " ")] = true
	}
	if len(orders) < 4 {
		t.Errorf("20 seeds choose only %v", orders)
	}
}

// TestGo: a mutant that does not compile has the exit code that gremlins takes for such.
func TestGo(t *testing.T) {
	command, err := filepath.Abs("bin/go")
	if err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{"package shop\n": 0, "package shop\n\nvar x int = \"\"\n": 2} {
		root := t.TempDir()
		for name, text := range map[string]string{"go.mod": "module example.com\n", "shop.go": text, "shop_test.go": "package shop\n"} {
			if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(command, "test", "-failfast", ".")
		cmd.Dir, cmd.Env = root, append(os.Environ(), "NODENS_GO="+program)
		if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != want {
			t.Errorf("%q: exit code %d, want %d: %s", text, cmd.ProcessState.ExitCode(), want, out)
		}
	}
}

// TestEquivalents: each listed mutant still names a line of the code.
func TestEquivalents(t *testing.T) {
	list, err := readKnown("equivalent.txt")
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	for key := range list {
		file, marked, _ := strings.Cut(key, "\x00")
		text, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), kind.ReplaceAllString(marked, "")) {
			t.Errorf("equivalent.txt: no such line: %q", key)
		}
	}
}

// kind matches the name of the change in a marked line.
var kind = regexp.MustCompile(`\{[A-Z_]+\}`)
