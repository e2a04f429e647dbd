// Command bench measures what a DNS server pays for a query, and prints the
// servers of its table side by side.
//
// One core is the server's, the others are the load generators': dnsperf, package
// pace and the API server run there. All servers of the table are started, each
// pinned to the same core, and stay up; only one at a time gets queries, so the
// others cost nothing but their memory. Before a measurement the server answers
// every name once, so that what follows is served from memory; whether it was is
// told by the upstream's count of questions.
//
// A measurement is one run of a load generator: with so many queries outstanding
// that the server's core has always one to work on, or at a fixed rate, or for
// names that nobody has asked for. The server's CPU clock, read before and after,
// divided by the queries that got answers, is the price of a query. Rounds go
// through all servers in turn, so that what disturbs the machine for a while
// disturbs each of them; servers are compared within a round, and the median of
// the rounds' ratios is held against what is claimed.
//
// With -scale it makes a cluster of ten thousand Services in a real API server
// instead, and measures what it costs an agent to follow it, and the API server to
// be followed: memory, bytes, watches, the time from a change to the answer that
// shows it (stay.go), and a hundred agents at once (crowd.go). That is a section of
// its own, with claims of its own (promise.go), in the same report.
//
// With -outage it lets upstreams fail, and measures what clients see of it
// (outage.go, ordeal.go); that too is a section of its own, with claims of its own
// (duty.go).
//
// With -faults it does to an agent in a node made of network namespaces what happens to
// agents (fault.go, mishap.go), and measures what a pod sees of it, beside CoreDNS behind
// the rules of NodeLocal DNSCache; that has a section and claims (pledge.go) too.
//
// With -kernel a pod in such a node asks one server after the other, nodens with and without
// answers from inside the kernel among them (pod.go, ask.go), and what the whole machine
// pays for a query is measured, the client's share included; section and claims are in vow.go.
//
// With -worst a victim asks beside the dearest queries that package worst knows (worst.go),
// and beside the same packets sent to an echo; that is a section with claims too.
//
// With -before the agent of another commit is measured beside this tree's.
//
// A server more is a row in programs (program.go), one in servers (server.go) and
// a file in conf; what is asked is a row in sets and how it is asked one in paced
// or others (workload.go); what has to come out is a row of claims (claim.go).
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
	"syscall"
	"time"

	client "github.com/nodens-dns/nodens/test/node/load"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run is the program.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "load" {
		return client.Serve(os.Stdin, stdout) // a client of fault.go
	}
	plan, out, err := flags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	r, err := plan.measure(ctx)
	if err != nil {
		return err
	}
	fmt.Fprint(stdout, r.tables())
	if out == "" {
		return nil
	}
	return r.write(out)
}

// flags reads the plan, and the file to write the report to; "" is none.
func flags(args []string, stderr io.Writer) (plan, string, error) {
	plan := plan{progress: stderr, names: entries}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.IntVar(&plan.rounds, "rounds", 0, "measure every server and workload `N` times (default 5, with -scale, -outage or -faults 3)")
	// In two seconds a server gets 2,000 queries at the lowest rate, of which twenty
	// are slower than the p99; in one it would be ten, and in four the whole would
	// take an hour.
	seconds := fs.Float64("seconds", 2, "`length` of one measurement")
	fs.BoolVar(&plan.cluster, "cluster", true, "measure cluster names too, which takes a Kubernetes API server")
	only := fs.String("only", "", "measure `WORKLOADS/SERVERS` only, two regular expressions; either may be missing")
	fs.BoolVar(&plan.scale.on, "scale", false, "measure the section about a large cluster, and that alone")
	fs.IntVar(&plan.scale.services, "scale-services", large, "the `number` of Services of that cluster; everything else is in proportion")
	fs.BoolVar(&plan.failing.on, "outage", false, "measure the section about upstreams that fail, and that alone")
	fs.DurationVar(&plan.failing.silence, "outage-silence", usualSilence, "how long all upstreams are silent; with less than five seconds all outages are as short")
	fs.BoolVar(&plan.faults, "faults", false, "measure the section about agents that go away, and that alone")
	fs.BoolVar(&plan.kernel, "kernel", false, "measure the section about answers from inside the kernel, and that alone")
	fs.BoolVar(&plan.worst, "worst", false, "measure the section about the dearest queries, and that alone")
	fs.StringVar(&plan.before, "before", "", "measure the agent of `COMMIT` beside this tree's")
	out := fs.String("out", "", "write the report to `FILE`, as Markdown, and its drawings to "+folder+" beside it")
	err := fs.Parse(args)
	if err != nil {
		return plan, "", err
	}
	if plan.only, err = choose(*only); err != nil {
		return plan, "", err
	}
	plan.length = time.Duration(*seconds * float64(time.Second))
	if plan.rounds == 0 {
		plan.rounds = plan.usual()
	}
	if fs.NArg() > 0 {
		return plan, "", errors.New("no arguments but flags; -help lists them")
	}
	return plan, *out, plan.check()
}

// check says what can't be measured.
func (p plan) check() error {
	parts := 0
	for _, on := range []bool{p.scale.on, p.failing.on, p.faults, p.kernel, p.worst} {
		if on {
			parts++
		}
	}
	if parts > 1 {
		return errors.New("-scale, -outage, -faults, -kernel and -worst are sections of their own: measure one after the other")
	}
	if p.rounds < 1 || p.length < 100*time.Millisecond || p.scale.services < fewest {
		return fmt.Errorf("at least one round, at least 0.1 seconds, at least %d Services; -help lists the flags", fewest)
	}
	return nil
}

// usual is the number of rounds unless one is given. Five are the fewest whose
// median stands two disturbed ones; of what takes minutes a round,
// three have to do, which stand one.
func (p plan) usual() int {
	if p.scale.on || p.failing.on || p.faults {
		return 3
	}
	return 5
}

// measure measures the servers, or what a large cluster costs them, or what they do when
// upstreams fail.
func (p plan) measure(ctx context.Context) (*report, error) {
	if p.scale.on {
		return measureScale(ctx, p)
	}
	if p.failing.on {
		return measureOutages(ctx, p)
	}
	if p.faults {
		return measureFaults(ctx, p)
	}
	if p.kernel {
		return measurePod(ctx, p)
	}
	if p.worst {
		return measureWorst(ctx, p)
	}
	return measure(ctx, p)
}

// write writes the page to the file and its drawings beside it. What the other kind
// of run has written there stays.
func (r *report) write(file string) error {
	plots, err := r.draw(filepath.Dir(file))
	if err != nil {
		return fmt.Errorf("drawing for -out %s: %w", file, err)
	}
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("reading -out %s: %w", file, err)
	}
	text, err := r.renew(old, plots)
	if err != nil {
		return fmt.Errorf("writing -out %s: %w", file, err)
	}
	return os.WriteFile(file, text, 0o644)
}
