// Command run runs every test of the repository and prints the events of `go test -json` of all of them. It is what
// `make test` and `make soak` call, by way of gotestsum, which reads the events and prints what a person reads.
//
// Tests run in stages. A stage is one `go test`, or a command that counts as one check. Many
// tests wait more than they compute, so two lists of stages run side by side: unit tests with
// what belongs to them, and the suites that start other processes. Lines that are no events
// tell the time and CPU time of each package and stage. The exit code is 1 if tests failed, and 2 if something else
// did or no stage ran. With -test.run and a package it runs one test once more, as gotestsum's -rerun-fails asks for,
// and prints nothing but events.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nodens-dns/nodens/test/gotest"
	"github.com/nodens-dns/nodens/test/soak"
)

// errFailed says that tests failed, and errBroken that something failed outside of them, so that gotestsum, which runs
// failed tests again, must not take the run for one that passes without them.
var (
	errFailed = errors.New("not everything passed")
	errBroken = errors.New("something failed outside of the tests")
)

func main() {
	var o options
	flag.BoolVar(&o.soak, "soak", false, "run the long form of all tests, and churn for -time")
	flag.DurationVar(&o.churn, "time", time.Hour, "with -soak: how long to change, reload and replace an agent")
	flag.StringVar(&o.only, "only", "", "run only stages whose names match this `regexp`")
	flag.StringVar(&o.test, "test.run", "", "run the tests of one package, which is the argument, whose names match this `regexp`")
	flag.Parse()
	o.pkg = flag.Arg(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Stdout, o)
	if err == nil {
		return
	}
	if errors.Is(err, errFailed) {
		if !o.rerun() {
			fmt.Println("run:", err)
		}
		os.Exit(1)
	}
	fmt.Fprintln(os.Stderr, "run:", err)
	os.Exit(2)
}

// options are the flags.
type options struct {
	soak  bool
	churn time.Duration
	only  string // empty: all stages
	// test and pkg are the tests to run once more, as a regexp, and their package. They are empty otherwise.
	test, pkg string
}

// rerun reports whether tests of one package are to run once more, and nothing else.
func (o options) rerun() bool { return o.test != "" || o.pkg != "" }

// usage is how long a stage or a package took, and the CPU time of all its processes.
type usage struct {
	name      string
	took, cpu time.Duration
	failed    bool
	// tests says that tests of the package failed.
	tests bool
}

// runner runs the stages of a plan.
type runner struct {
	opts  options
	start time.Time

	mu       sync.Mutex
	out      io.Writer // written to with mu held
	stages   []usage
	packages map[string]*usage
	// benchmarks are events of the packages' running benchmarks: see hold.
	benchmarks map[string][][]byte
}

// run runs all stages. It returns errFailed if one failed, and other errors if the run itself did.
func run(ctx context.Context, out io.Writer, o options) error {
	r := &runner{opts: o, start: time.Now(), out: out, packages: make(map[string]*usage), benchmarks: make(map[string][][]byte)}
	binaries, release, err := openBinaries()
	if err != nil {
		return err
	}
	defer release()
	lists, last, err := plan(ctx, o, binaries)
	if err != nil {
		return err
	}
	if o.rerun() {
		s, err := rerunStage(slices.Concat(append(lists, last)...), o.pkg, o.test)
		if err != nil {
			return err
		}
		r.runStage(ctx, s)
		return cmp.Or(context.Cause(ctx), r.verdict())
	}
	var lanes sync.WaitGroup
	for _, list := range lists {
		lanes.Go(func() {
			for _, s := range list {
				r.runStage(ctx, s)
			}
		})
	}
	lanes.Wait()
	for _, s := range last {
		r.runStage(ctx, s)
	}
	r.printUsage()
	return cmp.Or(context.Cause(ctx), r.verdict())
}

// verdict returns errFailed if all that failed is tests of packages.
func (r *runner) verdict() error {
	failed := func(u usage) bool { return u.failed }
	if len(r.stages) > 0 && !slices.ContainsFunc(r.stages, failed) {
		return nil
	}
	tests := false
	for _, u := range r.packages {
		if u.failed && !u.tests {
			return errBroken
		}
		tests = tests || u.failed
	}
	if !tests {
		return errBroken
	}
	return errFailed
}

// printUsage prints the times of packages and stages.
func (r *runner) printUsage() {
	fmt.Fprintf(r.out, "\n%8s %8s        package\n", "time", "CPU time")
	for _, name := range slices.Sorted(maps.Keys(r.packages)) {
		r.packages[name].print(r.out)
	}
	var total usage
	fmt.Fprintf(r.out, "\n%8s %8s        stage\n", "time", "CPU time")
	for _, u := range r.stages {
		u.print(r.out)
		total.cpu += u.cpu
		total.failed = total.failed || u.failed
	}
	total.name, total.took = "in all", time.Since(r.start)
	total.print(r.out)
}

func (u usage) print(out io.Writer) {
	verdict := "ok"
	if u.failed {
		verdict = "FAIL"
	}
	fmt.Fprintf(out, "%6.1f s %6.1f s  %-4s  %s\n", u.took.Seconds(), u.cpu.Seconds(), verdict, u.name)
}

// runStage runs one stage to its end and prints its events.
func (r *runner) runStage(ctx context.Context, s stage) {
	if ctx.Err() != nil {
		return
	}
	began := time.Now()
	cmd := r.command(ctx, s)
	err := r.execute(cmd, s)
	r.mu.Lock()
	defer r.mu.Unlock()
	u := usage{name: s.name, took: time.Since(began), failed: err != nil}
	if p := cmd.ProcessState; p != nil {
		u.cpu = p.UserTime() + p.SystemTime() // with those of its children that it has waited for
	}
	r.stages = append(r.stages, u)
	if !r.opts.rerun() {
		fmt.Fprintf(r.out, "stage ")
		u.print(r.out)
	}
}

// command returns the command of a stage.
func (r *runner) command(ctx context.Context, s stage) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.args[0], s.args[1:]...)
	cmd.Dir = s.dir
	cmd.Env = slices.Concat(os.Environ(), s.env)
	if r.opts.soak {
		cmd.Env = append(cmd.Env, soak.Variable+"=1")
	}
	// An interrupt has to reach the tests, too: the go command does not pass it on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 30 * time.Second
	return cmd
}

// execute runs the command of a stage and prints its events. Those of a stage without events are of one check.
// A command with events has messages of the go command on standard error, which are printed if it fails.
func (r *runner) execute(cmd *exec.Cmd, s stage) error {
	if !s.events {
		r.event(s, gotest.Event{Action: "run", Test: s.name})
		output, err := cmd.CombinedOutput()
		action := "pass"
		if err != nil {
			action = "fail"
			r.event(s, gotest.Event{Action: "output", Test: s.name, Output: fmt.Sprintf("%s%v\n", output, err)})
		}
		r.event(s, gotest.Event{Action: action, Test: s.name})
		r.event(s, gotest.Event{Action: action})
		return err
	}
	var messages bytes.Buffer
	cmd.Stderr = &messages
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	err = cmd.Start()
	if err == nil {
		// All of the output must be read before Wait closes the pipe.
		err = errors.Join(gotest.EachLine(pipe, func(line []byte) { r.pass(s, line) }), cmd.Wait())
	}
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.opts.rerun() {
			fmt.Fprint(os.Stderr, messages.String()) // gotestsum takes it for an error, so nothing else is printed
		} else {
			fmt.Fprintf(r.out, "%s: %v\n%s", s.name, err, messages.String())
		}
	}
	return err
}

// event prints an event of a check.
func (r *runner) event(s stage, e gotest.Event) {
	e.Time, e.Package = time.Now(), s.name
	line, err := json.Marshal(e)
	if err != nil {
		panic(err) // the type has no other fields
	}
	r.pass(s, line)
}

// pass prints a line of a stage. Stages test the same packages, so the name of the stage becomes a part of the name
// of a package that is not in its usual stage.
func (r *runner) pass(s stage, line []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var e gotest.Event
	if json.Unmarshal(line, &e) == nil && e.Package != "" {
		name := e.Package
		if s.repeats {
			name += " (" + s.name + ")"
			line = bytes.Replace(line, fmt.Appendf(nil, `"Package":%q`, e.Package), fmt.Appendf(nil, `"Package":%q`, name), 1)
		}
		r.note(name, e)
		if r.hold(name, e, line) {
			return
		}
	}
	fmt.Fprintf(r.out, "%s\n", line)
}

// hold keeps the events of a benchmark until it fails or the package does, and reports whether it has kept this one.
// A benchmark that passes has no last event, so gotestsum takes it for one that hangs. r.mu is held.
func (r *runner) hold(name string, e gotest.Event, line []byte) bool {
	switch {
	case e.Action == "run" && strings.HasPrefix(e.Test, "Benchmark") && !strings.Contains(e.Test, "/"):
		r.benchmarks[name] = [][]byte{bytes.Clone(line)}
		return true
	case e.Action == "fail":
		for _, held := range r.benchmarks[name] {
			fmt.Fprintf(r.out, "%s\n", held)
		}
		delete(r.benchmarks, name)
	case e.Test != "" && r.benchmarks[name] != nil:
		r.benchmarks[name] = append(r.benchmarks[name], bytes.Clone(line))
		return true
	}
	return false
}

// cpuLine is what test/cpu.sh prints: user and system time in seconds.
const cpuLine = "CPU time: %f %f"

// note takes the times of a package from its events. r.mu is held.
func (r *runner) note(name string, e gotest.Event) {
	u := r.packages[name]
	if u == nil {
		u = &usage{name: strings.TrimPrefix(name, module)}
		r.packages[name] = u
	}
	if e.Test != "" {
		u.tests = u.tests || e.Action == "fail"
		return
	}
	var user, system float64
	if n, _ := fmt.Sscanf(e.Output, cpuLine, &user, &system); n == 2 {
		u.cpu = time.Duration((user + system) * float64(time.Second))
	}
	u.failed = u.failed || e.Action == "fail"
	if e.Elapsed > 0 {
		u.took = time.Duration(e.Elapsed * float64(time.Second))
	}
}
