package docs

import (
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/peer"
)

// documents are the names of those at the top of the tree and in docs.
func documents(t *testing.T) []string {
	t.Helper()
	_, root := document(t, "README.md")
	var names []string
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		paths, err := fs.Glob(os.DirFS(root), pattern)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, paths...)
	}
	return names
}

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
var help = regexp.MustCompile(`(?m)^  -([a-z.-]+)`)

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

// family is a metric as the program's table has it. Those about the upstreams share
// a prefix there.
var family = regexp.MustCompile(`\b(counter|gauge|proxy)\("([a-z0-9_]+)"`)

func TestMetrics(t *testing.T) {
	source, _ := document(t, "cmd/nodens/app/metrics.go")
	var want []string
	for _, m := range family.FindAllStringSubmatch(source, -1) {
		if m[1] == "proxy" {
			m[2] = "coredns_proxy_" + m[2]
		}
		want = append(want, m[2])
	}
	if len(want) == 0 {
		t.Fatal("cmd/nodens/app/metrics.go has no metrics, or in another form")
	}
	text, _ := document(t, "README.md")
	var got []string
	rows := slices.Concat(data(table(text, "metric")), data(table(text, "own metric")))
	for _, r := range rows {
		for cell := range strings.SplitSeq(r[0], ", ") {
			name, ok := code(cell)
			if !ok {
				t.Errorf("the metric %s is not code", cell)
			}
			got = append(got, name)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("metrics of the program and of README.md (-program +README):\n%s", d)
	}
}
