// Package layout holds the rules of dependency and a few habits of the tree, as
// ARCHITECTURE.md tells them.
package layout

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
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
func (p pkg) where() string { return strings.TrimPrefix(p.ImportPath, module) }

func below(path string, roots ...string) bool {
	return slices.ContainsFunc(roots, func(r string) bool { return path == r || strings.HasPrefix(path, r+"/") })
}

// TestImports: the packet's way is a straight line. Siblings don't know each other,
// the leaves know nobody, and each outside library has one room.
func TestImports(t *testing.T) {
	rooms := []struct {
		library string
		rooms   []string
		reason  string
	}{
		{"k8s.io/", []string{"kubernetes", "cmd/nodens/migrate"}, "the agent reads the API server there, and the migration edits a cluster's objects"},
		{"github.com/vishvananda/", []string{"netsetup"}, "links and addresses are that package's business"},
		{"github.com/coreos/go-iptables", []string{"netsetup"}, "rules are that package's business"},
		{"github.com/prometheus/", []string{"cmd/nodens"}, "parts count in plain numbers; exposing them is the command's business"},
		{"github.com/coredns/", []string{"internal/config"}, "the Corefile's syntax is that package's business"},
		{"github.com/cilium/", []string{"server/fastpath"}, "programs in the kernel are that package's business"},
		{"github.com/expr-lang/", []string{"internal/expression"}, "the language of conditions is that package's business"},
	}
	siblings := []string{"cache", "upstream", "netsetup", "kubernetes"}
	for _, p := range packages(t) {
		at := p.where()
		if below(at, "test", "daemonset") {
			continue
		}
		if below(at, "server/resolver") && slices.Contains(p.Imports, "net/http") {
			t.Errorf("%s imports net/http: the query path does not know how a query came", at)
		}
		for _, imported := range p.Imports {
			for _, r := range rooms {
				if strings.HasPrefix(imported, r.library) && !below(at, r.rooms...) {
					t.Errorf("%s imports %s, which belongs to %v only: %s", at, imported, r.rooms, r.reason)
				}
			}
			to, ours := strings.CutPrefix(imported, module)
			switch {
			case !ours || below(to, "internal"):
			case below(at, "internal"):
				t.Errorf("%s imports %s: internal is leaf vocabulary and knows nobody", at, to)
			case below(at, siblings...) && !below(to, at):
				t.Errorf("%s imports %s: the steps of the path don't know each other; cmd/nodens joins them", at, to)
			case below(at, "server/resolver") && (to == "server" || below(to, "server/fastpath")):
				t.Errorf("%s imports %s: the query path knows no sockets and no program in the kernel", at, to)
			case below(at, "server") && below(to, "netsetup", "cmd"):
				t.Errorf("%s imports %s: a packet does not care how it got here", at, to)
			case below(to, "test"):
				t.Errorf("%s imports %s: tests are not part of the program", at, to)
			}
		}
	}
}

// TestFolders: the top level is what ARCHITECTURE.md draws.
func TestFolders(t *testing.T) {
	want := []string{"cache", "cmd", "daemonset", "internal", "kubernetes", "netsetup", "server", "test", "upstream"}
	var got []string
	for _, p := range packages(t) {
		top, _, _ := strings.Cut(p.where(), "/")
		if !slices.Contains(got, top) {
			got = append(got, top)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("top-level folders with packages are %v, want %v", got, want)
	}
}

// TestHabits: every package says what it does, nothing runs before main, and only
// main ends the process.
func TestHabits(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 {
			continue
		}
		words := 0
		for _, name := range p.GoFiles {
			words = max(words, checkFile(t, filepath.Join(p.Dir, name)))
		}
		if words < 12 {
			t.Errorf("%s has a package doc of %d words; say how it works", p.where(), words)
		}
	}
}

// checkFile gives the number of words of the file's package doc.
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
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Exit" {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "os" {
					t.Errorf("%s: os.Exit outside of main", fset.Position(sel.Pos()))
				}
			}
			return true
		})
	}
	if lines := fset.File(file.Pos()).LineCount(); lines > 500 {
		t.Errorf("%s has %d lines; a file is one subject", path, lines)
	}
	return len(strings.Fields(file.Doc.Text()))
}
