package docs

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/peer"
)

// The two commands that the README is about.
func TestCommands(t *testing.T) {
	text, _ := document(t, "README.md")
	for _, want := range []string{"make run\n", "make test\n"} {
		if !slices.ContainsFunc(fences(text), func(f fence) bool { return f.language == "sh" && f.text == want }) {
			t.Errorf("no sh fence is %q", want)
		}
	}
}

// help is a flag's line in what -help prints.
var help = regexp.MustCompile(`(?m)^  --(\S+)`)

func TestFlags(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), peer.Build(t, "nodens"), "-help").CombinedOutput()
	if err != nil {
		t.Fatalf("nodens -help: %v\n%s", err, out)
	}
	var want []string
	for _, m := range help.FindAllStringSubmatch(string(out), -1) {
		want = append(want, m[1])
	}
	if len(want) == 0 {
		t.Fatalf("nodens -help names no flag:\n%s", out)
	}
	text, _ := document(t, "README.md")
	var got []string
	for _, r := range data(table(text, "flag", "default", "meaning")) {
		flag, ok := code(r[0])
		if !ok {
			t.Errorf("the flag %s is not code", r[0])
		}
		got = append(got, strings.TrimPrefix(flag, "-"))
	}
	slices.Sort(want)
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("flags of the program and of README.md (-program +README):\n%s", d)
	}
}
