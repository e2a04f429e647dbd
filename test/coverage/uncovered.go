package coverage

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Uncovered is a function or block that no test reaches.
type Uncovered struct {
	File     string // named like in the profile
	Function string // with its receiver's type, such as "(*Cache).Get"
	Block    Block
	Text     string // the block's first line; empty for a whole function
}

// Uncovered lists what no test reaches in a file, in the file's order. source is the path of the
// file. A function without any covered statement is listed once, in place of its blocks.
func (p Profile) Uncovered(file, source string) ([]Uncovered, error) {
	text, err := os.ReadFile(source)
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, source, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(string(text), "\n")
	var list []Uncovered
	for _, d := range tree.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		from, to := fset.Position(f.Pos()), fset.Position(f.End())
		whole := Block{Start: Position{from.Line, from.Column}, End: Position{to.Line, to.Column}}
		list = append(list, p.inFunction(file, functionName(f), whole, lines)...)
	}
	return list, nil
}

// inFunction lists what no test reaches between the start and the end of whole.
func (p Profile) inFunction(file, name string, whole Block, lines []string) (list []Uncovered) {
	var count Count
	for _, b := range slices.SortedFunc(maps.Keys(p[file]), func(a, b Block) int {
		if a.Start.before(b.Start) {
			return -1
		}
		return 1
	}) {
		if b.Statements == 0 || b.Start.before(whole.Start) || whole.End.before(b.End) {
			continue
		}
		count.add(b, p[file][b])
		if !p[file][b] {
			list = append(list, Uncovered{file, name, b, firstLine(lines, b)})
		}
	}
	if count.Covered == 0 && count.Statements > 0 {
		whole.Statements = count.Statements
		return []Uncovered{{File: file, Function: name, Block: whole}}
	}
	return list
}

// firstLine returns the first line of a block that holds more than its opening brace.
func firstLine(lines []string, b Block) string {
	for n := b.Start.Line; n <= b.End.Line && n <= len(lines); n++ {
		line := lines[n-1]
		if n == b.Start.Line {
			line = line[min(b.Start.Column-1, len(line)):]
		}
		if line = strings.TrimSpace(line); line != "" && line != "{" && !strings.HasPrefix(line, "//") {
			return line
		}
	}
	return "{"
}

// functionName returns a function's name with its receiver's type.
func functionName(f *ast.FuncDecl) string {
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return f.Name.Name
	}
	t, format := f.Recv.List[0].Type, "%s.%s"
	if star, ok := t.(*ast.StarExpr); ok {
		t, format = star.X, "(*%s).%s"
	}
	if generic, ok := t.(*ast.IndexExpr); ok {
		t = generic.X
	}
	if id, ok := t.(*ast.Ident); ok {
		return fmt.Sprintf(format, id.Name, f.Name.Name)
	}
	return f.Name.Name
}

// WriteUncovered prints what no test reaches in the packages, which are directories below root.
// module is the module's path with a slash at the end.
func (p Profile) WriteUncovered(w io.Writer, root, module string, packages []string) error {
	for _, file := range slices.Sorted(maps.Keys(p)) {
		local := strings.TrimPrefix(file, module)
		if !slices.Contains(packages, filepath.ToSlash(filepath.Dir(local))) {
			continue
		}
		list, err := p.Uncovered(file, filepath.Join(root, filepath.FromSlash(local)))
		if err != nil {
			return err
		}
		for _, u := range list {
			if u.Text == "" {
				fmt.Fprintf(w, "%s:%d: %s: never called, %d statements\n", local, u.Block.Start.Line, u.Function, u.Block.Statements)
			} else {
				fmt.Fprintf(w, "%s:%d-%d: %s: %s\n", local, u.Block.Start.Line, u.Block.End.Line, u.Function, u.Text)
			}
		}
	}
	return nil
}
