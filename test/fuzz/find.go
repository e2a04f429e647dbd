package main

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// fuzzer is a function FuzzX in a test file.
type fuzzer struct {
	name string
	dir  string // of its package, as ./internal/wire
}

// find returns the fuzzers of the module in root, by directory and name.
func find(root string) (all []fuzzer, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && !isPackageDir(path):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		found, err := fuzzersOf(root, path)
		all = append(all, found...)
		return err
	})
	slices.SortFunc(all, func(a, b fuzzer) int {
		return cmp.Or(cmp.Compare(a.dir, b.dir), cmp.Compare(a.name, b.name))
	})
	return all, err
}

// isPackageDir reports whether the module may have packages in a directory or below it.
func isPackageDir(path string) bool {
	name := filepath.Base(path)
	if name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
		return false
	}
	_, err := os.Stat(filepath.Join(path, "go.mod")) // another module
	return err != nil
}

// fuzzersOf returns the fuzzers in a file.
func fuzzersOf(root, path string) (list []fuzzer, err error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		return nil, err
	}
	file, err := filepath.Rel(root, path)
	if err != nil {
		return nil, err
	}
	for _, d := range parsed.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Fuzz") && len(f.Type.Params.List) == 1 {
			list = append(list, fuzzer{name: f.Name.Name, dir: "./" + filepath.ToSlash(filepath.Dir(file))})
		}
	}
	return list, nil
}
