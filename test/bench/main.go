// Command bench measures DNS servers and writes the pages in docs/benchmarks.
//
// Without a section's flag it measures the main part (package queries). Each other section has a
// flag, a package and a page of its own: -scale (package scale), -outage (outage), -faults
// (failover), -kernel (kernel), -program (programtime), -worst (attack), -transports (transports), -start (startup),
// -upstreams (upstreams), -hotname (readers), -attribution and -watching (both counting). The section about fair shares (fairness) has a flag
// for each part: -floods, -budgets and -shares. A run replaces its own pages and leaves the others
// as they are. Package summary draws the pictures of BENCHMARKS.md from the pages' tables.
//
// One core is the server's; dnsperf, package load and the API server run on the others. The
// sections about failing agents pin nothing.
//
// With -before the agent of another commit is measured beside this tree's, in the same rounds.
// With -only a run measures the workloads and servers whose names match.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nodens-dns/nodens/test/bench/attack"
	"github.com/nodens-dns/nodens/test/bench/counting"
	"github.com/nodens-dns/nodens/test/bench/failover"
	"github.com/nodens-dns/nodens/test/bench/fairness"
	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/kernel"
	"github.com/nodens-dns/nodens/test/bench/outage"
	"github.com/nodens-dns/nodens/test/bench/programtime"
	"github.com/nodens-dns/nodens/test/bench/queries"
	"github.com/nodens-dns/nodens/test/bench/readers"
	"github.com/nodens-dns/nodens/test/bench/scale"
	"github.com/nodens-dns/nodens/test/bench/startup"
	"github.com/nodens-dns/nodens/test/bench/transports"
	"github.com/nodens-dns/nodens/test/bench/upstreams"
	"github.com/nodens-dns/nodens/test/rig/load"
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
		return load.Serve(os.Stdin, stdout) // a client of the failover section
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
	fmt.Fprint(stdout, harness.Terminal(s))
	if o.out == "" {
		return nil
	}
	if err := harness.Write(s, o.out); err != nil {
		return fmt.Errorf("writing -out %s: %w", o.out, err)
	}
	return nil
}

// options are the flags.
type options struct {
	plan                                 harness.Plan
	scale, outage, faults, kernel, worst bool
	attribution, watching, transports    bool
	start, readers, program, upstreams   bool
	fair                                 fairness.Parts
	services                             int
	silence                              time.Duration
	out                                  string // empty for none
}

// parseFlags reads the command line.
func parseFlags(args []string, stderr io.Writer) (options, error) {
	o := options{plan: harness.Plan{Progress: stderr, Names: queries.DefaultCacheNames}}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.IntVar(&o.plan.Rounds, "rounds", 0, "measure every server and workload `N` times (default 5, with -upstreams 1, with -scale, -outage or -faults 3, with -attribution, -watching, -floods, -budgets or -shares 9)")
	// In two seconds a server gets 2,000 queries at the lowest rate, so twenty are slower than
	// the p99.
	seconds := fs.Float64("seconds", 2, "`length` of one measurement")
	fs.BoolVar(&o.plan.Cluster, "cluster", true, "measure cluster names too, which takes a Kubernetes API server")
	only := fs.String("only", "", "measure `WORKLOADS/SERVERS` only, two regular expressions; either may be missing")
	fs.BoolVar(&o.scale, "scale", false, "measure the section about a large cluster, and that alone")
	fs.IntVar(&o.services, "scale-services", scale.DefaultServices, "the `number` of Services of that cluster; everything else is in proportion")
	fs.BoolVar(&o.outage, "outage", false, "measure the section about upstreams that fail, and that alone")
	fs.DurationVar(&o.silence, "outage-silence", outage.DefaultSilence, "how long all upstreams are silent; with less than five seconds all outages are as short")
	fs.BoolVar(&o.faults, "faults", false, "measure the section about agents that are replaced or fail, and that alone")
	fs.BoolVar(&o.kernel, "kernel", false, "measure the section about answers from inside the kernel, and that alone")
	fs.BoolVar(&o.program, "program", false, "measure the section about the time of the programs in the kernel, and that alone")
	fs.BoolVar(&o.worst, "worst", false, "measure the section about the most expensive queries, and that alone")
	fs.BoolVar(&o.attribution, "attribution", false, "measure the section about counting queries by client, and that alone")
	fs.BoolVar(&o.watching, "watching", false, "measure the section about the page and nodens tail, and that alone")
	fs.BoolVar(&o.transports, "transports", false, "measure the section about encrypted transports, and that alone")
	fs.BoolVar(&o.upstreams, "upstreams", false, "measure the section about real servers as upstreams, and that alone")
	fs.BoolVar(&o.start, "start", false, "measure the section about starting, stopping and being idle, and that alone")
	fs.BoolVar(&o.readers, "hotname", false, "measure the section about many readers that are asked for one name, and that alone")
	fs.BoolVar(&o.fair.Floods, "floods", false, "measure the section about fair shares: one pod floods the node; may be given with -budgets and -shares")
	fs.BoolVar(&o.fair.Budgets, "budgets", false, "measure the section about fair shares: an upstream has a budget; may be given with -floods and -shares")
	fs.BoolVar(&o.fair.Shares, "shares", false, "measure the section about fair shares: what shares cost; may be given with -floods and -budgets")
	fs.StringVar(&o.plan.Before, "before", "", "measure the agent of `COMMIT` beside this tree's")
	fs.StringVar(&o.out, "out", "", "write the report to `FOLDER`, as Markdown pages, and its drawings to "+figures.PlotDir+" from there")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, errors.New("no arguments but flags; -help lists them")
	}
	var err error
	if o.plan.Only, err = harness.ParseFilter(*only); err != nil {
		return o, err
	}
	o.plan.Length = time.Duration(*seconds * float64(time.Second))
	if o.plan.Rounds == 0 {
		o.plan.Rounds = o.defaultRounds()
	}
	o.plan.Section = o.section()
	return o, o.check()
}

// check says what can't be measured.
func (o options) check() error {
	parts := 0
	for _, s := range o.sections() {
		if s.set {
			parts++
		}
	}
	if parts > 1 {
		return errors.New("-scale, -outage, -faults, -kernel, -program, -worst, -transports, -start, -upstreams, -hotname, -attribution, -watching and fair shares are sections of their own: measure one after the other")
	}
	if o.plan.Rounds < 1 || o.plan.Length < 100*time.Millisecond || o.services < scale.MinServices {
		return fmt.Errorf("at least one round, at least 0.1 seconds, at least %d Services; -help lists the flags", scale.MinServices)
	}
	return nil
}

// defaultRounds is the number of rounds unless one is given. The median of five is not
// affected by two disturbed rounds. Where a round takes minutes there are three, which
// tolerate one. Differences of a hundredth take nine.
func (o options) defaultRounds() int {
	switch {
	case o.upstreams:
		return 1 // of a minute for each server
	case o.scale || o.outage || o.faults:
		return 3
	case o.attribution || o.watching || o.fair.Any():
		return 9
	}
	return 5
}

// section is a section that is measured alone.
type section struct {
	flag    string
	set     bool
	measure func(context.Context, harness.Plan) (harness.Section, error)
}

// sections returns all sections, and whether their flags are set.
func (o options) sections() []section {
	return []section{
		{harness.ScaleFlag, o.scale, anySection(func(ctx context.Context, p harness.Plan) (*scale.Report, error) {
			return scale.Measure(ctx, p, o.services)
		})},
		{harness.OutageFlag, o.outage, anySection(func(ctx context.Context, p harness.Plan) (*outage.Report, error) {
			return outage.Measure(ctx, p, o.silence)
		})},
		{harness.FailoverFlag, o.faults, anySection(func(ctx context.Context, p harness.Plan) (*failover.Report, error) {
			return failover.Measure(ctx, p, failover.UpgradesInARow)
		})},
		{harness.KernelFlag, o.kernel, anySection(kernel.Measure)},
		{harness.ProgramFlag, o.program, anySection(programtime.Measure)},
		{harness.AttackFlag, o.worst, anySection(attack.Measure)},
		{harness.TransportsFlag, o.transports, anySection(transports.Measure)},
		{harness.StartFlag, o.start, anySection(startup.Measure)},
		{harness.UpstreamsFlag, o.upstreams, anySection(upstreams.Measure)},
		{harness.ReadersFlag, o.readers, anySection(readers.Measure)},
		{harness.AttributionFlag, o.attribution, anySection(counting.Measure)},
		{harness.WatchingFlag, o.watching, anySection(counting.MeasureWatching)},
		{o.fair.Flags(), o.fair.Any(), anySection(func(ctx context.Context, p harness.Plan) (*fairness.Report, error) {
			return fairness.Measure(ctx, p, o.fair)
		})},
	}
}

// anySection returns f with the result of all sections.
func anySection[S harness.Section](f func(context.Context, harness.Plan) (S, error)) func(context.Context, harness.Plan) (harness.Section, error) {
	return func(ctx context.Context, p harness.Plan) (harness.Section, error) { return f(ctx, p) }
}

// section returns the flag of the section with the options that are not the defaults.
func (o options) section() string {
	switch {
	case o.scale && o.services != scale.DefaultServices:
		return fmt.Sprintf("%s -scale-services %d", harness.ScaleFlag, o.services)
	case o.outage && o.silence != outage.DefaultSilence:
		return fmt.Sprintf("%s -outage-silence %s", harness.OutageFlag, o.silence)
	}
	for _, s := range o.sections() {
		if s.set {
			return s.flag
		}
	}
	return ""
}

// measure measures the section, or the main part.
func (o options) measure(ctx context.Context) (harness.Section, error) {
	for _, s := range o.sections() {
		if s.set {
			return s.measure(ctx, o.plan)
		}
	}
	return queries.Measure(ctx, o.plan)
}
