package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// source is the Go source of one tree.
type source struct {
	fset  *token.FileSet
	files []file
}

type file struct {
	name   string // relative to the tree
	test   bool
	text   string
	syntax *ast.File
}

// pkg is the directory of the file.
func (f file) pkg() string { return filepath.Dir(f.name) }

// generated matches the comment that marks generated files (go help generate).
var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// readSource parses the Go files in the directory tree.
func readSource(tree string) (*source, error) {
	s := &source{fset: token.NewFileSet()}
	err := filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return s.enter(tree, path, d.Name())
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		syntax, err := parser.ParseFile(s.fset, path, text, parser.ParseComments)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(tree, path)
		if err != nil || generated.Match(text) {
			return err
		}
		test := strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "test"+string(filepath.Separator))
		s.files = append(s.files, file{name: name, test: test, text: string(text), syntax: syntax})
		return nil
	})
	return s, err
}

// enter skips directories without source of the module.
func (s *source) enter(tree, path, name string) error {
	if path != tree && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin") {
		return filepath.SkipDir
	}
	return nil
}

// rows are the figures that need the source only.
func (s *source) rows() []row {
	var product, test, characters int
	lines, files := make(map[string]int), make(map[string]int)
	for _, f := range s.files {
		n := strings.Count(f.text, "\n")
		if f.test {
			test += n
			continue
		}
		product += n
		characters += utf8.RuneCountInString(f.text)
		lines[f.pkg()] += n
		files[f.pkg()]++
	}
	largest, most := maximum(lines), maximum(files)
	short, all, letters := s.functionNames()
	once, unique := s.usedOnce()
	return []row{
		{"lines of product code", fmt.Sprint(product)},
		{"characters in a line of product code", fmt.Sprintf("%.1f", float64(characters)/float64(product))},
		{"lines of test code", fmt.Sprint(test)},
		{"largest package (lines)", fmt.Sprintf("%s, %d", largest, lines[largest])},
		{"most files in a package", fmt.Sprintf("%s, %d", most, files[most])},
		{"function names of five letters or fewer", fmt.Sprintf("%.0f %%, %.1f letters on average", 100*float64(short)/float64(all), float64(letters)/float64(all))},
		{"functions with one use, of those whose name no other one has", fmt.Sprintf("%.0f %% of %d", 100*float64(once)/float64(max(1, unique)), unique)},
		{"types with methods in three or more files", fmt.Sprint(len(s.spreadTypes()))},
		{"duplicate pairs in product code", fmt.Sprint(s.duplicates(func(f file) bool { return !f.test }))},
		{"duplicate pairs in all code", fmt.Sprint(s.duplicates(func(file) bool { return true }))},
	}
}

func maximum(counts map[string]int) (name string) {
	for n, c := range counts {
		if c > counts[name] || c == counts[name] && n < name {
			name = n
		}
	}
	return name
}

// functionNames counts the names of the product's functions and methods.
func (s *source) functionNames() (short, all, letters int) {
	for _, f := range s.files {
		if f.test {
			continue
		}
		for _, d := range f.syntax.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Name.Name == "main" {
				continue
			}
			n := utf8.RuneCountInString(fn.Name.Name)
			all, letters = all+1, letters+n
			if n <= 5 {
				short++
			}
		}
	}
	return short, all, letters
}

// usedOnce counts the product's functions and methods whose name no other one has, and those of them that the product
// names in one other place. It compares names, not types, so a field of that name counts as a place.
func (s *source) usedOnce() (once, unique int) {
	declared, places := make(map[string]int), make(map[string]int)
	for _, f := range s.files {
		if f.test {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				declared[n.Name.Name]++
			case *ast.Ident:
				places[n.Name]++
			}
			return true
		})
	}
	for name, n := range declared {
		if n > 1 || name == "main" {
			continue
		}
		unique++
		if places[name] == 2 {
			once++
		}
	}
	return once, unique
}

// spreadTypes lists the product's types with methods in three files or more.
func (s *source) spreadTypes() (names []string) {
	files := make(map[string]map[string]bool) // of each type
	for _, f := range s.files {
		if f.test {
			continue
		}
		for _, d := range f.syntax.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil {
				continue
			}
			id := f.pkg() + "." + receiver(fn.Recv.List[0].Type)
			if files[id] == nil {
				files[id] = make(map[string]bool)
			}
			files[id][f.name] = true
		}
	}
	for id, in := range files {
		if len(in) >= 3 {
			names = append(names, id)
		}
	}
	slices.Sort(names)
	return names
}

// receiver is the name of a receiver's type.
func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return ""
}

// window is how many equal lines in a row make a duplicate.
const window = 6

// duplicates counts the pairs of places that share six or more lines, apart from blank
// lines, comments, imports, package clauses and lines without a letter. Code that stands
// in more than eight places is a pattern of the language and is not counted.
func (s *source) duplicates(include func(file) bool) (pairs int) {
	var texts [][]string
	places := make(map[string][]place) // of each run of lines
	for _, f := range s.files {
		if !include(f) {
			continue
		}
		lines := codeLines(f.text)
		texts = append(texts, lines)
		for i := range len(lines) - window + 1 {
			key := strings.Join(lines[i:i+window], "\n")
			places[key] = append(places[key], place{len(texts) - 1, i})
		}
	}
	for _, at := range places {
		if len(at) > 8 {
			continue
		}
		for i, a := range at {
			for _, b := range at[i+1:] {
				if !a.overlaps(b) && !a.continues(b, texts) {
					pairs++
				}
			}
		}
	}
	return pairs
}

// place is where a run of equal lines starts.
type place struct{ file, line int }

// overlaps reports whether two runs have lines in common.
func (a place) overlaps(b place) bool {
	return a.file == b.file && max(a.line, b.line)-min(a.line, b.line) < window
}

// continues reports whether the lines before a and b are equal, too: then both are counted
// further up.
func (a place) continues(b place, texts [][]string) bool {
	return a.line > 0 && b.line > 0 && texts[a.file][a.line-1] == texts[b.file][b.line-1]
}

// codeLines returns the lines that count, without indentation.
func codeLines(text string) (lines []string) {
	imports := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case line == "import (":
			imports = true
		case imports:
			imports = line != ")"
		case line == "", strings.HasPrefix(line, "//"), strings.HasPrefix(line, "package "), strings.HasPrefix(line, "import "),
			!strings.ContainsFunc(line, func(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }):
		default:
			lines = append(lines, line)
		}
	}
	return lines
}
