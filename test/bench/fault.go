package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	client "github.com/nodens-dns/nodens/test/node/load"
	"github.com/nodens-dns/nodens/test/node/testbed"
)

// guarded are the rows of the section about an agent that goes away: nodens in both ways
// of making rules, and CoreDNS behind NodeLocal DNSCache's rules. Node-cache itself, which
// is CoreDNS with code that makes those rules, is no module that can be built.
func guarded() []server {
	return []server{
		{name: "nodens, iptables", program: "nodens"},
		{name: "nodens, nftables", program: "nodens"},
		{name: "CoreDNS, NodeLocal's rules", program: "coredns"},
	}
}

// ways are kube-proxy's way in each row.
var ways = map[string]string{
	"nodens, iptables": testbed.ProxyIptablesNft, "nodens, nftables": testbed.ProxyNftables, "CoreDNS, NodeLocal's rules": testbed.ProxyIptablesNft,
	socketRow: testbed.ProxyIptablesNft, kernelRow: testbed.ProxyIptablesNft,
}

// harm is what one mishap has done to clients.
type harm struct {
	*client.Report
	// from is when the mishap began: all names are known by then.
	from time.Time
	// gone is when the process had ended, and spawned when the next one was started;
	// zero if there was none.
	gone, spawned time.Time
	// hits is by how much the part of cache hits differs after an upgrade; below zero
	// it has not been measured.
	hits float64
	// tracked is how many connections of port 53 were tracked before the mishap.
	tracked int
}

func (h harm) lost() float64     { return float64(h.All().Lost) }
func (h harm) servfail() float64 { return float64(h.All().Servfail + h.All().Other) }
func (h harm) away() float64     { return float64(h.All().Cluster) }
func (h harm) silence() float64  { return millis(h.LongestSilence) }
func (h harm) late() float64     { return millis(h.WorstP99(h.from)) }
func (h harm) traced() float64   { return float64(h.tracked) }

// unserved is how many questions over UDP, asked after the process was gone, got no
// answer.
func (h harm) unserved() float64 {
	if h.gone.IsZero() {
		return 0
	}
	return float64(h.Between(h.gone, h.End.Add(1)).Failed())
}

// back is the time from the start of the next process to the first question that it
// answered.
func (h harm) back() float64 {
	for _, r := range h.Runs {
		if r.Outcome == client.Local && r.Last.After(h.spawned) {
			return max(0, millis(r.First.Sub(h.spawned)))
		}
	}
	return millis(h.End.Sub(h.spawned))
}

// points is the difference of cache hits in points of a hundred.
func (h harm) points() float64 { return 100 * h.hits }

func (h harm) String() string {
	return fmt.Sprintf("%.0f lost, %.0f SERVFAIL, %.0f by the cluster's DNS, at most %.1f ms without an answer, p99 %.1f ms; %d skipped, %d dropped by the client, %d by the machine",
		h.lost(), h.servfail(), h.away(), h.silence(), h.late(), h.Skipped, h.Dropped, h.Backlog)
}

// measureFaults measures what clients see of an agent that is replaced, dies, hangs or
// loses its rules. Nothing that it started runs when it returns.
func measureFaults(ctx context.Context, p plan) (*report, error) {
	if err := testbed.Usable(); err != nil {
		return nil, err
	}
	b, err := newBench(p, guarded())
	if err != nil {
		return nil, err
	}
	defer b.close()
	b.report.harms = map[cell][]harm{}
	b.report.facts = machine()
	for _, s := range b.rows {
		if !b.only.server(s) {
			continue
		}
		if err := b.find(ctx, s); err != nil {
			return nil, err
		}
	}
	b.report.commit = commit()
	b.report.loadBefore = loadAverage()
	b.report.fact("pinning", "none: server, client and all else share the cores, as on a node")
	if err := b.faults(ctx, mishaps, b.report.servers, b.plan.rounds); err != nil {
		return nil, err
	}
	b.report.fact("load average", b.report.loadBefore+" before, "+loadAverage()+" after")
	return b.report, nil
}

// faults has every mishap befall every row, each in namespaces of its own.
func (b *bench) faults(ctx context.Context, list []mishap, rows []server, rounds int) error {
	for n := range rounds {
		for _, m := range list {
			if !b.only.named(m.name) {
				continue
			}
			for _, s := range rows {
				if s.program == m.fails {
					continue
				}
				h, err := b.befall(ctx, m, s)
				if errors.Is(err, testbed.ErrNoMemoryGroup) {
					b.leave(server{name: s.name + ", " + m.name}, err)
					continue
				}
				if err != nil {
					return fmt.Errorf("measuring %s, %s: %w", s.name, m.name, err)
				}
				at := cell{s.name, m.name}
				b.report.harms[at] = append(b.report.harms[at], h)
				fmt.Fprintf(b.progress, "round %d of %d, %s, %s: %s\n", n+1, rounds, m.name, s.name, h)
			}
		}
	}
	return nil
}

// befall has a mishap befall a server under load.
func (b *bench) befall(ctx context.Context, m mishap, s server) (h harm, err error) {
	st, err := b.stand(s)
	if st != nil {
		defer st.close()
	}
	if err != nil {
		return h, err
	}
	self, err := os.Executable()
	if err != nil {
		return h, err
	}
	asking, err := st.StartLoad(testbed.LoadJob(testbed.Service4), self)
	if err != nil {
		return h, err
	}
	h.hits = -1
	err = errors.Join(st.known(ctx), wait(ctx, b.length))
	if err == nil {
		err = st.observe(&h)
	}
	if err == nil {
		h.from = time.Now()
		err = m.run(ctx, st, &h)
	}
	if err == nil {
		err = wait(ctx, b.length)
	}
	report, stopped := asking.Stop()
	h.Report = report
	return h, errors.Join(err, stopped)
}
