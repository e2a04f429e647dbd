package main

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// findTests reads the package's test files for tests, fuzzers and examples that the go
// command would run and that match. It does not run the test binary, because TestMain may
// take long.
func (p *testPackage) findTests(filter *regexp.Regexp) error {
	var files []*ast.File
	fset := token.NewFileSet()
	for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments)
		if err != nil {
			return fmt.Errorf("looking for tests: %w", err)
		}
		files = append(files, f)
	}
	for _, name := range testNames(files) {
		if filter.MatchString(name) {
			p.tests = append(p.tests, &testCase{name: name, wanted: 1})
		}
	}
	return nil
}

func testNames(files []*ast.File) (names []string) {
	for _, f := range files {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if ok && fn.Recv == nil && (isTest(fn.Name.Name, "Test") || isTest(fn.Name.Name, "Fuzz")) {
				names = append(names, fn.Name.Name)
			}
		}
	}
	for _, e := range doc.Examples(files...) {
		if e.Output != "" || e.EmptyOutput {
			names = append(names, "Example"+e.Name)
		}
	}
	return names
}

// isTest reports whether the go command takes a function with the name for a test.
func isTest(name, prefix string) bool {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok || name == "TestMain" {
		return false
	}
	first, _ := utf8.DecodeRuneInString(rest)
	return rest == "" || !unicode.IsLower(first)
}
