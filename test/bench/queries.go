package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/test/apiserver"
)

// queriesRun measures the main part of the page.
type queriesRun struct {
	*Run
	out *queriesReport
}

// queriesReport is its result.
type queriesReport struct {
	*report
	rests map[string][]idleSample // by server
	holds map[string]memorySample // by server
}

func newQueriesReport(r *report) *queriesReport {
	return &queriesReport{r, map[string][]idleSample{}, map[string]memorySample{}}
}

// measure does what the plan says. Nothing that it started runs when it returns.
func measure(ctx context.Context, p plan) (*queriesReport, error) {
	b, err := New(p, p.withBefore(servers))
	if err != nil {
		return nil, err
	}
	defer b.close()
	q := &queriesRun{b, newQueriesReport(b.report)}
	for _, w := range workloads() {
		if (p.cluster || !w.cluster) && p.only.workload(w) {
			b.workloads = append(b.workloads, w)
		}
	}
	b.cluster = slices.ContainsFunc(b.workloads, func(w workload) bool { return w.querySet.cluster })
	for _, step := range []func(context.Context) error{q.build, q.startPeers, q.startAll, q.warmUp, q.rounds, q.measureMemory} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	b.report.noteBusyCore()
	b.report.fact("load average", b.report.loadBefore+" before, "+loadAverage()+" after")
	return q.out, nil
}

// startPeers starts what the servers talk to, on the load generator's cores.
func (b *queriesRun) startPeers(ctx context.Context) error {
	b.settled = true
	if err := pinSelf(b.loadCores); err != nil {
		return err
	}
	var err error
	if b.loop, b.stream, err = startUpstream(); err != nil {
		return err
	}
	if b.cluster {
		if b.api, err = startCluster(ctx, b.dir); err != nil {
			return err
		}
		b.kubeconfig = b.api.Kubeconfig(apiserver.Agent)
	}
	return b.writeQueries()
}

// startAll starts every server. One of the machine's own may be of a version that
// wants another configuration; then there is no row of it.
func (b *queriesRun) startAll(ctx context.Context) error {
	var rows []server
	for _, s := range b.report.servers {
		r, err := b.start(ctx, s, false)
		if err != nil && programs[s.program].foreign && ctx.Err() == nil {
			fmt.Fprintln(b.progress, err)
			b.omit(s, fmt.Errorf("%w with test/bench/conf/%s", errStart, s.conf))
			continue
		}
		if err != nil {
			return err
		}
		b.running, rows = append(b.running, r), append(rows, s)
	}
	b.report.servers = rows
	return nil
}

// warmUp asks every server every question once, which fills its cache, and then
// for a while, which lets its heap and its sockets reach their size.
func (b *queriesRun) warmUp(ctx context.Context) error {
	for _, r := range b.running {
		for _, w := range b.workloads {
			if !w.asks(r.server) {
				continue
			}
			if err := b.askAll(ctx, r, w); err != nil {
				return fmt.Errorf("warming up %s with %s: %w", r.name, w.name, r.explain(err))
			}
			if w.tool != saturateUDP && w.tool != saturateTCP {
				continue
			}
			if _, err := b.loadOf(r, w, min(b.length, time.Second)).run(ctx, b.loadCores); err != nil {
				return fmt.Errorf("warming up %s with %s: %w", r.name, w.name, r.explain(err))
			}
		}
	}
	return nil
}

// rounds measures everything in turn, again and again. Every other round goes through the
// servers backwards: the first one of a round has a core whose caches and clock are another
// load's.
func (b *queriesRun) rounds(ctx context.Context) error {
	for n := range b.plan.rounds {
		order := slices.Clone(b.running)
		if n%2 == 1 {
			slices.Reverse(order)
		}
		for _, w := range b.workloads {
			for _, r := range order {
				if !w.asks(r.server) {
					continue
				}
				s, err := b.sample(ctx, r, w)
				if err != nil {
					return fmt.Errorf("measuring %s with %s: %w", r.name, w.name, r.explain(err))
				}
				at := cell{r.name, w.name}
				b.report.samples[at] = append(b.report.samples[at], s)
				fmt.Fprintf(b.progress, "round %d of %d, %s, %s: %s\n", n+1, b.plan.rounds, w.name, r.name, s)
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
var servers = []server{
	{name: "nodens", program: "nodens", conf: "deployed"},
	{name: "C echo", program: "echo"},
	{name: "CoreDNS", program: "coredns", conf: "deployed"},
	{name: "nodens, bare", program: "nodens", conf: "bare", saturationOnly: true},
	{name: "CoreDNS, bare", program: "coredns", conf: "bare", saturationOnly: true},
	{name: "unbound", program: "unbound", conf: "unbound"},
	{name: "dnsdist", program: "dnsdist", conf: "dnsdist"},
	{name: "kresd", program: "kresd", conf: "kresd"},
	{name: "pdns-recursor", program: "pdns-recursor", conf: "recursor"},
}
