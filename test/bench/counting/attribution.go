// Package counting measures the section about counting queries by client: the CPU time and the memory of
// an agent that counts, in units of the same agent with --client-metrics=off. It also measures the section about
// watching: the CPU time of an agent whose page is open, and of which `nodens tail` follows a pod, in units of the
// same agent that nobody watches; and the section about policies, in units of the same agent without --dns-policies.
//
// A round starts a pair of agents, so that where a process happens to lie in memory is not the same in all
// rounds. At saturation the two are asked in turn, in short slices. At a fixed rate both are asked
// at the same time. So what disturbs the machine affects both, and ratios compare the two within a round.
package counting

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/rig/load"
)

// The rows.
const (
	onRow  = "on"
	offRow = "off"
)

// rows are the agents, that with attribution first.
func rows() []harness.Server {
	s := harness.Server{Program: "nodens", Conf: "attribution"}
	on, off := s, s
	on.Name, on.Flags = onRow, []string{"-node-name", nodeName}
	off.Name, off.Flags = offRow, []string{"-node-name", nodeName, "-client-metrics", "off"}
	return []harness.Server{on, off}
}

// nameCount is the number of names that the pods ask for: more than a table of names has places.
const nameCount = 10000

// workloads are what is asked, by all pods in turn.
func workloads() (list []harness.Workload) {
	cached := harness.QuerySet{Name: "cached A", Pattern: "many-%04d.bench.example.", Size: nameCount, Qtype: dns.TypeA, Rcode: dns.RcodeSuccess}
	search := harness.QuerySet{
		Name: "search path", Pattern: "www.name-%04d.example." + harness.Namespace + ".svc.cluster.local.", Size: nameCount,
		Qtype: dns.TypeA, Rcode: dns.RcodeNameError, Cluster: true,
	}
	saturated := harness.LoadShape{Name: "at saturation", Tool: harness.SaturateUDP}
	return []harness.Workload{
		{QuerySet: cached, LoadShape: saturated, Name: "cached A, at saturation"},
		{QuerySet: search, LoadShape: saturated, Name: "names of a search path, at saturation"},
		{QuerySet: cached, LoadShape: harness.LoadShape{Name: "1,000 qps", Tool: harness.FixedRate, Rate: 1000}, Name: "cached A, 1,000 qps"},
	}
}

const (
	// numSlices is the number of slices of a measurement at saturation, for each agent.
	numSlices = 8
	// steadyLength is the length of a measurement at a fixed rate, which has fewer queries, in units of
	// one at saturation.
	steadyLength = 4
)

// run measures pairs of agents.
type run struct {
	*harness.Run
	out *Report
	// settle is called when the caches of a pair are full; nil: not.
	settle func(context.Context) error
}

// Report is its result.
type Report struct {
	*harness.Report
	memory harness.Results[memorySample] // by row
}

// Measure measures what attribution costs. Nothing that it started runs when it returns.
func Measure(ctx context.Context, p harness.Plan) (*Report, error) {
	b, err := harness.New(p, rows())
	if err != nil {
		return nil, err
	}
	defer b.Close()
	b.Cluster, b.OwnClient = true, true
	run := &run{Run: b, out: &Report{b.Report, harness.Results[memorySample]{}}}
	b.Choose(workloads())
	err = b.Steps(ctx, b.Build, b.SettleBesideServers, run.startCluster, run.rounds)
	b.Report.Workloads = nil // they have a table of their own
	return run.out, err
}

// startCluster starts an API server with the pods.
func (b *run) startCluster(ctx context.Context) (err error) {
	if b.API, err = apiserver.Open(ctx, b.Dir); err != nil {
		return err
	}
	b.Kubeconfig = b.API.Kubeconfig(apiserver.Agent)
	if err := createPods(ctx, b.API, len(b.sources())); err != nil {
		return fmt.Errorf("writing pods: %w", err)
	}
	return b.WriteQueries()
}

// sources are the pods' addresses.
func (b *run) sources() (list []netip.Addr) {
	for i := range b.Number(podCount) {
		list = append(list, podAddr(i))
	}
	return list
}

// rounds measures everything again and again.
func (b *run) rounds(ctx context.Context) error {
	k, err := b.openKernel(ctx)
	if err != nil {
		return err
	}
	if k != nil {
		defer k.close()
	}
	for n := range b.Plan.Rounds {
		if len(b.Workloads) > 0 {
			err = b.withPair(ctx, n, b.start, b.measureQueries)
		}
		if err == nil && k != nil {
			err = b.measureKernel(ctx, k, n)
		}
		if err == nil && b.Only.MatchesName("memory") {
			err = b.withPair(ctx, n, b.start, b.measureMemory)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pair is an agent of each row, in their order.
type pair struct {
	agents [2]*harness.RunningServer
	round  int
	// answered is how many queries each has answered.
	answered [2]uint64
}

// start starts the agent of a row.
func (b *run) start(ctx context.Context, at int) (*harness.RunningServer, error) {
	return b.Start(ctx, b.Rows[at], true)
}

// withPair starts a pair of agents, calls measure with it and stops it. Every other round starts the second one
// first.
func (b *run) withPair(ctx context.Context, round int, start func(context.Context, int) (*harness.RunningServer, error), measure func(context.Context, *pair) error) error {
	p := &pair{round: round}
	for i := range p.agents {
		at := i ^ round%2
		r, err := start(ctx, at)
		if err != nil {
			return err
		}
		defer r.Stop()
		p.agents[at] = r
	}
	err := measure(ctx, p)
	for _, r := range p.agents {
		if err != nil {
			err = r.Explain(err)
		}
	}
	return err
}

// measureQueries measures all workloads.
func (b *run) measureQueries(ctx context.Context, p *pair) error {
	for _, w := range b.Workloads {
		samples, err := b.sample(ctx, p, w)
		if err != nil {
			return fmt.Errorf("measuring %s: %w", w.Name, err)
		}
		for i, s := range samples {
			b.add(p.agents[i].Name, w, p.round, s)
		}
	}
	return p.checkCounts(ctx)
}

// add adds a sample to the report.
func (b *run) add(row string, w harness.Workload, round int, s harness.Sample) {
	b.Add(harness.Cell{Server: row, Workload: w.Name}, round, s, fmt.Sprintf("%.3f µs, %.0f queries/s", s.CPUPerQuery(), s.PerSecond()))
}

// turn is which agent the i-th slice of a round is for: one, the other one twice, and so on. Every other round
// begins with the other one.
func turn(i, round int) int { return (i+1)/2%2 ^ round%2 }

// sample makes one measurement of each agent, again if queries are lost.
func (b *run) sample(ctx context.Context, p *pair, w harness.Workload) (s [2]harness.Sample, err error) {
	for range harness.MaxAttempts {
		if s, err = b.attempt(ctx, p, w); err == nil || ctx.Err() != nil {
			break
		}
	}
	return s, err
}

func (b *run) attempt(ctx context.Context, p *pair, w harness.Workload) (sums [2]harness.Sample, err error) {
	if err := b.fillCaches(ctx, p, w); err != nil {
		return sums, err
	}
	if b.settle != nil {
		if err := b.settle(ctx); err != nil {
			return sums, err
		}
	}
	if w.Tool == harness.FixedRate {
		return b.askBoth(ctx, p, w)
	}
	for i := range 2 * b.Number(numSlices) {
		at := turn(i, p.round)
		s, err := b.ask(ctx, p, at, b.stream(w, p, at), b.Length/numSlices)
		if err == nil {
			err = s.Check(dns.RcodeToString[w.Rcode])
		}
		if err != nil {
			return sums, err
		}
		sums[at] = sums[at].Plus(s)
	}
	return sums, nil
}

// stream asks one of the agents for the names of a workload, which every pod asks in turn, or one pod alone.
func (b *run) stream(w harness.Workload, p *pair, at int) load.Stream {
	from := b.sources()
	if w.LoadShape.Name == onePodShape.Name {
		from = from[:1]
	}
	s := load.Stream{Server: harness.LoopbackAddr(p.agents[at].Any().Port), Sources: from, Sockets: len(from), Rate: w.Rate, Window: len(from)}
	for i := range w.Count() {
		m := new(dns.Msg).SetQuestion(w.Question(i), w.Qtype)
		packet, err := m.Pack()
		if err != nil {
			panic(err) // the names are constants
		}
		s.Questions = append(s.Questions, packet)
	}
	return s
}

// fillCaches asks both agents for all names until they don't ask the upstream.
func (b *run) fillCaches(ctx context.Context, p *pair, w harness.Workload) error {
	const maxPasses = 5
	for at := range p.agents {
		s := b.stream(w, p, at)
		s.Rate, s.Count = 0, w.Count()
		for range maxPasses {
			before := b.Loop.Asked()
			if _, err := b.ask(ctx, p, at, s, 0); err != nil {
				return err
			}
			if b.Loop.Asked() == before {
				break
			}
		}
	}
	return nil
}

// ask has the stream ask an agent, for a time unless it has a count.
func (b *run) ask(ctx context.Context, p *pair, at int, s load.Stream, length time.Duration) (harness.Sample, error) {
	samples, err := b.measure(ctx, p, []int{at}, []load.Stream{s}, length)
	if err != nil {
		return harness.Sample{}, err
	}
	return samples[0], nil
}

// askBoth asks both agents at the same time.
func (b *run) askBoth(ctx context.Context, p *pair, w harness.Workload) (s [2]harness.Sample, err error) {
	first := p.round % 2
	order := []int{first, 1 - first}
	list, err := b.measure(ctx, p, order, []load.Stream{b.stream(w, p, order[0]), b.stream(w, p, order[1])}, steadyLength*b.Length)
	if err != nil {
		return s, err
	}
	for i, at := range order {
		if err := list[i].Check(dns.RcodeToString[w.Rcode]); err != nil {
			return s, err
		}
		s[at] = list[i]
	}
	return s, nil
}

// measure runs the streams, each of which asks the agent with the number at its place in agents.
func (b *run) measure(ctx context.Context, p *pair, agents []int, streams []load.Stream, length time.Duration) ([]harness.Sample, error) {
	job := load.LoopJob{Length: length, Streams: streams}
	if streams[0].Count == 0 {
		if job = b.Job(job); !b.Short {
			job.Length = length
		}
	}
	list := make([]harness.Sample, len(agents))
	for i, at := range agents {
		var err error
		if list[i].CPU, err = machine.CPUClock(p.agents[at].Any().PID()); err != nil {
			return nil, err
		}
	}
	results, err := b.Loop.Run(ctx, job)
	if err != nil {
		return nil, err
	}
	for i, at := range agents {
		after, err := machine.CPUClock(p.agents[at].Any().PID())
		if err != nil {
			return nil, err
		}
		list[i].CPU = after - list[i].CPU
		slices.Sort(results[i].Latencies)
		list[i].LoadResult, list[i].Latencies = harness.ToLoadResult(results[i]), results[i].Latencies
		p.answered[at] += list[i].Completed
	}
	return list, nil
}
