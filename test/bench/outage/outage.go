// Package outage measures the section about upstreams that fail: what clients see while upstreams
// are dead, frozen or silent, and while the configuration changes under load.
package outage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// DefaultSilence is how long a rollout of the cluster's DNS takes, or a restart of a resolver by
// hand.
const DefaultSilence = time.Minute

// servers are the servers whose upstreams fail. unbound is asked to serve what
// has expired as RFC 8767 has it, as nodens does; CoreDNS has no such mode, and serves
// it at once.
func servers() []harness.Server {
	return []harness.Server{
		{Name: "nodens", Program: "nodens", Conf: "outage"},
		{Name: "CoreDNS", Program: "coredns", Conf: "outage"},
		{Name: "unbound", Program: "unbound", Conf: "outage-unbound"},
	}
}

// result is what became of the questions to one server in one outage.
type result struct {
	asked, failed int
	// early are the times that answers took in the first part of the outage, and late
	// those after it, both in ascending order. A question without an answer took as
	// long as it was waited for.
	early, late []time.Duration
	// upstream is how many questions the upstreams got, and conns how many
	// connections were open to them at once at most.
	upstream uint64
	conns    int
	cpu      time.Duration
}

func (t result) p99Early() float64 { return figures.Millis(figures.Percentile(t.early, 0.99)) }
func (t result) p99Late() float64  { return figures.Millis(figures.Percentile(t.late, 0.99)) }
func (t result) maxLatency() float64 {
	return figures.Millis(max(figures.Percentile(t.early, 1), figures.Percentile(t.late, 1)))
}
func (t result) failures() float64        { return float64(t.failed) }
func (t result) upstreamQueries() float64 { return float64(t.upstream) }
func (t result) connections() float64     { return float64(t.conns) }

// cpuPerQuery is the server's CPU per question, in microseconds.
func (t result) cpuPerQuery() float64 {
	return float64(t.cpu.Nanoseconds()) / 1e3 / float64(max(t.asked, 1))
}

func (t result) String() string {
	return fmt.Sprintf("%d of %d failed, p99 %.1f and then %.1f ms, at most %.1f, %d questions to upstreams, %d connections, %.1f µs",
		t.failed, t.asked, t.p99Early(), t.p99Late(), t.maxLatency(), t.upstream, t.conns, t.cpuPerQuery())
}

// run lets upstreams fail.
type run struct {
	*harness.Run
	out *Report
	// silence is how long all upstreams are silent; with less than five seconds all outages
	// are as short.
	silence time.Duration
	mu      sync.Mutex // guards out.results
}

// Report is its result.
type Report struct {
	*harness.Report
	results harness.Results[result]
}

// Measure measures what upstreams that fail do to clients. Nothing that it
// started runs when it returns.
func Measure(ctx context.Context, p harness.Plan, silence time.Duration) (*Report, error) {
	b, err := harness.New(p, servers())
	if err != nil {
		return nil, err
	}
	defer b.Close()
	run := &run{Run: b, out: &Report{b.Report, harness.Results[result]{}}, silence: silence}
	return run.out, b.Steps(ctx, b.Build, b.SettleBesideServers, run.measureCases)
}

// measureCases puts every server through every outage in turn, again and again, each in a
// process of its own, while no other runs. In the short form all are put through at once.
func (b *run) measureCases(ctx context.Context) error {
	var list []func() error
	for n := range b.Plan.Rounds {
		for _, o := range outageCases {
			if !b.Only.MatchesName(o.name) {
				continue
			}
			for _, s := range b.Report.Servers {
				if o.unsupported == "" || s.Program != o.unsupported {
					list = append(list, func() error { return b.measureCase(ctx, o, s, n) })
				}
			}
		}
	}
	return b.RunAll(list)
}

// measureCase puts a server through an outage.
func (b *run) measureCase(ctx context.Context, o testCase, s harness.Server, round int) error {
	t, err := o.run(ctx, b, s)
	if err != nil {
		return fmt.Errorf("measuring %s, %s: %w", s.Name, o.name, err)
	}
	at := harness.Cell{Server: s.Name, Workload: o.name}
	b.mu.Lock()
	b.out.results[at] = append(b.out.results[at], t)
	b.mu.Unlock()
	fmt.Fprintf(b.Progress, "round %d of %d, %s, %s: %s\n", round+1, b.Plan.Rounds, o.name, s.Name, t)
	return nil
}

// openUpstreams starts n upstreams alike; the caller calls the function it gets.
func openUpstreams(n int, o upstreamOptions) (list []*fakedns.Server, closeAll func(), err error) {
	closeAll = func() {
		for _, u := range list {
			u.Close()
		}
	}
	for range n {
		u, err := openUpstream(o)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		list = append(list, u)
	}
	return list, closeAll, nil
}

// startWithUpstreams starts the server with the upstreams behind it. The caller stops it.
func (b *run) startWithUpstreams(ctx context.Context, s harness.Server, with harness.Settings, list ...*fakedns.Server) (harness.Process, error) {
	for _, u := range list {
		with.Upstreams = append(with.Upstreams, u.Addr())
	}
	p, err := b.Spawn(s, with)
	if err != nil {
		return p, err
	}
	// A question of a class that it forwards nowhere: the first that reaches an
	// upstream is one that counts.
	q := new(dns.Msg).SetQuestion(".", dns.TypeTXT)
	q.Question[0].Qclass = dns.ClassHESIOD
	err = p.Await(ctx, "any answer", func(ctx context.Context) error {
		c := dns.Client{Timeout: time.Second}
		_, _, err := c.ExchangeContext(ctx, q, harness.LoopbackAddr(p.Port).String())
		return err
	})
	if err != nil {
		p.Stop()
	}
	return p, err
}

// writeCA writes the certificate of the upstreams over TLS to a file.
func (b *run) writeCA(pem []byte) (string, error) {
	f, err := os.CreateTemp(b.Dir, "upstream-*.pem")
	if err != nil {
		return "", err
	}
	_, err = f.Write(pem)
	return f.Name(), errors.Join(err, f.Close())
}
