// Package gotest is what the programs that run tests share: it lists the packages of a module and
// their tests, and runs a test binary with the events of `go test -json`.
package gotest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// RaceFlags are the flags of the go command for tests under the race detector. Stacks and reports do not need debugging
// information, and compiling without it takes a fifth less CPU time. Callers must not change the slice.
var RaceFlags = []string{"-race", "-gcflags=all=-dwarf=false"}

// Package is a package with tests.
type Package struct {
	ImportPath, Dir string
	Module          struct{ Path string }

	TestGoFiles, XTestGoFiles []string
	// Functions are the names of its tests, benchmarks and fuzzers.
	Functions []string `json:"-"`
}

// Name is the import path without the module's; of the package in the module's root, the last element.
func (p Package) Name() string {
	if name, ok := strings.CutPrefix(p.ImportPath, p.Module.Path+"/"); ok {
		return name
	}
	return path.Base(p.ImportPath)
}

// Matching returns the names of the functions that match.
func (p Package) Matching(pattern *regexp.Regexp) (names []string) {
	for _, name := range p.Functions {
		if pattern.MatchString(name) {
			names = append(names, name)
		}
	}
	return names
}

var function = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)(?:[A-Z0-9_]\w*)?)\((?:\w+ )?\*testing\.[TBF]\)`)

// List returns the packages with tests of the module in dir that match the patterns.
func List(ctx context.Context, dir string, patterns ...string) (list []Package, err error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json=ImportPath,Dir,Module,TestGoFiles,XTestGoFiles"}, patterns...)...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the packages in %s: %w", dir, err)
	}
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var p Package
		if err := d.Decode(&p); err != nil {
			return nil, fmt.Errorf("listing the packages in %s: %w", dir, err)
		}
		for _, name := range append(p.TestGoFiles, p.XTestGoFiles...) {
			text, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				return nil, err
			}
			for _, match := range function.FindAllSubmatch(text, -1) {
				p.Functions = append(p.Functions, string(match[1]))
			}
		}
		if len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 {
			list = append(list, p)
		}
	}
	return list, nil
}

// Event is a line of `go test -json`, as far as it is used here (see go doc cmd/test2json).
type Event struct {
	Time                          time.Time
	Action, Package, Test, Output string
	Elapsed                       float64 // seconds; without parallel subtests
}

// maxLine bounds an event. A failed comparison may print a whole rule set.
const maxLine = 16 << 20

// EachLine calls f with each line until in ends.
func EachLine(in io.Reader, f func(line []byte)) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		f(lines.Bytes())
	}
	return lines.Err()
}

// Run runs a test binary and calls f with each event, as a line; name is the package's in events. env is added to
// the environment. It returns an error if a test fails. When ctx ends, the binary and what it has
// started in its process group are interrupted.
func (p Package) Run(ctx context.Context, name string, binary, env []string, f func(line []byte)) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"tool", "test2json", "-t", "-p", name}, binary...)...)
	cmd.Dir, cmd.Env = p.Dir, append(append(os.Environ(), "PWD="+p.Dir), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 30 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	return errors.Join(EachLine(out, f), cmd.Wait())
}
