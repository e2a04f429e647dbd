// Command bench measures DNS servers and writes the pages in docs/benchmarks.
//
// Without a section's flag it measures the main part (package queries). Each other section has a
// flag, a package and a page of its own: -scale, -fleet and -designs (all in package scale), -outage (outage), -faults
// (failover), -kernel (kernel), -program (programtime), -worst (attack), -transports (transports), -start (startup),
// -upstreams (upstreams), -hotname (readers), -attribution, -watching and -policies (all counting). The section about fair shares (fairness) has a flag
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
	"slices"
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
	plan     harness.Plan
	chosen   map[string]*bool // sections by flag
	fair     fairness.Parts
	services int
	fleet    scale.FleetOptions
	silence  time.Duration
	out      string // empty for none
}

// parseFlags reads the command line.
func parseFlags(args []string, stderr io.Writer) (options, error) {
	o := options{plan: harness.Plan{Progress: stderr, Names: queries.DefaultCacheNames}, chosen: map[string]*bool{}, fleet: scale.DefaultFleet()}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.IntVar(&o.plan.Rounds, "rounds", 0, "measure every server and workload `N` times (default 5, with -upstreams 1, with -scale, -designs, -outage or -faults 3, with -attribution, -watching, -policies, -floods, -budgets or -shares 9)")
	// In two seconds a server gets 2,000 queries at the lowest rate, so twenty are slower than
	// the p99.
	seconds := fs.Float64("seconds", 2, "`length` of one measurement")
	fs.BoolVar(&o.plan.Cluster, "cluster", true, "measure cluster names too, which takes a Kubernetes API server")
	only := fs.String("only", "", "measure `WORKLOADS/SERVERS` only, two regular expressions; either may be missing")
	for _, s := range o.sections() {
		if s.what != "" {
			o.chosen[s.flag] = fs.Bool(s.flag[1:], false, "measure the section about "+s.what+", and that alone")
		}
	}
	fs.IntVar(&o.services, "scale-services", scale.DefaultServices, "the `number` of Services of that cluster; everything else is in proportion; also that of -fleet")
	fs.Func("fleet-sizes", "how many agents a fleet has, `NUMBERS` with commas between them (default 25,50,100)", o.fleet.ParseSizes)
	fs.DurationVar(&o.fleet.Partition, "fleet-partition", o.fleet.Partition, "how long half of the largest fleet is cut off")
	fs.DurationVar(&o.silence, "outage-silence", outage.DefaultSilence, "how long all upstreams are silent; with less than five seconds all outages are as short")
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
func (o *options) check() error {
	if len(o.measured()) > 1 {
		return errors.New("-scale, -fleet, -designs, -outage, -faults, -kernel, -program, -worst, -transports, -start, -upstreams, -hotname, -attribution, -watching, -policies and fair shares are sections of their own: measure one after the other")
	}
	if o.plan.Rounds < 1 || o.plan.Length < 100*time.Millisecond || o.services < scale.MinServices {
		return fmt.Errorf("at least one round, at least 0.1 seconds, at least %d Services; -help lists the flags", scale.MinServices)
	}
	return nil
}

// defaultRounds is the number of rounds unless one is given. The median of five is not
// affected by two disturbed rounds. Where a round takes minutes there are three, which
// tolerate one. Differences of a hundredth take nine.
func (o *options) defaultRounds() int {
	if list := o.measured(); len(list) > 0 {
		return list[0].rounds
	}
	return fewRounds
}

// The usual numbers of rounds.
const (
	minuteRounds = 1 // of a minute for each server
	slowRounds   = 3
	fewRounds    = 5
	closeRounds  = 9
)

// section is a section that is measured alone.
type section struct {
	flag    string
	what    string // for the flag's help; empty for fair shares, which have a flag for each part
	rounds  int
	measure func(context.Context, harness.Plan) (harness.Section, error)
}

// sections returns all sections.
func (o *options) sections() []section {
	return []section{
		{harness.ScaleFlag, "a large cluster", slowRounds, anySection(func(ctx context.Context, p harness.Plan) (*scale.Report, error) {
			return scale.Measure(ctx, p, o.services)
		})},
		{harness.FleetFlag, "fleets of agents", minuteRounds, anySection(func(ctx context.Context, p harness.Plan) (*scale.FleetReport, error) {
			return scale.MeasureFleet(ctx, p, o.services, o.fleet)
		})},
		{harness.DesignsFlag, "ways to watch EndpointSlices", slowRounds, anySection(func(ctx context.Context, p harness.Plan) (*scale.DesignReport, error) {
			return scale.MeasureDesigns(ctx, p, o.services)
		})},
		{harness.OutageFlag, "upstreams that fail", slowRounds, anySection(func(ctx context.Context, p harness.Plan) (*outage.Report, error) {
			return outage.Measure(ctx, p, o.silence)
		})},
		{harness.FailoverFlag, "agents that are replaced or fail", slowRounds, anySection(func(ctx context.Context, p harness.Plan) (*failover.Report, error) {
			return failover.Measure(ctx, p, failover.UpgradesInARow)
		})},
		{harness.KernelFlag, "answers from inside the kernel", fewRounds, anySection(kernel.Measure)},
		{harness.ProgramFlag, "the time of the programs in the kernel", fewRounds, anySection(programtime.Measure)},
		{harness.AttackFlag, "the most expensive queries", fewRounds, anySection(attack.Measure)},
		{harness.TransportsFlag, "encrypted transports", fewRounds, anySection(transports.Measure)},
		{harness.StartFlag, "starting, stopping and being idle", fewRounds, anySection(startup.Measure)},
		{harness.UpstreamsFlag, "real servers as upstreams", minuteRounds, anySection(upstreams.Measure)},
		{harness.ReadersFlag, "many readers that are asked for one name", fewRounds, anySection(readers.Measure)},
		{harness.AttributionFlag, "counting queries by client", closeRounds, anySection(counting.Measure)},
		{harness.WatchingFlag, "the page and nodens tail", closeRounds, anySection(counting.MeasureWatching)},
		{harness.PoliciesFlag, "policies by name", closeRounds, anySection(counting.MeasurePolicies)},
		{o.fair.Flags(), "", closeRounds, anySection(func(ctx context.Context, p harness.Plan) (*fairness.Report, error) {
			return fairness.Measure(ctx, p, o.fair)
		})},
	}
}

// measured returns the sections whose flags are set.
func (o *options) measured() []section {
	return slices.DeleteFunc(o.sections(), func(s section) bool {
		set := o.chosen[s.flag]
		return (set == nil || !*set) && (s.what != "" || !o.fair.Any())
	})
}

// anySection returns f with the result of all sections.
func anySection[S harness.Section](f func(context.Context, harness.Plan) (S, error)) func(context.Context, harness.Plan) (harness.Section, error) {
	return func(ctx context.Context, p harness.Plan) (harness.Section, error) { return f(ctx, p) }
}

// section returns the flag of the section with the options that are not the defaults.
func (o *options) section() (flags string) {
	if list := o.measured(); len(list) > 0 {
		flags = list[0].flag
	}
	switch section := flags; {
	case section == harness.OutageFlag && o.silence != outage.DefaultSilence:
		flags += fmt.Sprintf(" -outage-silence %s", o.silence)
	case section == harness.FleetFlag:
		flags += o.fleet.Flags()
		fallthrough
	case section == harness.ScaleFlag || section == harness.DesignsFlag:
		if o.services != scale.DefaultServices {
			flags += fmt.Sprintf(" -scale-services %d", o.services)
		}
	}
	return flags
}

// measure measures the section, or the main part.
func (o *options) measure(ctx context.Context) (harness.Section, error) {
	if list := o.measured(); len(list) > 0 {
		return list[0].measure(ctx, o.plan)
	}
	return queries.Measure(ctx, o.plan)
}
