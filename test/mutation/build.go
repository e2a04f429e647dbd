package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A build holds all mutants of a package that are tested, because compiling and linking takes
// longer than most tests. Each mutant is a copy of the function that it changes. The function
// itself calls the copy that the environment variable selects. With -1 it records that it was called:
//
//	func less(a, b int) bool { switch nodensMutant { case -1: nodensReach(7); case 7: return less_mutant7(a, b) }
//		return a < b
//	}
//
//	func less_mutant7(a, b int) bool {
//		return a <= b
//	}

// selectorFile is added to the package. Package variables are initialized before functions that
// use them, so that mutants also count while a program starts.
const selectorFile = "nodens_mutant_selector.go"

const selector = `package %s

import (
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
)

var nodensMutant, _ = strconv.Atoi(os.Getenv("NODENS_MUTANT"))

var nodensReached [%d]atomic.Bool

func nodensReach(ids ...int) {
	if nodensReached[ids[0]].Swap(true) {
		return
	}
	f, err := os.OpenFile(os.Getenv("NODENS_REACHED"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	for _, id := range ids {
		fmt.Fprintln(f, id)
	}
}
`

// sourceFile is a file of the package with the functions that its mutants are in.
type sourceFile struct {
	text      []byte
	pkg       string
	fset      *token.FileSet
	functions []*ast.FuncDecl
}

// region is where a mutant's copy is in a changed file.
type region struct{ first, last, mutant int }

// edit replaces the bytes between from and to.
type edit struct {
	from, to int
	text     string
}

func readSource(path string) (*sourceFile, error) {
	s := &sourceFile{fset: token.NewFileSet()}
	var err error
	if s.text, err = os.ReadFile(path); err != nil {
		return nil, err
	}
	tree, err := parser.ParseFile(s.fset, path, s.text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	s.pkg = tree.Name.Name
	for _, d := range tree.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil && f.Name.Name != "init" {
			s.functions = append(s.functions, f)
		}
	}
	return s, nil
}

func (s *sourceFile) offset(p token.Pos) int { return s.fset.Position(p).Offset }

// function returns the function that m changes, nil for a change outside of functions.
func (s *sourceFile) function(m mutant) *ast.FuncDecl {
	at, _ := m.offset(s.text)
	for _, f := range s.functions {
		if s.offset(f.Body.Pos()) <= at && at < s.offset(f.End()) {
			return f
		}
	}
	return nil
}

// change writes the file with the copies of list's mutants, whose numbers are the keys. It drops
// those that don't parse.
func (s *sourceFile) change(list map[int]mutant) (text []byte, regions []region) {
	byFunction := make(map[*ast.FuncDecl][]int)
	copies := make(map[int][]byte)
	for _, id := range slices.Sorted(maps.Keys(list)) {
		f := s.function(list[id])
		if f == nil {
			continue
		}
		if text := s.mutate(f, list[id], id); parses(text) {
			copies[id] = text
			byFunction[f] = append(byFunction[f], id)
		}
	}
	end := 0
	for _, f := range s.functions {
		if ids := byFunction[f]; ids != nil {
			text = append(text, s.text[end:s.offset(f.Pos())]...)
			text = append(text, s.dispatch(f, ids)...)
			end = s.offset(f.End())
		}
	}
	text = append(text, s.text[end:]...)
	for _, id := range slices.Sorted(maps.Keys(copies)) {
		first := bytes.Count(text, []byte("\n")) + 1
		text = slices.Concat(text, []byte("\n"), copies[id], []byte("\n"))
		regions = append(regions, region{first, bytes.Count(text, []byte("\n")), id})
	}
	return text, regions
}

// mutate returns the copy of f with m's change and a name with m's number.
func (s *sourceFile) mutate(f *ast.FuncDecl, m mutant, id int) []byte {
	at, _ := m.offset(s.text)
	return s.edited(f, []edit{
		{s.offset(f.Name.Pos()), s.offset(f.Name.End()), copyName(f, id)},
		{at, at + len(m.from), m.to},
	})
}

func copyName(f *ast.FuncDecl, id int) string { return fmt.Sprintf("%s_mutant%d", f.Name.Name, id) }

// edited returns f's text with edits, which are in order.
func (s *sourceFile) edited(f *ast.FuncDecl, edits []edit) (text []byte) {
	at := s.offset(f.Pos())
	for _, e := range edits {
		text = append(append(text, s.text[at:e.from]...), e.text...)
		at = e.to
	}
	return append(text, s.text[at:s.offset(f.End())]...)
}

// dispatch returns f with calls of its copies.
func (s *sourceFile) dispatch(f *ast.FuncDecl, ids []int) []byte {
	var edits []edit
	receiver, _ := s.names(f.Recv, "nodensR", &edits)
	_, args := s.names(f.Type.Params, "nodensP", &edits)
	types, _ := s.names(f.Type.TypeParams, "", &edits)
	callee := func(id int) string {
		name := copyName(f, id)
		if f.Recv != nil {
			return receiver[0] + "." + name
		}
		if len(types) > 0 {
			name += "[" + strings.Join(types, ", ") + "]"
		}
		return name
	}
	var calls strings.Builder
	fmt.Fprintf(&calls, "{ switch nodensMutant { case %d: nodensReach(%s);", record, strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", ", "), "[]"))
	for _, id := range ids {
		call := fmt.Sprintf("%s(%s)", callee(id), strings.Join(args, ", "))
		if f.Type.Results == nil {
			fmt.Fprintf(&calls, " case %d: %s; return;", id, call)
		} else {
			fmt.Fprintf(&calls, " case %d: return %s;", id, call)
		}
	}
	calls.WriteString(" };")
	body := s.offset(f.Body.Lbrace)
	return s.edited(f, append(edits, edit{body, body + 1, calls.String()}))
}

// names returns the names of parameters, and the arguments that pass them on. It adds edits that
// name parameters without a name; prefix begins these names.
func (s *sourceFile) names(fields *ast.FieldList, prefix string, edits *[]edit) (names, args []string) {
	if fields == nil {
		return nil, nil
	}
	add := func(name string, t ast.Expr) {
		names = append(names, name)
		if _, ok := t.(*ast.Ellipsis); ok {
			name += "..."
		}
		args = append(args, name)
	}
	for _, field := range fields.List {
		if len(field.Names) == 0 {
			name, at := prefix+strconv.Itoa(len(names)), s.offset(field.Type.Pos())
			*edits = append(*edits, edit{at, at, name + " "})
			add(name, field.Type)
		}
		for _, id := range field.Names {
			name := id.Name
			if name == "_" {
				name = prefix + strconv.Itoa(len(names))
				*edits = append(*edits, edit{s.offset(id.Pos()), s.offset(id.End()), name})
			}
			add(name, field.Type)
		}
	}
	return names, args
}

func parses(function []byte) bool {
	_, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+string(function), parser.SkipObjectResolution)
	return err == nil
}

// overlay writes the package's files with the mutants into dir, and returns the argument for the
// go command's flag -overlay, and the files that mutants are in. Mutants outside of functions,
// and those that don't parse, are in none.
func (t *tester) overlay(dir string, list map[int]mutant) (overlay string, regions map[string][]region, err error) {
	byFile := make(map[string]map[int]mutant)
	last := 0
	for id, m := range list {
		last = max(last, id)
		if byFile[m.file] == nil {
			byFile[m.file] = make(map[int]mutant)
		}
		byFile[m.file][id] = m
	}
	regions = make(map[string][]region)
	replace := make(map[string]string)
	name := "main"
	for file, list := range byFile {
		path := filepath.Join(t.root, file)
		s, err := readSource(path)
		if err != nil {
			return "", nil, err
		}
		name = s.pkg
		text, found := s.change(list)
		regions[filepath.Base(file)] = found
		replace[path] = filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(replace[path], text, 0o600); err != nil {
			return "", nil, err
		}
	}
	added := filepath.Join(dir, selectorFile)
	replace[filepath.Join(t.root, t.pkg, selectorFile)] = added
	if err := os.WriteFile(added, fmt.Appendf(nil, selector, name, last+1), 0o600); err != nil {
		return "", nil, err
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", nil, err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, regions, os.WriteFile(overlay, text, 0o600)
}

// compileError matches a line of the compiler's output.
var compileError = regexp.MustCompile(`(?m)^(?:\S*/)?([^/\s:]+\.go):(\d+):\d+: `)

// viable returns the mutants of list that compile, and the overlay with them.
func (t *tester) viable(dir string, list map[int]mutant) (map[int]mutant, string, error) {
	list = maps.Clone(list)
	for {
		overlay, regions, err := t.overlay(dir, list)
		if err != nil {
			return nil, "", err
		}
		kept := make(map[int]mutant)
		for _, found := range regions {
			for _, r := range found {
				kept[r.mutant] = list[r.mutant]
			}
		}
		list = kept
		// With -e the compiler reports all errors, not only the first ten.
		cmd := exec.Command("go", "build", "-gcflags=-e", "-overlay="+overlay, "./"+t.pkg)
		cmd.Dir, cmd.Env = t.root, t.env
		out, err := cmd.CombinedOutput()
		if err == nil {
			return list, overlay, nil
		}
		if dropped := drop(list, regions, out); dropped == 0 {
			return nil, "", fmt.Errorf("building %s with mutants: %w\n%s", t.pkg, err, out)
		}
	}
}

// drop removes the mutants that the compiler's output names.
func drop(list map[int]mutant, regions map[string][]region, output []byte) (dropped int) {
	for _, m := range compileError.FindAllSubmatch(output, -1) {
		line, _ := strconv.Atoi(string(m[2]))
		for _, r := range regions[string(m[1])] {
			if _, ok := list[r.mutant]; ok && r.first <= line && line <= r.last {
				delete(list, r.mutant)
				dropped++
			}
		}
	}
	return dropped
}
