// Command fuzz lists and runs the fuzzers of this repository with Go's own fuzzing engine.
//
//	go run ./test/fuzz                                       lists them
//	go run ./test/fuzz -fuzz FuzzName -time 10m              runs one on all processors
//	go run ./test/fuzz -all -time 500x                       runs each, and prints events as go test -json does
//
// A run starts with the seeds in the code, the corpus in testdata/fuzz, and the inputs that
// earlier runs found, which the go command keeps in its build cache. -all runs as many fuzzers
// at a time as there are processors, with one process each.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/nodens-dns/nodens/test/gotest"
	"github.com/nodens-dns/nodens/test/peer"
)

// minimizeInputs bounds the search for a smaller input that has the same effect.
const minimizeInputs = "100x"

func main() {
	r := &runner{out: os.Stdout}
	name := flag.String("fuzz", "", "the `name` of the fuzzer to run")
	pkg := flag.String("package", "", "its `directory`, if several packages have a fuzzer of that name")
	all := flag.Bool("all", false, "run all fuzzers")
	flag.StringVar(&r.time, "time", "1m", "for how `long` each fuzzer runs: a duration, or a number of inputs such as 500x")
	flag.BoolVar(&r.fresh, "fresh", false, "with -all: neither start with the inputs that earlier runs found, nor keep new ones")
	flag.BoolVar(&r.unguided, "unguided", false, "with -all: change inputs at random, without compiling packages to count what they reach")
	flag.StringVar(&r.binaries, "binaries", "", "with -all: keep the test binaries in this `directory`; unchanged ones are not linked again")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := r.main(ctx, *name, *pkg, *all)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

// fuzzer is a function FuzzX of a package.
type fuzzer struct {
	gotest.Package
	name string
}

// find returns the fuzzers of the module in root, by package and name.
func find(ctx context.Context, root string) (all []fuzzer, err error) {
	packages, err := gotest.List(ctx, root, "./...")
	for _, p := range packages {
		for _, name := range p.Matching(regexp.MustCompile(`^Fuzz`)) {
			all = append(all, fuzzer{p, name})
		}
	}
	slices.SortFunc(all, func(a, b fuzzer) int { return cmp.Or(cmp.Compare(a.Name(), b.Name()), cmp.Compare(a.name, b.name)) })
	return all, err
}

// choose returns the fuzzer with that name, in a directory unless dir is empty.
func choose(all []fuzzer, name, dir string) (fuzzer, error) {
	dir = strings.Trim(strings.TrimPrefix(dir, "./"), "/")
	var found []fuzzer
	var dirs []string
	for _, f := range all {
		if f.name == name {
			dirs = append(dirs, "./"+f.Name())
			if dir == "" || dir == f.Name() {
				found = append(found, f)
			}
		}
	}
	switch {
	case len(dirs) == 0:
		return fuzzer{}, fmt.Errorf("no fuzzer is called %s; without FUZZ, make fuzz lists all", name)
	case len(found) == 0:
		return fuzzer{}, fmt.Errorf("%s has no %s; it is in %s", dir, name, strings.Join(dirs, ", "))
	case len(found) > 1:
		return fuzzer{}, fmt.Errorf("several packages have a %s; choose one with PKG: %s", name, strings.Join(dirs, ", "))
	}
	return found[0], nil
}

// runner runs fuzzers.
type runner struct {
	time            string // for -fuzztime
	fresh, unguided bool
	binaries        string
	// tmp has the temporary files of all fuzzers: the fuzzing engine kills its workers, which then
	// leave theirs behind.
	tmp string

	mu  sync.Mutex
	out io.Writer // written to with mu held
}

func (r *runner) main(ctx context.Context, name, dir string, every bool) error {
	root, err := peer.Root()
	if err != nil {
		return err
	}
	all, err := find(ctx, root)
	if err != nil {
		return err
	}
	if r.tmp, err = os.MkdirTemp("", "nodens-fuzz-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.tmp)
	switch {
	case every:
		return r.runAll(ctx, all)
	case name == "":
		for _, f := range all {
			fmt.Fprintf(r.out, "%-24s ./%s\n", f.name, f.Name())
		}
		return nil
	}
	f, err := choose(all, name, dir)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-vet=off", "-run=^$", "-fuzz=^"+f.name+"$", "-fuzztime="+r.time, "-fuzzminimizetime="+minimizeInputs, ".")
	cmd.Dir, cmd.Stdout, cmd.Stderr = f.Dir, r.out, os.Stderr
	cmd.Env = append(os.Environ(), "PWD="+f.Dir, "TMPDIR="+r.tmp)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Run(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s in ./%s: %w", f.name, f.Name(), err)
	}
	return nil
}

// runAll links each package once and runs its fuzzers.
func (r *runner) runAll(ctx context.Context, all []fuzzer) error {
	r.binaries = cmp.Or(r.binaries, r.tmp)
	cache, err := exec.CommandContext(ctx, "go", "env", "GOCACHE").Output()
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	found := filepath.Join(strings.TrimSpace(string(cache)), "fuzz")
	if r.fresh {
		found = filepath.Join(r.tmp, "found")
	}
	var wg sync.WaitGroup
	errs := make([]error, len(all))
	processors := make(chan struct{}, runtime.GOMAXPROCS(0))
	use := func() (release func()) {
		processors <- struct{}{}
		return func() { <-processors }
	}
	linked := make(map[string]func() (string, error))
	for i, f := range all {
		if linked[f.Dir] == nil {
			linked[f.Dir] = sync.OnceValues(func() (string, error) {
				defer use()()
				return r.link(ctx, f.Package)
			})
		}
		link := linked[f.Dir]
		wg.Go(func() {
			binary, err := link()
			if err == nil {
				release := use()
				err = r.fuzz(ctx, f, binary, filepath.Join(found, f.ImportPath))
				release()
			}
			if err != nil {
				errs[i] = fmt.Errorf("%s in ./%s: %w", f.name, f.Name(), err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// link links the tests of a package as the other tests are, to share the build cache.
func (r *runner) link(ctx context.Context, p gotest.Package) (string, error) {
	binary := filepath.Join(r.binaries, strings.ReplaceAll(p.Name(), "/", "-")+".test")
	args := []string{"test", "-c", "-vet=off", "-trimpath", "-ldflags=-w", "-o", binary}
	if !r.unguided {
		args = append(args, "-fuzz", ".")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, ".")...)
	cmd.Dir, cmd.Env = p.Dir, append(os.Environ(), "PWD="+p.Dir, "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("linking: %w\n%s", err, out)
	}
	return binary, nil
}

// fuzz runs a fuzzer and prints its events. They are of a package of their own, because the same
// package has unit tests. found is for the inputs that reach new code.
func (r *runner) fuzz(ctx context.Context, f fuzzer, binary, found string) error {
	args := []string{
		binary, "-test.v=test2json", "-test.run=^$", "-test.fuzz=^" + f.name + "$", "-test.fuzztime=" + r.time,
		"-test.fuzzminimizetime=" + minimizeInputs, "-test.fuzzcachedir=" + found, "-test.parallel=1",
	}
	return f.Run(ctx, f.ImportPath+" "+f.name, args, []string{"TMPDIR=" + r.tmp, "GOMAXPROCS=1"}, func(line []byte) {
		r.mu.Lock()
		defer r.mu.Unlock()
		fmt.Fprintf(r.out, "%s\n", line)
	})
}
