// Command flaky finds tests that fail sometimes. It compiles each package's test binary
// once, under the race detector as `make test` does, and runs it once to learn how long
// each top-level test takes. Then every CPU gets something else to do, and there are rounds:
// in each, tests under a second run four times and longer ones once. Tests of different
// packages run beside each other, those of one package do not.
//
// It prints the output of a test's first failure at once, and at the end what failed, how
// often, and what did not run because of -limit or an interrupt. It exits with 1 if a run
// failed.
//
//	go run ./test/flaky -packages './server ./upstream'
//	go run ./test/flaky -run 'DoH|Reload' -limit 5m
//	go run ./test/flaky -since HEAD~1
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nodens-dns/nodens/test/peer"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	failed, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "flaky:", err)
		os.Exit(1)
	case failed:
		os.Exit(1)
	}
}

// options are the command's flags.
type options struct {
	packages []string // patterns; empty: every package of every module
	filter   string   // a regular expression for top-level tests
	since    string   // a revision; "" tests all packages
	fast     time.Duration
	rounds   int
	parallel int           // test binaries at a time
	load     int           // goroutines that occupy CPUs
	limit    time.Duration // 0: none
	race     bool
}

// fastRuns is how often a fast test runs in a round, in one process.
const fastRuns = 4

func parseOptions(args []string, stderr io.Writer) (*options, error) {
	o := new(options)
	f := flag.NewFlagSet("flaky", flag.ContinueOnError)
	f.SetOutput(stderr)
	packages := f.String("packages", "", "package `patterns` of the main module, separated by spaces or commas (default every package of every module)")
	f.StringVar(&o.filter, "run", ".", "run only top-level tests that match this `regexp`")
	f.StringVar(&o.since, "since", "", "test only packages whose files or imports have changed since this `revision`")
	f.DurationVar(&o.fast, "fast", time.Second, "tests that take less than this run four times in a round")
	f.IntVar(&o.rounds, "rounds", 5, "how often all tests run")
	f.IntVar(&o.parallel, "p", runtime.GOMAXPROCS(0), "test binaries that run at a time")
	f.IntVar(&o.load, "load", runtime.GOMAXPROCS(0), "goroutines that occupy the CPUs meanwhile")
	f.DurationVar(&o.limit, "limit", 0, "start no test binary after this time, and list what did not run (default no limit)")
	f.BoolVar(&o.race, "race", true, "run unit tests under the race detector")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q: name packages with -packages", f.Arg(0))
	}
	if o.rounds < 1 || o.parallel < 1 || o.load < 0 {
		return nil, errors.New("-rounds and -p must be at least 1, -load at least 0")
	}
	if _, err := regexp.Compile(o.filter); err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	o.packages = strings.FieldsFunc(*packages, func(c rune) bool { return c == ' ' || c == ',' })
	return o, nil
}

// run reports whether a test failed.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (failed bool, err error) {
	o, err := parseOptions(args, stderr)
	if err != nil {
		return false, err
	}
	root, err := peer.Root()
	if err != nil {
		return false, err
	}
	return test(ctx, o, root, stdout)
}

// test tests the packages of the repository at root that o selects. It reports what it has
// found also when ctx ends.
func test(ctx context.Context, o *options, root string, stdout io.Writer) (failed bool, err error) {
	packages, err := listPackages(ctx, root, o.packages)
	if err == nil && o.since != "" {
		packages, err = selectChanged(ctx, packages, root, o.since, stdout)
	}
	if err != nil {
		return false, err
	}
	filter := regexp.MustCompile(o.filter)
	for _, p := range packages {
		for _, name := range p.Matching(filter) {
			if !strings.HasPrefix(name, "Benchmark") {
				p.tests = append(p.tests, &testCase{name: name, wanted: 1})
			}
		}
	}
	packages = slices.DeleteFunc(packages, func(p *testPackage) bool { return len(p.tests) == 0 })
	dir, err := os.MkdirTemp("", "flaky-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	r := &runner{options: o, packages: packages, dir: dir, out: stdout, began: time.Now()}
	err = r.run(ctx)
	return r.report(), err
}

// occupy computes on n threads until stop is called.
func occupy(n int) (stop func()) {
	var done atomic.Bool
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n) // the threads that read events are not among those
	for range n {
		go func() {
			for !done.Load() {
			}
		}()
	}
	return func() { done.Store(true) }
}
