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
		return client.Serve(os.Stdin, stdout) // a client of the failover section
	}
	o, err := parseFlags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	s, err := o.measure(ctx)
	if err != nil {
		return err
	}
	fmt.Fprint(stdout, terminal(s))
	if o.out == "" {
		return nil
	}
	return write(s, o.out)
}

// options are the flags.
type options struct {
	plan                                 plan
	scale, outage, faults, kernel, worst bool
	services                             int
	silence                              time.Duration
	out                                  string // empty for none
}

// parseFlags reads the command line.
func parseFlags(args []string, stderr io.Writer) (options, error) {
	o := options{plan: plan{progress: stderr, names: defaultCacheNames}}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.IntVar(&o.plan.rounds, "rounds", 0, "measure every server and workload `N` times (default 5, with -scale, -outage or -faults 3)")
	// In two seconds a server gets 2,000 queries at the lowest rate, so twenty are slower than
	// the p99.
	seconds := fs.Float64("seconds", 2, "`length` of one measurement")
	fs.BoolVar(&o.plan.cluster, "cluster", true, "measure cluster names too, which takes a Kubernetes API server")
	only := fs.String("only", "", "measure `WORKLOADS/SERVERS` only, two regular expressions; either may be missing")
	fs.BoolVar(&o.scale, "scale", false, "measure the section about a large cluster, and that alone")
	fs.IntVar(&o.services, "scale-services", defaultServices, "the `number` of Services of that cluster; everything else is in proportion")
	fs.BoolVar(&o.outage, "outage", false, "measure the section about upstreams that fail, and that alone")
	fs.DurationVar(&o.silence, "outage-silence", defaultSilence, "how long all upstreams are silent; with less than five seconds all outages are as short")
	fs.BoolVar(&o.faults, "faults", false, "measure the section about agents that are replaced or fail, and that alone")
	fs.BoolVar(&o.kernel, "kernel", false, "measure the section about answers from inside the kernel, and that alone")
	fs.BoolVar(&o.worst, "worst", false, "measure the section about the most expensive queries, and that alone")
	fs.StringVar(&o.plan.before, "before", "", "measure the agent of `COMMIT` beside this tree's")
	fs.StringVar(&o.out, "out", "", "write the report to `FILE`, as Markdown, and its drawings to "+plotDir+" beside it")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, errors.New("no arguments but flags; -help lists them")
	}
	var err error
	if o.plan.only, err = parseFilter(*only); err != nil {
		return o, err
	}
	o.plan.length = time.Duration(*seconds * float64(time.Second))
	if o.plan.rounds == 0 {
		o.plan.rounds = o.defaultRounds()
	}
	o.plan.section = o.section()
	return o, o.check()
}

// check says what can't be measured.
func (o options) check() error {
	parts := 0
	for _, on := range []bool{o.scale, o.outage, o.faults, o.kernel, o.worst} {
		if on {
			parts++
		}
	}
	if parts > 1 {
		return errors.New("-scale, -outage, -faults, -kernel and -worst are sections of their own: measure one after the other")
	}
	if o.plan.rounds < 1 || o.plan.length < 100*time.Millisecond || o.services < minServices {
		return fmt.Errorf("at least one round, at least 0.1 seconds, at least %d Services; -help lists the flags", minServices)
	}
	return nil
}

// defaultRounds is the number of rounds unless one is given. The median of five is not
// affected by two disturbed rounds. Where a round takes minutes there are three, which
// tolerate one.
func (o options) defaultRounds() int {
	if o.scale || o.outage || o.faults {
		return 3
	}
	return 5
}

// section returns the flag of the section with the options that are not the defaults.
func (o options) section() string {
	switch {
	case o.scale && o.services != defaultServices:
		return fmt.Sprintf("%s -scale-services %d", scaleMarker.flag, o.services)
	case o.scale:
		return scaleMarker.flag
	case o.outage && o.silence != defaultSilence:
		return fmt.Sprintf("%s -outage-silence %s", outageMarker.flag, o.silence)
	case o.outage:
		return outageMarker.flag
	case o.faults:
		return failoverMarker.flag
	case o.kernel:
		return kernelMarker.flag
	case o.worst:
		return attackMarker.flag
	}
	return ""
}

// measure measures the section, or the main part of the page.
func (o options) measure(ctx context.Context) (section, error) {
	switch {
	case o.scale:
		return measureScale(ctx, o.plan, o.services)
	case o.outage:
		return measureOutages(ctx, o.plan, o.silence)
	case o.faults:
		return measureFaults(ctx, o.plan, upgradesInARow)
	case o.kernel:
		return measurePod(ctx, o.plan)
	case o.worst:
		return measureAttacks(ctx, o.plan)
	}
	return measure(ctx, o.plan)
}

// write writes the section to its place in the page, and the drawings beside the page. The
// other sections stay.
func write(s section, file string) error {
	plots, err := draw(s.Charts(), filepath.Dir(file))
	if err != nil {
		return fmt.Errorf("drawing for -out %s: %w", file, err)
	}
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("reading -out %s: %w", file, err)
	}
	text, err := renew(s, old, plots)
	if err != nil {
		return fmt.Errorf("writing -out %s: %w", file, err)
	}
	return os.WriteFile(file, text, 0o644)
}
