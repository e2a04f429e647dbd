package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// declarations are what the sources of a folder declare.
type declarations struct {
	files []*ast.File
	// members are the names of the package: Name, Type.Method and Type.Field.
	members map[string]bool
}

// readPackages parses the agent's sources by folder, with the comments.
func readPackages(t *testing.T) (map[string]*declarations, *token.FileSet) {
	t.Helper()
	fset, all := token.NewFileSet(), make(map[string]*declarations)
	for _, source := range agentSources(t) {
		text, _ := document(t, source)
		file, err := parser.ParseFile(fset, source, text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		p := all[path.Dir(source)]
		if p == nil {
			p = &declarations{members: make(map[string]bool)}
			all[path.Dir(source)] = p
		}
		p.files = append(p.files, file)
		for _, d := range file.Decls {
			p.declare(d)
		}
	}
	return all, fset
}

// declare adds the names of a declaration.
func (p *declarations) declare(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		name := d.Name.Name
		if d.Recv != nil {
			name = typeName(d.Recv.List[0].Type) + "." + name
		}
		p.members[name] = true
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.ValueSpec:
				for _, n := range s.Names {
					p.members[n.Name] = true
				}
			case *ast.TypeSpec:
				p.members[s.Name.Name] = true
				for _, f := range fieldsOf(s.Type) {
					for _, n := range fieldNames(f) {
						p.members[s.Name.Name+"."+n] = true
					}
				}
			}
		}
	}
}

// typeName returns the name of a receiver's or an embedded field's type.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// fieldsOf returns the fields of a struct, or the methods of an interface.
func fieldsOf(e ast.Expr) []*ast.Field {
	switch e := e.(type) {
	case *ast.StructType:
		return e.Fields.List
	case *ast.InterfaceType:
		return e.Methods.List
	}
	return nil
}

func fieldNames(f *ast.Field) (names []string) {
	if len(f.Names) == 0 {
		return []string{typeName(f.Type)}
	}
	for _, n := range f.Names {
		names = append(names, n.Name)
	}
	return names
}

// docLink is a link of a doc comment. Syntax, such as [BURST], has no small letter or no name.
var docLink = regexp.MustCompile(`(?:^|[\s("])\[\*?([A-Za-z_]\w*(?:\.[A-Za-z_]\w*){0,2})\](?:[\s.,;:)'"]|$)`)

// TestDocLinks: the links of doc comments lead to members of the package, or of the package that they
// name.
func TestDocLinks(t *testing.T) {
	all, fset := readPackages(t)
	for folder, p := range all {
		for _, file := range p.files {
			imports := make(map[string]string) // folder by the name of its package; "" for others' packages
			for _, i := range file.Imports {
				target := strings.Trim(i.Path.Value, `"`)
				own, _ := strings.CutPrefix(target, "github.com/nodens-dns/nodens/")
				if own == target {
					own = ""
				}
				imports[importName(i, target)] = own
			}
			for _, group := range file.Comments {
				for line := range strings.Lines(group.Text()) {
					if strings.HasPrefix(line, "\t") || strings.HasPrefix(line, " ") {
						continue
					}
					for _, m := range docLink.FindAllStringSubmatch(line, -1) {
						if err := leads(all, folder, imports, m[1]); err != nil {
							t.Errorf("%s: [%s]: %v", fset.Position(group.Pos()), m[1], err)
						}
					}
				}
			}
		}
	}
}

func importName(i *ast.ImportSpec, target string) string {
	if i.Name != nil {
		return i.Name.Name
	}
	return path.Base(target)
}

// leads returns an error if a link of a package leads nowhere.
func leads(all map[string]*declarations, folder string, imports map[string]string, name string) error {
	if strings.ToUpper(name) == name && len(name) > 1 || all[folder].members[name] {
		return nil
	}
	first, rest, qualified := strings.Cut(name, ".")
	own, imported := imports[first]
	if !qualified {
		if imported || folder == "internal/config" { // comments there have syntax, such as [full]
			return nil
		}
		return fmt.Errorf("%s has no such member", folder)
	}
	if all[folder].members[first] {
		return fmt.Errorf("%s has no such member", first)
	}
	for other, p := range all {
		if path.Base(other) == first && (!imported || other == own) && p.members[rest] {
			return nil
		}
	}
	if imported && own == "" || !imported && !slices.ContainsFunc(sorted(all), func(f string) bool { return path.Base(f) == first }) {
		return nil // of another module, or of the standard library
	}
	return fmt.Errorf("package %s has no such member", first)
}

func sorted(all map[string]*declarations) (folders []string) {
	for f := range all {
		folders = append(folders, f)
	}
	slices.Sort(folders)
	return folders
}

// subject is the beginning of a field's comment that names a field: a sentence begins with a capital
// letter, so a small word in front of a verb is a name. camel is a name in any place.
var subject = regexp.MustCompile(`^([a-z]\w*)(?:,? (?:and )?[a-z]\w*)*? (?:is|are|has|have|says|say|returns|reports|counts|holds|ends|tells|names|means|does|makes|reads|asks|waits|gets|limits|bounds) `)

var camel = regexp.MustCompile(`\b[a-z][a-z0-9]*[A-Z]\w*\b`)

// foreign are names of Kubernetes' API, and of protocols, that look like names of Go.
var foreign = []string{"dnsConfig", "gRPC", "resourceVersion", "resourceVersions"}

// TestFieldComments: a comment of a field that begins with a field's name begins with one of the struct,
// and other names in it are names of the package.
func TestFieldComments(t *testing.T) {
	all, fset := readPackages(t)
	for _, p := range all {
		known := p.identifiers()
		for _, file := range p.files {
			ast.Inspect(file, func(n ast.Node) bool {
				s, ok := n.(*ast.StructType)
				if !ok {
					return true
				}
				var names []string
				for _, f := range s.Fields.List {
					names = append(names, fieldNames(f)...)
				}
				for _, f := range s.Fields.List {
					m := subject.FindStringSubmatch(f.Doc.Text())
					if m != nil && !slices.Contains(names, m[1]) {
						t.Errorf("%s: the comment begins with %s, which the struct does not have", fset.Position(f.Pos()), m[1])
					}
					for _, word := range camel.FindAllString(f.Doc.Text()+f.Comment.Text(), -1) {
						if !known[word] && !slices.Contains(foreign, word) {
							t.Errorf("%s: the package has no %s", fset.Position(f.Pos()), word)
						}
					}
				}
				return true
			})
		}
	}
}

// identifiers are all names in the sources of the package, and the words of its string literals.
func (p *declarations) identifiers() map[string]bool {
	known := make(map[string]bool)
	for _, file := range p.files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				known[n.Name] = true
			case *ast.BasicLit:
				for _, word := range camel.FindAllString(n.Value, -1) {
					known[word] = true
				}
			}
			return true
		})
	}
	return known
}
