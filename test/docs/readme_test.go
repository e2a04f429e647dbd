package docs

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
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

// link is a Markdown link; what is not under a scheme is a file of the tree.
var link = regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)

func TestLinks(t *testing.T) {
	for _, name := range documents(t) {
		t.Run(name, func(t *testing.T) {
			text, root := document(t, name)
			for _, m := range link.FindAllStringSubmatch(text, -1) {
				if strings.Contains(m[1], "://") {
					continue
				}
				if _, err := os.Stat(filepath.Join(root, filepath.Dir(name), m[1])); errors.Is(err, fs.ErrNotExist) {
					t.Errorf("the link to %s leads nowhere", m[1])
				} else if err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// The languages say what a reader, and a test, can do with a fence. Only lines that
// need neither a cluster nor anything to be replaced first are sh.
func TestFenceLanguages(t *testing.T) {
	text, _ := document(t, "README.md")
	languages := []string{"sh", "console", "corefile", "yaml"}
	programs := []string{"make", "dig", "go"}
	for _, f := range fences(text) {
		if !slices.Contains(languages, f.language) {
			t.Errorf("README.md:%d: language %q, want one of %v", f.line, f.language, languages)
		}
		if f.language != "sh" {
			continue
		}
		for line := range strings.Lines(f.text) {
			if program, _, _ := strings.Cut(strings.TrimSpace(line), " "); !slices.Contains(programs, program) {
				t.Errorf("README.md:%d: %q does not start with one of %v", f.line, line, programs)
			}
		}
	}
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
