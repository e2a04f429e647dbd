package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/test/gotest"
	"github.com/nodens-dns/nodens/test/modules"
)

// testPackage is a package and what has been found about its tests.
type testPackage struct {
	gotest.Package
	module string // its directory
	isUnit bool   // `make test` runs its tests under the race detector
	binary string

	tests    []*testCase
	failures map[string]*failure // by test or subtest; "" is the process itself
}

// testCase is a top-level test or fuzzer.
type testCase struct {
	name         string
	elapsed      time.Duration // of the first run
	skips        bool          // it skipped itself in the first run
	wanted, runs int
}

// failure is a test or subtest that has failed.
type failure struct {
	count int
	first string // its output
	// printed says that the output has been printed.
	printed bool
}

// listPackages lists the packages with tests of the repository at root that match; without patterns
// all of every module.
func listPackages(ctx context.Context, root string, patterns []string) (list []*testPackage, err error) {
	dirs := modules.Tested()
	if len(patterns) > 0 {
		dirs = []string{modules.Root}
	} else {
		patterns = []string{"./..."}
	}
	for _, dir := range dirs {
		module := filepath.Join(root, dir)
		if _, err := os.Stat(filepath.Join(module, "go.mod")); errors.Is(err, os.ErrNotExist) {
			continue
		}
		packages, err := gotest.List(ctx, module, patterns...)
		if err != nil {
			return nil, err
		}
		for _, p := range packages {
			isUnit := dir == modules.Root && !strings.HasPrefix(p.Name(), "test/") && !strings.HasPrefix(p.Name(), "daemonset")
			list = append(list, &testPackage{Package: p, module: module, isUnit: isUnit, failures: make(map[string]*failure)})
		}
	}
	return list, nil
}

// selectChanged returns the packages that own a file which has changed since the revision, or whose test binary
// contains such a package. A file belongs to the nearest package above it; a module file belongs to every
// package of its module. It prints the files that no package owns. What a test reads or runs without importing it
// does not count.
func selectChanged(ctx context.Context, packages []*testPackage, root, revision string, out io.Writer) (selected []*testPackage, err error) {
	files, err := changedFiles(ctx, root, revision)
	if err != nil {
		return nil, err
	}
	graphs, err := readGraphs(ctx, packages)
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		owned := false
		for _, g := range graphs {
			owned = g.change(root, filepath.Join(root, file)) || owned
		}
		if !owned {
			fmt.Fprintf(out, "changed, but in no package: %s\n", file)
		}
	}
	for _, p := range packages {
		if graphs[p.module].affects(p.ImportPath) {
			selected = append(selected, p)
		}
	}
	fmt.Fprintf(out, "%d packages with tests have changed since %s\n", len(selected), revision)
	return selected, nil
}

// graph is which packages the test binaries of a module consist of.
type graph struct {
	module  string              // its directory
	paths   map[string]string   // import paths, by directory
	deps    map[string][]string // of test binaries, by the tested package
	changed map[string]bool     // import paths
	all     bool                // all have changed
}

// readGraphs reads the graphs of the packages' modules, by the modules' directories.
func readGraphs(ctx context.Context, packages []*testPackage) (graphs map[string]*graph, err error) {
	graphs = make(map[string]*graph)
	for _, p := range packages {
		if graphs[p.module] == nil {
			if graphs[p.module], err = readGraph(ctx, p.module); err != nil {
				return nil, err
			}
		}
	}
	return graphs, nil
}

func readGraph(ctx context.Context, module string) (*graph, error) {
	text, err := output(ctx, module, "go", "list", "-test", "-f", `{{.ImportPath}}{{"\t"}}{{.Dir}}{{"\t"}}{{join .Deps " "}}`, "./...")
	if err != nil {
		return nil, err
	}
	g := &graph{module: module, paths: make(map[string]string), deps: make(map[string][]string), changed: make(map[string]bool)}
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if path, ok := strings.CutSuffix(fields[0], ".test"); ok && len(fields) == 3 {
			g.deps[path] = strings.Fields(fields[2]) // "p [p.test]" is a variant of p
		} else if len(fields) >= 2 && !strings.Contains(fields[0], " ") {
			g.paths[fields[1]] = fields[0]
		}
	}
	return g, nil
}

// change notes a changed file. It reports whether a package owns it.
func (g *graph) change(root, file string) bool {
	if base := filepath.Base(file); (base == "go.mod" || base == "go.sum") && filepath.Dir(file) == g.module {
		g.all = true
		return true
	}
	for dir := filepath.Dir(file); len(dir) >= len(root); dir = filepath.Dir(dir) {
		if path, ok := g.paths[dir]; ok {
			g.changed[path] = true
			return true
		}
	}
	return false
}

// affects reports whether a change affects the tests of a package.
func (g *graph) affects(path string) bool {
	for _, dep := range append(g.deps[path], path) {
		if g.all || g.changed[dep] {
			return true
		}
	}
	return false
}

// changedFiles returns the files that differ from the revision, and those that git does
// not track and does not ignore. They are relative to root.
func changedFiles(ctx context.Context, root, revision string) ([]string, error) {
	tracked, err := output(ctx, root, "git", "diff", "--name-only", "-z", revision, "--")
	if err != nil {
		return nil, err
	}
	others, err := output(ctx, root, "git", "ls-files", "--others", "--exclude-standard", "-z")
	return strings.FieldsFunc(tracked+others, func(c rune) bool { return c == 0 }), err
}

// output runs a program in dir and returns what it prints. Its error has what the
// program printed to standard error.
func output(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, exit.Stderr)
	}
	return string(out), err
}
