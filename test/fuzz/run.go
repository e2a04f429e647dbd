package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

// minimizeInputs bounds the search for a smaller input that has the same effect.
const minimizeInputs = "100x"

// runner runs fuzzers.
type runner struct {
	root  string
	time  string // for -fuzztime
	fresh bool   // the inputs that fuzzers find are of no other run
	// unguided leaves out the counters that tell the engine which inputs reach new code.
	unguided bool
	out      io.Writer
	// problems is where failures go when many fuzzers run.
	problems io.Writer

	module string // the module's path
	cache  string // the go command's directory for inputs that fuzzers found
	bin    string // for the binaries and the temporary files of this run
}

// prepare asks the go command for what a run needs and makes a directory for its binaries and
// temporary files, which remove deletes.
func (r *runner) prepare(ctx context.Context) (remove func(), err error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m")
	cmd.Dir = r.root
	module, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	cache, err := exec.CommandContext(ctx, "go", "env", "GOCACHE").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	r.module, r.cache = strings.TrimSpace(string(module)), filepath.Join(strings.TrimSpace(string(cache)), "fuzz")
	if r.bin, err = os.MkdirTemp("", "nodens-fuzz-"); err != nil {
		return nil, err
	}
	if r.fresh {
		r.cache = filepath.Join(r.bin, "found")
	}
	return func() { _ = os.RemoveAll(r.bin) }, nil
}

// importPath returns the import path of a directory's package.
func (r *runner) importPath(dir string) string { return r.module + strings.TrimPrefix(dir, ".") }

// command returns the command that runs a fuzzer of a linked package. Its temporary files are in
// the run's directory: the fuzzing engine kills its workers, which then leave theirs behind.
func (r *runner) command(ctx context.Context, binary string, f fuzzer, args ...string) *exec.Cmd {
	args = append([]string{
		"-test.run=^$", "-test.fuzz=^" + f.name + "$", "-test.fuzztime=" + r.time, "-test.fuzzminimizetime=" + minimizeInputs,
		"-test.fuzzcachedir=" + filepath.Join(r.cache, filepath.FromSlash(r.importPath(f.dir))),
	}, args...)
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = filepath.Join(r.root, filepath.FromSlash(f.dir)) // where it finds testdata
	cmd.Env = append(os.Environ(), "TMPDIR="+r.bin)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	return cmd
}

// runOne runs a fuzzer on all processors and shows its progress.
func (r *runner) runOne(ctx context.Context, f fuzzer) error {
	remove, err := r.prepare(ctx)
	if err != nil {
		return err
	}
	defer remove()
	binary, err := r.link(ctx, f.dir)
	if err != nil {
		return err
	}
	cmd := r.command(ctx, binary, f)
	cmd.Stdout, cmd.Stderr = r.out, r.out
	if err := cmd.Run(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s in %s: %w", f.name, f.dir, err)
	}
	return nil
}

// runAll runs all fuzzers and prints the output of those that fail. It writes events to the
// file with that name, unless that is empty.
func (r *runner) runAll(ctx context.Context, all []fuzzer, events string) error {
	remove, err := r.prepare(ctx)
	if err != nil {
		return err
	}
	defer remove()
	if events == "" {
		events = os.DevNull
	}
	log, err := os.Create(events)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	failed := 0
	r.eachPackage(ctx, all, func(out []byte, err error) {
		mu.Lock()
		defer mu.Unlock()
		_, lost := log.Write(out)
		if errors.Join(err, lost) != nil {
			failed++
		}
	})
	if err := log.Close(); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d fuzzers failed", failed, len(all))
	}
	fmt.Fprintf(r.problems, "%d fuzzers passed\n", len(all))
	return nil
}

// eachPackage links each package and runs its fuzzers. report gets the events of each fuzzer
// and its error; it is called from several goroutines.
func (r *runner) eachPackage(ctx context.Context, all []fuzzer, report func([]byte, error)) {
	var wg sync.WaitGroup
	processors := make(chan struct{}, runtime.GOMAXPROCS(0))
	use := func(f func()) {
		processors <- struct{}{}
		defer func() { <-processors }()
		f()
	}
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].dir == all[0].dir {
			n++
		}
		group := all[:n]
		all = all[n:]
		wg.Go(func() {
			var binary string
			var err error
			use(func() { binary, err = r.link(ctx, group[0].dir) })
			if err != nil {
				r.complain(err.Error())
			}
			for _, f := range group {
				wg.Go(func() {
					if err != nil {
						report(nil, err)
						return
					}
					use(func() { report(r.runWithEvents(ctx, binary, f)) })
				})
			}
		})
	}
	wg.Wait()
}

// complain prints a failure.
func (r *runner) complain(text string) {
	fmt.Fprintf(r.problems, "\n--- FAIL %s\n", strings.TrimSpace(text))
}

// runWithEvents runs a fuzzer and returns the events of its run. They are of a package of
// their own, because the same package has unit tests.
func (r *runner) runWithEvents(ctx context.Context, binary string, f fuzzer) (events []byte, err error) {
	cmd := r.command(ctx, binary, f, "-test.parallel=1", "-test.v=test2json")
	cmd.Env = append(cmd.Env, "GOMAXPROCS=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.complain(fmt.Sprintf("%s %s: %v\n%s", f.dir, f.name, err, out))
	}
	convert := exec.CommandContext(ctx, "go", "tool", "test2json", "-t", "-p", r.importPath(f.dir)+" "+f.name)
	convert.Stdin = bytes.NewReader(out)
	events, failed := convert.Output()
	return events, errors.Join(err, failed)
}
