// Command churn runs agents for an hour, or as long as asked, while everything around them
// changes, and checks that they answer every query and that what they hold does not grow.
//
// Three agents run beside each other, with the same zones, a cluster at a scripted API server
// and scripted upstreams. One stays the same process for the whole run; its successors fail
// after they have taken over. One is replaced by a successor in each round. One runs on a node, in
// a network namespace where it sets up addresses and rules; it is replaced, stopped and killed in
// each round. A round has these phases, with contents from the seed:
//
//   - connections: clients over TCP, TLS and HTTPS ask, stall and vanish;
//   - objects: Services, EndpointSlices and pods are created, changed and deleted, and the
//     watches break in the middle;
//   - API server away: it goes away, objects change, and it returns, now and then without
//     its history;
//   - upstream away: one of two upstreams dies or falls silent, and returns;
//   - reload: other zones, caches, hosts, upstreams, and at times another view; a broken
//     Corefile; and the baseline again;
//   - hand-over: two agents are replaced, the other has a successor that fails;
//   - kill: the agent on the node ends by SIGTERM and by SIGKILL. The cluster DNS gets its
//     queries until it is started again, and it answers from the saved cache then;
//   - steady: nothing changes.
//
// UDP queries go on in all phases. Until the steady phase they ask for calm names only, which
// the round does not change: outside names, some of them new, and Services. In the steady
// phase they ask for all names. Each query must be answered with what the name has; none may
// be lost, answered wrongly or with SERVFAIL; see stallMonitor for the exception. Queries that a
// killed process had received are repeated. Each change of an object must become visible at all
// agents.
//
// At the end of each round, with the baseline Corefile and nothing under way, a sample is
// taken of resident memory, heap, descriptors and goroutines, and of the node's interfaces,
// addresses and rules. The median of the second quarter of the samples is compared with the median
// of the last quarter. Memory may grow by 10 % and some MiB, nothing else may grow.
//
// With -out, the samples are kept in a file, and a page with drawings is made of them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(1) // the program in the namespace has said why
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "churn:", err)
		os.Exit(1)
	}
}

// plan is what a run does.
type plan struct {
	time   time.Duration // the run ends with the round in which this is over
	rounds int           // or with this one; 0: no limit
	seed   uint64
	rate   int // queries a second for each agent
	// steady is how long the steady phase lasts, clients how many clients of each kind and
	// transport there are, changes how many objects change in a phase.
	steady           time.Duration
	clients, changes int
	compare          time.Duration // of a hand-over with the agent before; 0: none
	dir              string
	progress         io.Writer
	out              string // directory of the page and the record; "": none
}

// command is the command line that repeats the run.
func (p plan) command() string {
	return fmt.Sprintf("go run ./test/churn -time %v -seed %d -rate %d -steady %v -compare %v -out docs/benchmarks", p.time, p.seed, p.rate, p.steady, p.compare)
}

// over reports whether the run ends after the round. Round 0, before anything changes, is not
// the last.
func (p plan) over(round int, took time.Duration) bool {
	return round > 0 && (took >= p.time || round == p.rounds)
}

// command is the program.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	p, err := parsePlan(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if !inNamespace() {
		return runInNamespace(ctx, stdout, stderr, args...)
	}
	if p.dir, err = os.MkdirTemp("", "nodens-churn-"); err != nil {
		return err
	}
	defer os.RemoveAll(p.dir)
	r, err := p.run(ctx)
	if err != nil && !errors.Is(err, errInterrupted) {
		return err
	}
	r.judge()
	fmt.Fprint(stdout, r)
	return errors.Join(r.verdict(), r.writePage())
}

func parsePlan(args []string, stderr io.Writer) (plan, error) {
	p := plan{clients: 8, changes: 20, progress: stderr}
	fs := flag.NewFlagSet("churn", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.DurationVar(&p.time, "time", time.Hour, "end with the round that runs after this `time`")
	fs.IntVar(&p.rounds, "rounds", 0, "end after `N` rounds; 0 is no limit")
	fs.Uint64Var(&p.seed, "seed", 1, "`seed` of everything that is random")
	fs.IntVar(&p.rate, "rate", 200, "ask each agent `N` queries a second")
	fs.DurationVar(&p.steady, "steady", 5*time.Second, "length of the steady phase of each round")
	fs.DurationVar(&p.compare, "compare", 0, "let successors compare themselves with their predecessors for this `time`, at least 5s; 0 is no comparison")
	fs.StringVar(&p.out, "out", "", "`directory` for the page with the samples; their drawings go to ../images. Empty: none")
	if err := fs.Parse(args); err != nil {
		return p, err
	}
	if fs.NArg() > 0 || min(p.time, p.steady) <= 0 || p.rounds < 0 || p.rate < sockets || p.rate > 10_000 {
		return p, errors.New("no arguments but flags, some time, and from 4 to 10,000 queries a second; -help lists the flags")
	}
	return p, nil
}
