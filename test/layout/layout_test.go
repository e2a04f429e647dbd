// Package layout checks the import rules of ARCHITECTURE.md and some conventions of
// CONTRIBUTING.md.
package layout

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
)

const module = "github.com/nodens-dns/nodens/"

// pkg is what `go list` says of one package.
type pkg struct {
	ImportPath, Dir  string
	GoFiles, Imports []string
}

// packages lists the module's packages.
func packages(t *testing.T) []pkg {
	t.Helper()
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Imports", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var list []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var p pkg
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	if len(list) < 8 {
		t.Fatalf("go list found only %d packages", len(list))
	}
	return list
}

// where is the package's folder below the root.
// dir is the package's directory relative to the root.
func (p pkg) dir() string { return strings.TrimPrefix(p.ImportPath, module) }

// within reports whether dir is one of roots or below it.
func within(dir string, roots ...string) bool {
	return slices.ContainsFunc(roots, func(r string) bool { return dir == r || strings.HasPrefix(dir, r+"/") })
}

// allowed lists, for each directory, the packages of this module that those below it may
// import besides internal. The longest directory counts. The query path is a straight
// line, so no entry leads back up: what is not listed imports internal only.
var allowed = map[string][]string{
	"cmd/nodens":           {"cmd/nodens/advice", "cmd/nodens/app", "cmd/nodens/kubectl", "cmd/nodens/options", "cmd/nodens/migrate", "daemonset", "netsetup", "server/zonefile"},
	"cmd/nodens/app":       {"cmd/nodens/app/endpoint", "cmd/nodens/app/page", "cmd/nodens/options", "server", "kubernetes", "cache", "upstream", "netsetup"},
	"cmd/nodens/app/page":  {"cmd/nodens/advice"},
	"cmd/nodens/advice":    {},
	"cmd/nodens/kubectl":   {"cmd/nodens/advice"},
	"cmd/nodens/migrate":   {"daemonset"},
	"cmd/nodens/options":   {"netsetup"},
	"server":               {"server/clients", "server/kernelpath", "server/reply", "server/resolver", "server/udp", "upstream"},
	"server/reply":         {},
	"server/resolver":      {"server/balance", "server/clients", "server/dnstap", "server/hosts", "server/otlp", "server/reply", "server/rewrite", "server/tail", "server/template", "server/tunnel", "kubernetes", "cache", "upstream"},
	"server/balance":       {},
	"server/clients":       {},
	"server/dnstap":        {},
	"server/kernelpath":    {"server/reply"},
	"server/hosts":         {},
	"server/otlp":          {},
	"server/rewrite":       {},
	"server/tail":          {},
	"server/template":      {},
	"server/transfer":      {},
	"server/tsig":          {},
	"server/tunnel":        {},
	"server/udp":           {},
	"server/zonefile":      {},
	"kubernetes":           {"kubernetes/reflector"},
	"kubernetes/reflector": {},
	"cache":                {},
	"upstream":             {},
	"netsetup":             {},
	"internal":             {},
}

// libraries lists the packages that may import a library. Each stays in one place, so that
// it can be replaced there.
var libraries = []struct {
	prefix string
	users  []string
}{
	{"k8s.io/", []string{"kubernetes", "cmd/nodens/migrate"}},
	{"github.com/vishvananda/", []string{"netsetup"}},
	{"github.com/coreos/go-iptables", []string{"netsetup"}},
	{"github.com/prometheus/", []string{"cmd/nodens/app"}},
	{"github.com/hashicorp/golang-lru/", []string{"cache"}},
	{"github.com/coredns/", []string{"internal/config"}},
	{"github.com/cilium/", []string{"server/kernelpath"}},
	{"github.com/godbus/", []string{"internal/resolvconf"}},
	{"github.com/quic-go/", []string{"server", "upstream"}},
	{"github.com/expr-lang/", []string{"internal/expression"}},
	{"github.com/spf13/", []string{"cmd/nodens", "internal/cli"}},
	{"github.com/miekg/dns", []string{"internal/wire"}},
	{"go.opentelemetry.io/", []string{"server/otlp"}},
	{"golang.org/x/net/", []string{"server/tunnel"}},
}

// TestImports checks the import rules that ARCHITECTURE.md draws.
func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		dir := p.dir()
		if within(dir, "test", "daemonset") {
			continue
		}
		may, ok := rules(dir)
		if !ok {
			t.Errorf("%s: add it to allowed", dir)
		}
		if within(dir, "server/resolver") && slices.Contains(p.Imports, "net/http") {
			t.Errorf("%s imports net/http: the query path does not know how a query came", dir)
		}
		for _, imported := range p.Imports {
			for _, l := range libraries {
				if strings.HasPrefix(imported, l.prefix) && !within(dir, l.users...) {
					t.Errorf("%s imports %s, which only %v may import", dir, imported, l.users)
				}
			}
			to, ours := strings.CutPrefix(imported, module)
			if ours && !within(to, "internal") && !slices.ContainsFunc(may, func(m string) bool { return to == m || m == "server" && within(to, "server") }) {
				t.Errorf("%s imports %s; it may import internal and %v", dir, to, may)
			}
			if within(dir, "internal") && ours && !within(to, "internal") {
				t.Errorf("%s imports %s: packages below internal know none of their users", dir, to)
			}
		}
	}
}

// rules returns the entry of allowed for the longest directory that dir is in.
func rules(dir string) (may []string, ok bool) {
	for d := dir; d != "."; d = filepath.Dir(d) {
		if may, ok = allowed[d]; ok {
			return may, true
		}
	}
	return nil, false
}

// TestTopLevel: the directories with packages at the top level are those of the house.
func TestTopLevel(t *testing.T) {
	want := []string{"cache", "cmd", "daemonset", "internal", "kubernetes", "netsetup", "server", "test", "upstream"}
	var got []string
	for _, p := range packages(t) {
		top, _, _ := strings.Cut(p.dir(), "/")
		if !slices.Contains(got, top) {
			got = append(got, top)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("top-level directories with packages are %v, want %v", got, want)
	}
}

// TestArchitecture: the document stays short enough to be read in one go.
func TestArchitecture(t *testing.T) {
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n > 200 {
		t.Errorf("ARCHITECTURE.md has %d lines, want 200 at most; details belong in package docs", n)
	}
}

// TestConventions: every package has a package doc, nothing runs before main, only main
// ends the process, errors are logged under the key err, and files are short.
func TestConventions(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 {
			continue
		}
		words := 0
		for _, name := range p.GoFiles {
			words = max(words, checkFile(t, filepath.Join(p.Dir, name)))
		}
		if words < 12 {
			t.Errorf("%s has a package doc of %d words; say how it works", p.dir(), words)
		}
	}
}

// maxFileLines bounds a file. One with several subjects is too long before; the methods of one type need not be torn
// apart earlier.
const maxFileLines = 900

// checkFile checks one file and returns the number of words of its package doc.
func checkFile(t *testing.T, path string) (words int) {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if f.Recv == nil && f.Name.Name == "init" {
			t.Errorf("%s: init runs before main can check anything", fset.Position(f.Pos()))
		}
		if f.Recv == nil && f.Name.Name == "main" {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "os" && n.Sel.Name == "Exit" {
					t.Errorf("%s: os.Exit outside of main", fset.Position(n.Pos()))
				}
			case *ast.CallExpr:
				checkLogKeys(t, fset, n)
			}
			return true
		})
	}
	if lines := fset.File(file.Pos()).LineCount(); lines > maxFileLines {
		t.Errorf("%s has %d lines, want %d at most", path, lines, maxFileLines)
	}
	return len(strings.Fields(file.Doc.Text()))
}

// checkLogKeys reports calls of slog's methods that log an error under another key than err.
func checkLogKeys(t *testing.T, fset *token.FileSet, call *ast.CallExpr) {
	t.Helper()
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains([]string{"Debug", "Info", "Warn", "Error", "Log", "LogAttrs", "With", "String", "Any"}, sel.Sel.Name) {
		return
	}
	for _, arg := range call.Args {
		if lit, ok := arg.(*ast.BasicLit); ok && lit.Value == `"error"` {
			t.Errorf("%s: log key %s, want \"err\"", fset.Position(lit.Pos()), lit.Value)
		}
	}
}

// askingFiles are the files of cmd/nodens with commands that ask a running agent.
var askingFiles = []string{
	"admin_socket.go", "advise.go", "cache.go", "explain.go", "plugin.go", "status.go", "table.go", "tail.go", "tail_text.go", "top.go", "top_clients.go", "top_names.go", "top_upstreams.go",
}

// TestAskingCommands: commands that ask a running agent know only its replies, and no part of it.
func TestAskingCommands(t *testing.T) {
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range askingFiles {
		path := filepath.Join(root, "cmd/nodens", name)
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			imported := strings.Trim(spec.Path.Value, `"`)
			if to, ours := strings.CutPrefix(imported, module); ours && !slices.Contains([]string{"cmd/nodens/advice", "cmd/nodens/kubectl", "internal/cli", "internal/report"}, to) {
				t.Errorf("%s imports %s; it may import cmd/nodens/advice, cmd/nodens/kubectl, internal/cli and internal/report", path, to)
			}
		}
	}
	for _, p := range packages(t) {
		if p.dir() != "internal/report" && p.dir() != "internal/sketch" {
			continue
		}
		for _, imported := range p.Imports {
			if strings.Contains(imported, ".") {
				t.Errorf("%s imports %s; it may import the standard library only", p.dir(), imported)
			}
		}
	}
}
