// Command run runs every test of the repository and prints a summary. It is what `make test`
// and `make soak` call.
//
// Tests run in stages. A stage is one `go test`, or a command that counts as one check. Many
// tests wait more than they compute, so two lists of stages run side by side: unit tests with
// what belongs to them, and the suites that start other processes. A line every ten seconds
// shows how far they are, and a failed test's output follows at once. At the end come a line
// for each package with its time and CPU time, the slowest tests, the stages' times, and the totals. The exit code is 1
// if anything failed or no test ran.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

var errFailed = errors.New("not everything passed")

func main() {
	if len(os.Args) > 2 && os.Args[1] == execArg {
		os.Exit(execTest(os.Args[2:]))
	}
	var o options
	flag.BoolVar(&o.soak, "soak", false, "run the long form of all tests, and churn for -time")
	flag.DurationVar(&o.churn, "time", time.Hour, "with -soak: how long to change, reload and replace an agent")
	flag.StringVar(&o.only, "only", "", "run only stages whose names match this `regexp`")
	flag.IntVar(&o.slowest, "slowest", 10, "how many of the slowest tests to list")
	flag.StringVar(&o.events, "events", "", "write the events of `go test -json` to this `directory`, a file for each stage")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, o); err != nil {
		fmt.Fprintln(os.Stderr, "run:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	soak    bool
	churn   time.Duration
	only    string // empty: all stages
	slowest int
	events  string // empty: the events are not kept
}
