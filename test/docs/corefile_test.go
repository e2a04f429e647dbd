package docs

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/ca"
)

// support is a line of README.md's support table.
type support struct{ directive, written, level string }

// What a line says of the Corefile in it.
const (
	works   = "yes"
	ignored = "accepted, no effect"
	missing = "not yet"
)

func supported(t *testing.T) []support {
	t.Helper()
	text, _ := document(t, "README.md")
	var list []support
	for _, r := range data(table(text, "directive", "written", "support")) {
		directive, ok := code(r[0])
		written, also := code(r[1])
		if !ok || !also {
			t.Fatalf("the line %q does not have code in its first two cells", r)
		}
		list = append(list, support{directive, written, r[2]})
	}
	if len(list) == 0 {
		t.Fatal("README.md has no support table")
	}
	return list
}

// block makes a server block of a directive as the table writes it: the lines of its
// block are parted by semicolons. Braces without spaces around them, such as those
// of a log format, are no block. What the table says that a directive needs in its
// block is added.
func block(written string) string {
	text := written
	if head, options, ok := strings.Cut(strings.TrimSuffix(written, " }"), " { "); ok {
		text = head + " {\n" + strings.ReplaceAll(options, "; ", "\n") + "\n}"
	}
	if name, _, _ := strings.Cut(written, " "); name == "autopath" || name == "k8s_external" || strings.Contains(written, " k8s:") {
		text += "\nkubernetes cluster.local"
	}
	return ".:53 {\n" + text + "\n}\n"
}

// scratch changes to a folder that has the files the documents' Corefiles name.
func scratch(t *testing.T) {
	t.Helper()
	_, root := document(t, "README.md")
	t.Chdir(t.TempDir())
	if err := os.Symlink(filepath.Join(root, "cmd"), "cmd"); err != nil { // the sample of a cluster is there
		t.Fatal(err)
	}
	for name, text := range map[string]string{"cluster.yaml": "", "resolv.conf": "search example.org\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := ca.ForTest(t)
	a.ServerFiles(t, ".", "dns.example.org", time.Now().Add(time.Hour)) // cert.pem and key.pem
	a.RootFile(t, ".")                                                  // ca.pem
}

// parse reads a Corefile as an agent does that has the addresses of the documents'
// examples. The working directory stands in for the folder that the manifest mounts.
func parse(text string) error {
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	text = strings.ReplaceAll(text, " /var/lib/nodens/", " "+here+"/")
	_, err = config.Parse(config.Source{Path: "Corefile", Text: []byte(text), Options: config.Options{
		LocalIPs:  []netip.Addr{netip.AddrFrom4([4]byte{169, 254, 20, 10})},
		LookupEnv: func(name string) (string, bool) { return "10.96.0.11", name == "KUBE_DNS_SERVICE_HOST" },
	}})
	return err
}

func TestBlock(t *testing.T) {
	tests := []struct{ written, want string }{
		{"loop", ".:53 {\nloop\n}\n"},
		{"cache 30 { servfail 5s }", ".:53 {\ncache 30 {\nservfail 5s\n}\n}\n"},
		{"hosts { ttl 60; no_reverse }", ".:53 {\nhosts {\nttl 60\nno_reverse\n}\n}\n"},
		{"log . {combined}", ".:53 {\nlog . {combined}\n}\n"},
		{"autopath @kubernetes", ".:53 {\nautopath @kubernetes\nkubernetes cluster.local\n}\n"},
		{"k8s_external { headless }", ".:53 {\nk8s_external {\nheadless\n}\nkubernetes cluster.local\n}\n"},
	}
	for _, tt := range tests {
		if got := block(tt.written); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.written, got, tt.want)
		}
	}
}

func TestSupport(t *testing.T) {
	lines := supported(t)
	scratch(t)
	for _, s := range lines {
		t.Run(s.written, func(t *testing.T) {
			if name, _, _ := strings.Cut(s.written, " "); name != s.directive {
				t.Errorf("stands under %q", s.directive)
			}
			err := parse(block(s.written))
			switch s.level {
			case works, ignored:
				if err != nil {
					t.Errorf("%q, but: %v", s.level, err)
				}
			case missing:
				// The error is of what CoreDNS has and nodens does not, and
				// not of something else that is wrong in the line.
				if err == nil || !strings.Contains(err.Error(), "this version of nodens") {
					t.Errorf("%q, but: %v", s.level, err)
				}
			default:
				t.Errorf("support is %q, want %q, %q or %q", s.level, works, ignored, missing)
			}
		})
	}
}

// A directive that the parser takes has a line that says so.
func TestDirectivesComplete(t *testing.T) {
	var got []string
	for _, s := range supported(t) {
		if s.level == works && !slices.Contains(got, s.directive) {
			got = append(got, s.directive)
		}
	}
	slices.Sort(got)
	if d := cmp.Diff(slices.Sorted(slices.Values(config.Directives())), got); d != "" {
		t.Errorf("directives of the parser and of README.md (-parser +README):\n%s", d)
	}
}

// An option that the parser takes has a line that says so. The parser itself tells
// which there are, in its error for one that there is not.
func TestOptionsComplete(t *testing.T) {
	lines := supported(t)
	scratch(t)
	for _, directive := range config.Directives() {
		t.Run(directive, func(t *testing.T) {
			at := slices.IndexFunc(lines, func(s support) bool { return s.directive == directive && s.level == works })
			if at < 0 {
				t.Fatal("no line of the table is of it")
			}
			head, _, _ := strings.Cut(lines[at].written, " { ")
			if directive == "rewrite" { // its block has rules, and no options
				return
			}
			var got []string
			for _, s := range lines {
				if s.directive == directive && s.level != missing {
					got = append(got, options(s.written)...)
				}
			}
			for _, option := range allowed(t, block(head+" { nothing-of-the-kind }")) {
				if !slices.Contains(got, option) {
					t.Errorf("the option %q has no line", option)
				}
			}
		})
	}
}

// options are the names of the options in a directive's block.
func options(written string) []string {
	_, inner, ok := strings.Cut(strings.TrimSuffix(written, " }"), " { ")
	if !ok {
		return nil
	}
	var names []string
	for option := range strings.SplitSeq(inner, "; ") {
		name, _, _ := strings.Cut(option, " ")
		names = append(names, name)
	}
	return names
}

// allowed are the options that the fault of the text's option names instead.
func allowed(t *testing.T, text string) []string {
	t.Helper()
	err := parse(text)
	var fault *config.ParseError
	if !errors.As(err, &fault) || fault.Word != "nothing-of-the-kind" {
		t.Fatalf("%s: %v, want a fault of nothing-of-the-kind", text, err)
	}
	return fault.Allowed
}

func TestCorefiles(t *testing.T) {
	n := 0
	for _, name := range documents(t) {
		text, _ := document(t, name)
		for _, f := range fences(text) {
			if f.language != "corefile" {
				continue
			}
			n++
			t.Run(name, func(t *testing.T) {
				scratch(t)
				if err := parse(f.text); err != nil {
					t.Errorf("line %d: %v", f.line, err)
				}
			})
		}
	}
	if n == 0 {
		t.Error("no document has a Corefile")
	}
}

// The Corefiles that README.md tells to look at are there.
func TestNamedCorefiles(t *testing.T) {
	text, root := document(t, "README.md")
	const flag = "-conf "
	found := false
	for _, f := range fences(text) {
		_, rest, ok := strings.Cut(f.text, flag)
		if f.language != "sh" || !ok {
			continue
		}
		found = true
		path := strings.Fields(rest)[0]
		if _, err := config.Load(filepath.Join(root, path), config.Options{}); err != nil {
			t.Errorf("line %d: %v", f.line, err)
		}
	}
	if !found {
		t.Errorf("no sh fence of README.md uses %q", flag)
	}
}
