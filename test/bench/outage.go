package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/fakedns"
)

// defaultSilence is how long a rollout of the cluster's DNS takes, or a restart of a resolver by
// hand.
const defaultSilence = time.Minute

// outageServers are the servers whose upstreams fail. unbound is asked to serve what
// has expired as RFC 8767 has it, as nodens does; CoreDNS has no such mode, and serves
// it at once.
func outageServers() []server {
	return []server{
		{name: "nodens", program: "nodens", conf: "outage"},
		{name: "CoreDNS", program: "coredns", conf: "outage"},
		{name: "unbound", program: "unbound", conf: "outage-unbound"},
	}
}

// outageResult is what became of the questions to one server in one outage.
type outageResult struct {
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

func (t outageResult) p99Early() float64 { return millis(percentile(t.early, 0.99)) }
func (t outageResult) p99Late() float64  { return millis(percentile(t.late, 0.99)) }
func (t outageResult) maxLatency() float64 {
	return millis(max(percentile(t.early, 1), percentile(t.late, 1)))
}
func (t outageResult) failures() float64 { return float64(t.failed) }

// cpuPerQuery is the server's CPU per question, in microseconds.
func (t outageResult) cpuPerQuery() float64 {
	return float64(t.cpu.Nanoseconds()) / 1e3 / float64(max(t.asked, 1))
}

func (t outageResult) String() string {
	return fmt.Sprintf("%d of %d failed, p99 %.1f and then %.1f ms, at most %.1f, %d questions to upstreams, %d connections, %.1f µs",
		t.failed, t.asked, t.p99Early(), t.p99Late(), t.maxLatency(), t.upstream, t.conns, t.cpuPerQuery())
}

// outageRun lets upstreams fail.
type outageRun struct {
	*Run
	out *outageReport
	// silence is how long all upstreams are silent; with less than five seconds all outages
	// are as short.
	silence time.Duration
}

// outageReport is its result.
type outageReport struct {
	*report
	results map[cell][]outageResult
}

// measureOutages measures what upstreams that fail do to clients. Nothing that it
// started runs when it returns.
func measureOutages(ctx context.Context, p plan, silence time.Duration) (*outageReport, error) {
	b, err := New(p, outageServers())
	if err != nil {
		return nil, err
	}
	defer b.close()
	run := &outageRun{b, &outageReport{b.report, map[cell][]outageResult{}}, silence}
	for _, step := range []func(context.Context) error{b.build, b.settleBesideServers, run.measureCases} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	b.report.fact("load average", b.report.loadBefore+" before, "+loadAverage()+" after")
	return run.out, nil
}

// measureCases puts every server through every outage in turn, again and again, each in a
// process of its own, while no other runs.
func (b *outageRun) measureCases(ctx context.Context) error {
	for n := range b.plan.rounds {
		for _, o := range outageCases {
			if !b.only.matchesName(o.name) {
				continue
			}
			for _, s := range b.report.servers {
				if o.unsupported != "" && s.program == o.unsupported {
					continue
				}
				t, err := o.run(ctx, b, s)
				if err != nil {
					return fmt.Errorf("measuring %s, %s: %w", s.name, o.name, err)
				}
				at := cell{s.name, o.name}
				b.out.results[at] = append(b.out.results[at], t)
				fmt.Fprintf(b.progress, "round %d of %d, %s, %s: %s\n", n+1, b.plan.rounds, o.name, s.name, t)
			}
		}
	}
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
func (b *outageRun) startWithUpstreams(ctx context.Context, s server, with settings, list ...*fakedns.Server) (process, error) {
	for _, u := range list {
		with.upstreams = append(with.upstreams, u.Addr())
	}
	p, err := b.spawn(s, with)
	if err != nil {
		return p, err
	}
	// A question of a class that it forwards nowhere: the first that reaches an
	// upstream is one that counts.
	q := new(dns.Msg).SetQuestion(".", dns.TypeTXT)
	q.Question[0].Qclass = dns.ClassHESIOD
	err = p.Await(ctx, "any answer", func(ctx context.Context) error {
		c := dns.Client{Timeout: time.Second}
		_, _, err := c.ExchangeContext(ctx, q, loopbackAddr(p.port).String())
		return err
	})
	if err != nil {
		p.Stop()
	}
	return p, err
}

// writeCA writes the certificate of the upstreams over TLS to a file.
func (b *outageRun) writeCA(pem []byte) (string, error) {
	path := filepath.Join(b.dir, "upstream.pem")
	return path, os.WriteFile(path, pem, 0o644)
}
