// Command flaky finds tests that fail sometimes. It compiles each package's test binary
// once, under the race detector as `make test` does, and runs it once to learn how long
// each top-level test takes. Then a child process occupies every CPU, and tests under a
// second run 20 times, longer ones five times. Tests of different packages run beside
// each other, those of one package do not.
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
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"
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
	packages  string
	filter    *regexp.Regexp // of top-level tests
	since     string         // a revision; "" tests all packages
	threshold time.Duration  // a test that takes less is fast
	fast      int            // runs of a fast test
	slow      int            // runs of another test
	parallel  int            // test binaries at a time
	load      int            // goroutines that occupy CPUs
	limit     time.Duration  // 0: none
	race      bool
	occupy    bool // this is the child process that occupies the CPUs
}

func parseOptions(args []string, stderr io.Writer) (*options, error) {
	o := new(options)
	f := flag.NewFlagSet("flaky", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.packages, "packages", "", "package `patterns` of the main module, separated by spaces or commas (default every package of every module)")
	filter := f.String("run", "", "run only top-level tests that match this `regexp`")
	f.StringVar(&o.since, "since", "", "test only packages whose files or imports have changed since this `revision`")
	seconds := f.Float64("seconds", 1, "tests that take less than this are fast")
	f.IntVar(&o.fast, "fast", 20, "runs of a fast test")
	f.IntVar(&o.slow, "slow", 5, "runs of any other test")
	f.IntVar(&o.parallel, "p", runtime.GOMAXPROCS(0), "test binaries that run at a time")
	f.IntVar(&o.load, "load", runtime.GOMAXPROCS(0), "goroutines that occupy the CPUs meanwhile")
	f.DurationVar(&o.limit, "limit", 0, "start no test binary after this time, and list what did not run (default no limit)")
	f.BoolVar(&o.race, "race", true, "run unit tests under the race detector")
	f.BoolVar(&o.occupy, "occupy", false, "only occupy the CPUs until standard input ends; the command starts a child so")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q: name packages with -packages", f.Arg(0))
	}
	if o.fast < 1 || o.slow < 1 || o.parallel < 1 || o.load < 0 {
		return nil, errors.New("-fast, -slow and -p must be at least 1, -load at least 0")
	}
	var err error
	if o.filter, err = regexp.Compile(*filter); err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	o.threshold = time.Duration(*seconds * float64(time.Second))
	return o, nil
}

// run reports whether a test failed.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (failed bool, err error) {
	o, err := parseOptions(args, stderr)
	if err != nil {
		return false, err
	}
	if o.occupy {
		occupy(os.Stdin, o.load)
		return false, nil
	}
	root, err := repository(ctx)
	if err != nil {
		return false, err
	}
	return test(ctx, o, root, stdout)
}

// test tests the packages of the repository at root that o selects. It reports what it has
// found also when ctx ends.
func test(ctx context.Context, o *options, root string, stdout io.Writer) (failed bool, err error) {
	packages, err := selectPackages(ctx, o, root, stdout)
	if err != nil {
		return false, err
	}
	dir, err := os.MkdirTemp("", "flaky-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	r := &runner{options: o, packages: packages, dir: dir, out: stdout, began: time.Now()}
	err = r.run(ctx)
	return r.report(stdout), err
}

// selectPackages lists the packages to test.
func selectPackages(ctx context.Context, o *options, root string, stdout io.Writer) ([]*testPackage, error) {
	patterns := strings.FieldsFunc(o.packages, func(c rune) bool { return c == ' ' || c == ',' })
	packages, err := listPackages(ctx, root, patterns)
	if err != nil || o.since == "" {
		return packages, err
	}
	files, err := changedFiles(ctx, root, o.since)
	if err != nil {
		return nil, err
	}
	selected, outside := selectChanged(packages, root, files)
	for _, f := range outside {
		fmt.Fprintf(stdout, "changed, but in no package: %s\n", f)
	}
	tested := 0
	for _, p := range selected {
		if p.hasTests() {
			tested++
		}
	}
	fmt.Fprintf(stdout, "%d packages with tests have changed since %s\n", tested, o.since)
	return selected, nil
}

// repository returns the root of the working tree.
func repository(ctx context.Context) (string, error) {
	out, err := output(ctx, ".", "git", "rev-parse", "--show-toplevel")
	return filepath.Clean(strings.TrimSpace(string(out))), err
}
