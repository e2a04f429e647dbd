package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/outage"
	"github.com/nodens-dns/nodens/test/fakedns"
)

// failing is the part of a plan about upstreams that fail.
type failing struct {
	on bool
	// silence is how long all upstreams are silent.
	silence time.Duration
}

// usualSilence is what the report is about: a cluster DNS that is rolled out anew, or a
// resolver that is restarted by hand.
const usualSilence = time.Minute

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

// trial is what became of the questions to one server in one outage.
type trial struct {
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

func (t trial) soon() float64  { return millis(percentile(t.early, 0.99)) }
func (t trial) after() float64 { return millis(percentile(t.late, 0.99)) }
func (t trial) worst() float64 {
	return millis(max(percentile(t.early, 1), percentile(t.late, 1)))
}
func (t trial) wrong() float64 { return float64(t.failed) }

// price is the server's CPU per question, in microseconds.
func (t trial) price() float64 {
	return float64(t.cpu.Nanoseconds()) / 1e3 / float64(max(t.asked, 1))
}

func (t trial) String() string {
	return fmt.Sprintf("%d of %d failed, p99 %.1f and then %.1f ms, at most %.1f, %d questions to upstreams, %d connections, %.1f µs",
		t.failed, t.asked, t.soon(), t.after(), t.worst(), t.upstream, t.conns, t.price())
}

// measureOutages measures what upstreams that fail do to clients. Nothing that it
// started runs when it returns.
func measureOutages(ctx context.Context, p plan) (*report, error) {
	b, err := newBench(p, outageServers())
	if err != nil {
		return nil, err
	}
	defer b.close()
	b.report.trials = map[cell][]trial{}
	for _, step := range []func(context.Context) error{b.build, b.besideServers, b.outages} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	b.report.fact("load average", b.report.loadBefore+" before, "+loadAverage()+" after")
	return b.report, nil
}

// besideServers leaves the servers' core to them.
func (b *bench) besideServers(context.Context) error {
	b.settled = true
	if err := settle(b.load); err != nil {
		return err
	}
	var err error
	b.loop, b.stream, err = startUpstream()
	return err
}

// outages puts every server through every outage in turn, again and again, each in a
// process of its own, while no other runs.
func (b *bench) outages(ctx context.Context) error {
	for n := range b.plan.rounds {
		for _, o := range ordeals {
			if !b.only.named(o.name) {
				continue
			}
			for _, s := range b.report.servers {
				if o.fails != "" && s.program == o.fails {
					continue
				}
				t, err := o.run(ctx, b, s)
				if err != nil {
					return fmt.Errorf("measuring %s, %s: %w", s.name, o.name, err)
				}
				at := cell{s.name, o.name}
				b.report.trials[at] = append(b.report.trials[at], t)
				fmt.Fprintf(b.progress, "round %d of %d, %s, %s: %s\n", n+1, b.plan.rounds, o.name, s.name, t)
			}
		}
	}
	return nil
}

// upstreams starts n upstreams alike; the caller calls the function it gets.
func upstreams(n int, o outage.Options) (list []*fakedns.Server, closeAll func(), err error) {
	closeAll = func() {
		for _, u := range list {
			u.Close()
		}
	}
	for range n {
		u, err := outage.Open(o)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		list = append(list, u)
	}
	return list, closeAll, nil
}

// through starts the server with the upstreams behind it. The caller stops it.
func (b *bench) through(ctx context.Context, s server, with settings, list ...*fakedns.Server) (process, error) {
	for _, u := range list {
		with.to = append(with.to, u.Addr())
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
		_, _, err := c.ExchangeContext(ctx, q, local(p.port).String())
		return err
	})
	if err != nil {
		p.Stop()
	}
	return p, err
}

func local(p port) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(p))
}

// authority writes the certificate of the upstreams over TLS to a file.
func (b *bench) authority(pem []byte) (string, error) {
	path := filepath.Join(b.dir, "upstream.pem")
	return path, os.WriteFile(path, pem, 0o644)
}

// endure fills the placeholders of an outage's configuration in: unbound's, or a Corefile.
func (s settings) endure(text string) string {
	if strings.Contains(text, "forward-zone:") {
		return s.endureUnbound(text)
	}
	var to []string
	stale, secure := s.stale, ""
	for _, u := range s.to {
		if s.ca != "" {
			to = append(to, "tls://"+u.String())
		} else {
			to = append(to, u.String())
		}
	}
	if s.ca != "" {
		secure = "tls " + s.ca + "\n        tls_servername " + outage.Host
	}
	return strings.NewReplacer("@TO@", strings.Join(to, " "), "@STALE@", "        "+stale, "@TLS@", "        "+secure).Replace(text)
}

func (s settings) endureUnbound(text string) string {
	var to []string
	stale, secure, name := "", "", ""
	if s.ca != "" {
		name = "#" + outage.Host
		secure = "    tls-cert-bundle: " + s.ca
		to = append(to, "    forward-tls-upstream: yes")
	}
	for _, u := range s.to {
		to = append(to, fmt.Sprintf("    forward-addr: %s@%d%s", u.Addr(), u.Port(), name))
	}
	if s.stale != "" {
		stale = "    serve-expired: yes\n    serve-expired-ttl: 3600\n    serve-expired-client-timeout: 1800"
	}
	return strings.NewReplacer("@TO@", strings.Join(to, "\n"), "@STALE@", stale, "@TLS@", secure).Replace(text)
}
