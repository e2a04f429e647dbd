package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/test/modules"
)

// testPackage is a package and what has been found about its tests.
type testPackage struct {
	ImportPath, Dir           string
	ForTest                   string
	TestGoFiles, XTestGoFiles []string
	Deps                      []string

	module   string          // its directory
	isUnit   bool            // `make test` runs its tests under the race detector
	deps     map[string]bool // packages that the test binary is made of
	binary   string
	tests    []*testCase
	failures map[string]*failure // by test or subtest; "" is the process itself
}

// testCase is a top-level test, example or fuzzer.
type testCase struct {
	name    string
	elapsed time.Duration // of the first run
	skips   bool          // it skipped itself in the first run
	wanted  int           // runs
	runs    int           // so far
}

func (p *testPackage) hasTests() bool { return len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 }

// test returns the test with the name; nil if there is none.
func (p *testPackage) test(name string) *testCase {
	i := slices.IndexFunc(p.tests, func(t *testCase) bool { return t.name == name })
	if i < 0 {
		return nil
	}
	return p.tests[i]
}

// name is the import path without the module's.
func (p *testPackage) name() string {
	if _, name, ok := strings.Cut(p.ImportPath, "/nodens/"); ok {
		return name
	}
	return p.ImportPath
}

// listPackages lists the packages of the repository at root that match; without patterns
// all of every module. Packages without tests are listed, too.
func listPackages(ctx context.Context, root string, patterns []string) ([]*testPackage, error) {
	dirs := modules.Tested()
	if len(patterns) > 0 {
		dirs = []string{modules.Root}
	} else {
		patterns = []string{"./..."}
	}
	var list []*testPackage
	for _, dir := range dirs {
		module := filepath.Join(root, dir)
		if _, err := os.Stat(filepath.Join(module, "go.mod")); errors.Is(err, os.ErrNotExist) {
			continue
		}
		args := append([]string{"list", "-test", "-json=ImportPath,Dir,ForTest,TestGoFiles,XTestGoFiles,Deps"}, patterns...)
		out, err := output(ctx, module, "go", args...)
		if err != nil {
			return nil, err
		}
		packages, err := decodePackages(out)
		if err != nil {
			return nil, err
		}
		for _, p := range packages {
			p.module = module
			rel, err := filepath.Rel(root, p.Dir)
			if err != nil {
				return nil, err
			}
			p.isUnit = dir == modules.Root && !strings.HasPrefix(rel, "test/") && !strings.HasPrefix(rel, "daemonset")
		}
		list = append(list, packages...)
	}
	return list, nil
}

// decodePackages reads the output of `go list -test -json`. It adds what a test binary
// consists of to the package that it tests.
func decodePackages(out []byte) (list []*testPackage, err error) {
	binaries := make(map[string]map[string]bool)
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		p := &testPackage{failures: make(map[string]*failure)}
		if err := d.Decode(p); err != nil {
			return nil, fmt.Errorf("reading the list of packages: %w", err)
		}
		path, isBinary := strings.CutSuffix(p.ImportPath, ".test")
		switch {
		case isBinary:
			binaries[path] = dependencies(p.Deps)
		case p.ForTest == "":
			list = append(list, p)
		}
	}
	for _, p := range list {
		p.deps = binaries[p.ImportPath]
	}
	return list, nil
}

// dependencies returns the import paths of deps, which are like "p" or "p [p.test]".
func dependencies(deps []string) map[string]bool {
	paths := make(map[string]bool)
	for _, d := range deps {
		path, _, _ := strings.Cut(d, " ")
		paths[path] = true
	}
	return paths
}

// output runs a program in dir and returns what it prints. Its error has what the
// program printed to standard error.
func output(ctx context.Context, dir, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, exit.Stderr)
	}
	return out, err
}
