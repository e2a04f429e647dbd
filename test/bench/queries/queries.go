// Package queries measures the pages of docs/benchmarks about queries: what a query costs a server, how long
// the answer takes, and how much memory the server uses.
//
// All servers are up, pinned to the same core; one at a time gets queries. Before each measurement
// the server answers every name once, so that the answers come from memory. Rounds go through all
// servers in turn, so a disturbance of the machine affects each of them; ratios compare servers
// within a round, and the median of the rounds counts.
package queries

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
)

// run measures the main part.
type run struct {
	*harness.Run
	out *Report
}

// Report is its result.
type Report struct {
	*harness.Report
	idle   harness.Results[idleSample]   // by server
	memory harness.Results[memorySample] // by server, one of each
}

func newQueriesReport(r *harness.Report) *Report {
	return &Report{r, harness.Results[idleSample]{}, harness.Results[memorySample]{}}
}

// Measure does what the plan says. Nothing that it started runs when it returns.
func Measure(ctx context.Context, p harness.Plan) (*Report, error) {
	b, err := harness.New(p, p.WithBefore(servers))
	if err != nil {
		return nil, err
	}
	defer b.Close()
	q := &run{b, newQueriesReport(b.Report)}
	workloads := harness.Workloads()
	if p.Before != "" {
		workloads = harness.BeforeWorkloads()
	}
	b.Choose(workloads)
	b.Cluster = slices.ContainsFunc(b.Workloads, func(w harness.Workload) bool { return w.QuerySet.Cluster })
	if err := b.Steps(ctx, q.Build, q.startPeers, q.startAll, q.warmUp, q.rounds, q.measureMemory); err != nil {
		return nil, err
	}
	b.Report.NoteBusyCore()
	return q.out, nil
}

// startPeers starts what the servers talk to, on the load generator's cores.
func (b *run) startPeers(ctx context.Context) error {
	b.Settled = true
	if err := machine.PinSelf(b.LoadCores); err != nil {
		return err
	}
	var err error
	if b.Loop, b.Stream, err = harness.StartUpstream(); err != nil {
		return err
	}
	if b.Cluster {
		if b.API, err = startCluster(ctx, b.Dir, b.Number(harness.NameCount)); err != nil {
			return err
		}
		b.Kubeconfig = b.API.Kubeconfig(apiserver.Agent)
	}
	return b.WriteQueries()
}

// startAll starts every server. One of the machine's own may be of a version that
// wants another configuration; then there is no row of it.
func (b *run) startAll(ctx context.Context) error {
	large := slices.ContainsFunc(b.Workloads, func(w harness.Workload) bool { return w.Count() > harness.NameCount })
	var rows []harness.Server
	for _, s := range b.Report.Servers {
		r, err := b.Start(ctx, s, large)
		if err != nil && harness.Programs[s.Program].Foreign && ctx.Err() == nil {
			fmt.Fprintln(b.Progress, err)
			b.Omit(s, fmt.Errorf("%w with test/bench/harness/conf/%s", harness.ErrStart, s.Conf))
			continue
		}
		if err != nil {
			return err
		}
		b.Running, rows = append(b.Running, r), append(rows, s)
	}
	b.Report.Servers = rows
	return nil
}

// warmUp asks every server every question once, which fills its cache, and then
// for a while, which lets its heap and its sockets reach their size.
func (b *run) warmUp(ctx context.Context) error {
	list := b.Workloads
	if b.Short {
		list = list[:1] // a measurement asks every question first
	}
	for _, r := range b.Running {
		for _, w := range list {
			if !w.Asks(r.Server) {
				continue
			}
			if err := b.AskAll(ctx, r, w); err != nil {
				return fmt.Errorf("warming up %s with %s: %w", r.Name, w.Name, r.Explain(err))
			}
			if w.Tool != harness.SaturateUDP && w.Tool != harness.SaturateTCP {
				continue
			}
			if _, err := b.LoadOf(r, w, min(b.Length, time.Second)).Run(ctx, b.LoadCores); err != nil {
				return fmt.Errorf("warming up %s with %s: %w", r.Name, w.Name, r.Explain(err))
			}
		}
	}
	return nil
}

// rounds measures everything in turn, again and again. Every other round goes through the
// servers backwards: the first one of a round has a core whose caches and clock are another
// load's.
func (b *run) rounds(ctx context.Context) error {
	for n := range b.Plan.Rounds {
		order := slices.Clone(b.Running)
		if n%2 == 1 {
			slices.Reverse(order)
		}
		for _, w := range b.Workloads {
			for _, r := range order {
				if !w.Asks(r.Server) {
					continue
				}
				s, err := b.Sample(ctx, r, w)
				if err != nil {
					return fmt.Errorf("measuring %s with %s: %w", r.Name, w.Name, r.Explain(err))
				}
				b.Add(harness.Cell{Server: r.Name, Workload: w.Name}, n, s, s)
			}
		}
		if err := b.measureIdle(ctx); err != nil {
			return err
		}
	}
	return nil
}

// servers are the rows, in the order in which they are measured. Those before
// the first program with each tell how long an answer is.
var servers = []harness.Server{
	{Name: "nodens", Program: "nodens", Conf: "deployed"},
	{Name: "C echo", Program: "echo"},
	{Name: "Go echo", Program: "goecho"},
	{Name: "CoreDNS", Program: "coredns", Conf: "deployed"},
	{Name: "nodens, bare", Program: "nodens", Conf: "bare", SaturationOnly: true},
	{Name: "CoreDNS, bare", Program: "coredns", Conf: "bare", SaturationOnly: true},
	{Name: "unbound", Program: "unbound", Conf: "unbound"},
	{Name: "dnsdist", Program: "dnsdist", Conf: "dnsdist"},
	{Name: "kresd", Program: "kresd", Conf: "kresd", SaturationOnly: true},
	{Name: "pdns-recursor", Program: "pdns-recursor", Conf: "recursor", SaturationOnly: true},
}
