package docs

import (
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/ca"
)

// reference is the folder of the pages about directives.
const reference = "docs/reference/corefile/"

// form is a way to write a directive. A refused one has what to do instead.
type form struct {
	written, instead string
	refused          bool
}

// forms returns the forms of a directive: those of testdata/forms.txt, which are accepted, and the
// rows of its table of refused ones.
func forms(t *testing.T, directive string) []form {
	t.Helper()
	accepted, _ := document(t, "test/docs/testdata/forms.txt")
	var list []form
	for line := range strings.Lines(accepted) {
		if name, _, _ := strings.Cut(strings.TrimSpace(line), " "); name == directive {
			list = append(list, form{written: strings.TrimSpace(line)})
		}
	}
	text := directivePage(t, directive)
	for _, r := range data(table(text, "refused", "instead")) {
		written, ok := code(r[0])
		if !ok || len(r) != 2 {
			t.Fatalf("%s: the row %q does not have two cells with code in the first one", directive, r)
		}
		list = append(list, form{written, r[1], true})
	}
	if len(list) == 0 {
		t.Fatalf("%s has no forms", directive)
	}
	return list
}

// block makes a server block of a directive as the tables write it: the lines of its
// block are separated by semicolons. Braces without spaces around them, such as those
// of a log format, are no block. A kubernetes directive is added if this one needs it.
func block(written string) string {
	text := written
	if head, options, ok := strings.Cut(strings.TrimSuffix(written, " }"), " { "); ok {
		text = head + " {\n" + strings.ReplaceAll(options, "; ", "\n") + "\n}"
	}
	if name, _, _ := strings.Cut(written, " "); name == "autopath" || name == "k8s_external" || name == "aaaa" || strings.Contains(written, " k8s:") {
		text += "\nkubernetes cluster.local"
	}
	if strings.HasPrefix(written, "keep ") {
		text += "\ncache\nforward . 192.0.2.53"
	}
	return ".:53 {\n" + text + "\n}\n"
}

// scratch changes to a folder that has the files the documents' Corefiles name. Those of the
// tree are there too, because commands are run from its root.
func scratch(t *testing.T) {
	t.Helper()
	_, root := document(t, "README.md")
	t.Chdir(t.TempDir())
	if err := os.Symlink(filepath.Join(root, "cmd"), "cmd"); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"cluster.yaml": "", "resolv.conf": "search example.org\n", "tsig.keys": "key a.key { secret AAAA; };\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := ca.ForTest(t)
	a.ServerFiles(t, ".", "dns.example.org", time.Now().Add(time.Hour)) // cert.pem and key.pem
	a.RootFile(t, ".")                                                  // ca.pem
}

// parse returns the error of [read].
func parse(text string) error {
	_, err := read(text)
	return err
}

// read reads a Corefile as an agent does that has the addresses of the documents'
// examples. The working directory stands in for the folder that the manifest mounts.
func read(text string) (*config.Config, error) {
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	text = strings.ReplaceAll(text, " /var/lib/nodens/", " "+here+"/")
	return config.Parse(config.Source{Path: "Corefile", Text: []byte(text), Options: config.Options{
		LocalIPs:   []netip.Addr{netip.AddrFrom4([4]byte{169, 254, 20, 10})},
		HostListen: []netip.Addr{netip.AddrFrom4([4]byte{169, 254, 20, 11})},
		LookupEnv:  func(name string) (string, bool) { return "10.96.0.11", name == "KUBE_DNS_SERVICE_HOST" },
	}})
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

// directivePage returns the text about a directive: its own page, or its section of a page about
// several.
func directivePage(t *testing.T, directive string) string {
	t.Helper()
	_, root := document(t, "README.md")
	paths, err := fs.Glob(os.DirFS(root), reference+"*.md")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range paths {
		text, _ := document(t, path)
		if page, ok := strings.CutPrefix(text, "# "+directive+"\n\n"); ok {
			found = append(found, page)
		} else if _, section, ok := strings.Cut(text, "\n## "+directive+"\n\n"); ok {
			section, _, _ = strings.Cut(section, "\n## ")
			found = append(found, section+"\n")
		}
	}
	if len(found) != 1 {
		t.Fatalf("%s is described in %d places below %s, want a page or a heading", directive, len(found), reference)
	}
	return found[0]
}

// TestDirectivePages: each directive of the parser is described in one place, which begins with its
// name and has its syntax.
func TestDirectivePages(t *testing.T) {
	for _, directive := range config.Directives() {
		rest := directivePage(t, directive)
		if !strings.HasPrefix(rest, "`"+directive+"` ") {
			t.Errorf("the text about %s does not begin with its name", directive)
		}
		if !strings.Contains(rest, "```text\n"+directive) {
			t.Errorf("the text about %s has no syntax", directive)
		}
	}
}

// TestSyntax compares the first line of a page's syntax with what the parser says to write, for
// the directives of which it says so.
func TestSyntax(t *testing.T) {
	compared := 0
	for _, directive := range config.Directives() {
		first, _, _ := strings.Cut(fences(directivePage(t, directive))[0].text, "\n")
		for _, args := range []string{"", strings.Repeat(" 192.0.2.1", 50)} {
			err := parse(block(directive + args))
			if err == nil {
				continue
			}
			_, usage, ok := strings.Cut(err.Error(), "; write: "+directive)
			if !ok {
				continue
			}
			compared++
			usage, _, _ = strings.Cut(usage, " (")
			usage, _, _ = strings.Cut(usage, " {")
			if got := strings.TrimSuffix(first, " {"); directive != "rewrite" && got != directive+usage {
				t.Errorf("%s: the syntax begins with %q, want %q", directive, got, directive+usage)
			}
		}
	}
	if compared < 20 {
		t.Errorf("the parser says how to write %d directives, want 20 or more", compared)
	}
}

// TestForms parses each form. What is refused gets an error that says what to do instead.
func TestForms(t *testing.T) {
	for _, directive := range config.Directives() {
		list := forms(t, directive)
		t.Run(directive, func(t *testing.T) {
			scratch(t)
			for _, f := range list {
				if name, _, _ := strings.Cut(f.written, " "); name != directive {
					t.Errorf("%s: in the text about %s", f.written, directive)
				}
				err := parse(block(f.written))
				if !f.refused {
					if err != nil {
						t.Errorf("%s: %v", f.written, err)
					}
					continue
				}
				remedy := strings.ReplaceAll(f.instead, "`", "")
				// The error is about what CoreDNS has and nodens doesn't, and not about
				// something else that is wrong in the row.
				if err == nil || remedy == "" || !strings.Contains(err.Error(), "this version of nodens") || !strings.Contains(err.Error(), remedy) {
					t.Errorf("%s: refused, with %q, but: %v", f.written, remedy, err)
				}
			}
		})
	}
}

// TestCorefiles parses each Corefile in the documents.
func TestCorefiles(t *testing.T) {
	for _, name := range documents(t) {
		text, _ := document(t, name)
		for _, f := range fences(text) {
			if f.language != "corefile" {
				continue
			}
			t.Run(name, func(t *testing.T) {
				scratch(t)
				c, err := read(f.text)
				if err != nil {
					t.Fatalf("line %d: %v", f.line, err)
				}
				for _, s := range c.Suspicious {
					if s.Line > 0 { // without one it is about addresses that an example need not serve
						t.Errorf("line %d: probably a mistake: %v", f.line, s)
					}
				}
			})
		}
	}
}

// conf is the flag for a Corefile, and its value.
var conf = regexp.MustCompile(`--?conf[ =](\S+)`)

// The Corefiles that the documents tell to look at are there.
func TestNamedCorefiles(t *testing.T) {
	found := false
	for _, name := range documents(t) {
		text, root := document(t, name)
		for _, f := range fences(text) {
			if f.language != "sh" {
				continue
			}
			for _, m := range conf.FindAllStringSubmatch(f.text, -1) {
				found = true
				if _, err := config.Load(filepath.Join(root, m[1]), config.Options{}); err != nil {
					t.Errorf("%s:%d: %v", name, f.line, err)
				}
			}
		}
	}
	if !found {
		t.Error("no sh fence names a Corefile")
	}
}
