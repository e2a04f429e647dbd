package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/test/gotest"
)

// runner runs the tests of packages.
type runner struct {
	options  *options
	packages []*testPackage
	dir      string // for test binaries
	began    time.Time

	mu  sync.Mutex
	out io.Writer // guarded by mu
}

// run builds, learns and repeats.
func (r *runner) run(ctx context.Context) error {
	if err := r.eachPackage(ctx, "built", r.build); err != nil {
		return err
	}
	if err := r.eachPackage(ctx, "learned", func(ctx context.Context, p *testPackage) error {
		return r.repeat(ctx, p, p.names(), 1, 40*time.Minute)
	}); err != nil {
		return err
	}
	// The longest first, so that it does not run alone at the end.
	slices.SortStableFunc(r.packages, func(a, b *testPackage) int { return -cmp.Compare(a.elapsed(), b.elapsed()) })
	defer occupy(r.options.load)()
	return r.eachPackage(ctx, "repeated", r.rounds)
}

// elapsed is how long the package's tests take once.
func (p *testPackage) elapsed() (total time.Duration) {
	for _, t := range p.tests {
		total += t.elapsed
	}
	return total
}

// eachPackage calls f for each package, for as many at a time as the options say, and
// prints a line after each.
func (r *runner) eachPackage(ctx context.Context, done string, f func(context.Context, *testPackage) error) error {
	var all sync.WaitGroup
	errs := make([]error, len(r.packages))
	free := make(chan struct{}, r.options.parallel)
	n := 0 // packages that are done; guarded by r.mu
	for i, p := range r.packages {
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			if ctx.Err() != nil {
				return
			}
			errs[i] = f(ctx, p)
			r.mu.Lock()
			defer r.mu.Unlock()
			n++
			r.printf("%d of %d %s: %s", n, len(r.packages), done, p.Name())
		})
	}
	all.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// printf prints a line. The caller holds r.mu.
func (r *runner) printf(format string, args ...any) {
	fmt.Fprintf(r.out, "%8s  %s\n", time.Since(r.began).Round(time.Second), fmt.Sprintf(format, args...))
}

// environment is that of `make test`, which shares the go command's cache.
func (r *runner) environment(p *testPackage) []string {
	cgo := "CGO_ENABLED=0"
	if r.race(p) {
		cgo = "CGO_ENABLED=1"
	}
	return []string{cgo, "GOFLAGS=" + strings.TrimSpace(os.Getenv("GOFLAGS")+" -trimpath"), "GORACE=atexit_sleep_ms=20 " + os.Getenv("GORACE")}
}

func (r *runner) race(p *testPackage) bool { return p.isUnit && r.options.race }

// build compiles the package's test binary, without debugging information, which stacks do not need.
func (r *runner) build(ctx context.Context, p *testPackage) error {
	p.binary = filepath.Join(r.dir, strings.ReplaceAll(p.ImportPath, "/", "_")+".test")
	args := []string{"test", "-c", "-vet=off", "-ldflags=-w", "-o", p.binary}
	if r.race(p) {
		args = append(args, gotest.RaceFlags...)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, ".")...)
	cmd.Dir, cmd.Env = p.Dir, append(os.Environ(), r.environment(p)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the tests of %s: %w\n%s", p.Name(), err, out)
	}
	return nil
}

// rounds repeats the tests that did not skip themselves.
func (r *runner) rounds(ctx context.Context, p *testPackage) error {
	var fast, slow []string
	for _, t := range p.tests {
		switch {
		case t.skips:
		case t.elapsed < r.options.fast:
			fast = append(fast, t.name)
			t.wanted += r.options.rounds * fastRuns
		default:
			slow = append(slow, t.name)
			t.wanted += r.options.rounds
		}
	}
	timeout := 10*time.Minute + 50*fastRuns*p.elapsed() // far later than they can take
	var err error
	for range r.options.rounds {
		err = cmp.Or(err, r.repeat(ctx, p, fast, fastRuns, timeout), r.repeat(ctx, p, slow, 1, timeout))
	}
	return err
}

// names are those of the tests.
func (p *testPackage) names() (list []string) {
	for _, t := range p.tests {
		list = append(list, t.name)
	}
	return list
}

// repeat runs the tests count times. What the end of a process takes away from them runs in new ones. Nothing starts
// after the limit.
func (r *runner) repeat(ctx context.Context, p *testPackage, names []string, count int, timeout time.Duration) error {
	if len(names) == 0 || r.isOver() || ctx.Err() != nil {
		return ctx.Err()
	}
	args := []string{p.binary, "-test.v=test2json", "-test.run", "^(" + strings.Join(names, "|") + ")$", "-test.count", strconv.Itoa(count), "-test.timeout", timeout.String()}
	o := newOutcome(p)
	err := p.Run(ctx, p.ImportPath, args, r.environment(p), func(line []byte) {
		var e gotest.Event
		if json.Unmarshal(line, &e) == nil {
			o.add(e)
		}
	})
	if ctx.Err() != nil { // an interrupt is no failure
		return ctx.Err()
	}
	o.finish(err)
	r.printFailures(p, o)
	if len(o.runs) == 0 {
		return nil
	}
	lacking := make([][]string, count+1)
	for _, name := range names {
		n := max(0, count-o.runs[name])
		lacking[n] = append(lacking[n], name)
	}
	for n, names := range lacking[1:] {
		if err := r.repeat(ctx, p, names, n+1, timeout); err != nil {
			return err
		}
	}
	return nil
}

// isOver reports whether the limit has passed.
func (r *runner) isOver() bool { return r.options.limit > 0 && time.Since(r.began) > r.options.limit }

// printFailures prints the output of tests that have failed for the first time.
func (r *runner) printFailures(p *testPackage, o *outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range o.failed {
		if f := p.failures[name]; !f.printed {
			f.printed = true
			r.printf("%s: FAILED %s\n%s", p.Name(), cmp.Or(name, process), f.first)
		}
	}
}

// process is how a failure outside of tests is called.
const process = "(the test binary)"

// report prints what failed and what did not run. It reports whether a test failed.
func (r *runner) report() bool {
	slices.SortFunc(r.packages, func(a, b *testPackage) int { return cmp.Compare(a.ImportPath, b.ImportPath) })
	var tests, runs, skips, failures int
	for _, p := range r.packages {
		failures += len(p.failures)
		tests += len(p.tests)
		for _, t := range p.tests {
			runs += t.runs
			if t.skips {
				skips++
			}
			if t.runs < t.wanted {
				fmt.Fprintf(r.out, "not run: %s %s, %d of %d times\n", p.Name(), t.name, t.wanted-t.runs, t.wanted)
			}
		}
	}
	if failures > 0 {
		fmt.Fprintf(r.out, "\n%-28s %-60s %8s %8s\n", "package", "test", "runs", "failures")
	}
	for _, p := range r.packages {
		for _, name := range slices.Sorted(maps.Keys(p.failures)) {
			runs := "-"
			top, _, _ := strings.Cut(name, "/")
			if t := p.test(top); t != nil {
				runs = strconv.Itoa(t.runs)
			}
			fmt.Fprintf(r.out, "%-28s %-60s %8s %8d\n", p.Name(), cmp.Or(name, process), runs, p.failures[name].count)
		}
	}
	fmt.Fprintf(r.out, "\n%d tests, %d runs, %d failed; %d tests skipped themselves\n", tests, runs, failures, skips)
	return failures > 0
}
