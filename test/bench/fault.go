package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	client "github.com/nodens-dns/nodens/test/node/load"
	"github.com/nodens-dns/nodens/test/node/testbed"
)

// faultServers are the rows of the section about an agent that goes away: nodens in both ways
// of making rules, and CoreDNS behind NodeLocal DNSCache's rules. Node-cache itself, which
// is CoreDNS with code that makes those rules, is no module that can be built.
func faultServers() []server {
	return []server{
		{name: "nodens, iptables", program: "nodens"},
		{name: "nodens, nftables", program: "nodens"},
		{name: "CoreDNS, NodeLocal's rules", program: "coredns"},
	}
}

// proxyModeOf is kube-proxy's way in the row.
func proxyModeOf(s server) string {
	if strings.HasSuffix(s.name, "nftables") {
		return testbed.Nftables
	}
	return testbed.Iptables
}

// faultResult is what one mishap has done to clients.
type faultResult struct {
	*client.Report
	// began is when the mishap began: all names are known by then.
	began time.Time
	// gone is when the process had ended, and spawned when the next one was started;
	// zero if there was none.
	gone, spawned time.Time
	// hitChange is by how much the part of cache hits differs after an upgrade; below zero
	// it has not been measured.
	hitChange float64
	// tracked is how many connections of port 53 were tracked before the mishap.
	tracked int
}

func (h faultResult) lost() float64           { return float64(h.All().Lost) }
func (h faultResult) servfails() float64      { return float64(h.All().Servfail + h.All().Other) }
func (h faultResult) clusterAnswers() float64 { return float64(h.All().Cluster) }
func (h faultResult) silence() float64        { return millis(h.Silence) }
func (h faultResult) worstP99() float64       { return millis(h.WorstP99(h.began)) }
func (h faultResult) trackedConns() float64   { return float64(h.tracked) }

// lostAfterExit is how many questions over UDP, asked after the process was gone, got no
// answer.
func (h faultResult) lostAfterExit() float64 {
	if h.gone.IsZero() {
		return 0
	}
	return float64(h.Between(h.gone, h.End.Add(1)).Failed())
}

// timeToAnswer is the time from the start of the next process to the first question that it
// answered.
func (h faultResult) timeToAnswer() float64 {
	for _, r := range h.Runs {
		if r.Outcome == client.Local && r.Last.After(h.spawned) {
			return max(0, millis(r.First.Sub(h.spawned)))
		}
	}
	return millis(h.End.Sub(h.spawned))
}

// hitPoints is the difference of cache hits in points of a hundred.
func (h faultResult) hitPoints() float64 { return 100 * h.hitChange }

func (h faultResult) String() string {
	return fmt.Sprintf("%.0f lost, %.0f SERVFAIL, %.0f by the cluster's DNS, at most %.1f ms without an answer, p99 %.1f ms; %d skipped, %d dropped by the client, %d by the machine",
		h.lost(), h.servfails(), h.clusterAnswers(), h.silence(), h.worstP99(), h.Skipped, h.Dropped, h.Backlog)
}

// faultRun lets agents fail.
type faultRun struct {
	*Run
	out *faultReport
	// upgrades is how many upgrades there are in a row.
	upgrades int
}

// newFaultRun makes a run in which the agent stands so many upgrades in a row.
func newFaultRun(b *Run, upgrades int) *faultRun {
	return &faultRun{b, &faultReport{b.report, map[cell][]faultResult{}}, upgrades}
}

// faultReport is its result.
type faultReport struct {
	*report
	results map[cell][]faultResult
}

// measureFaults measures what clients see of an agent that is replaced, dies, hangs or
// loses its rules. Nothing that it started runs when it returns.
func measureFaults(ctx context.Context, p plan, upgrades int) (*faultReport, error) {
	if err := testbed.Usable(); err != nil {
		return nil, err
	}
	b, err := New(p, faultServers())
	if err != nil {
		return nil, err
	}
	defer b.close()
	run := newFaultRun(b, upgrades)
	b.report.facts = describeMachine()
	for _, s := range b.rows {
		if !b.only.server(s) {
			continue
		}
		if err := b.findBinary(ctx, s); err != nil {
			return nil, err
		}
	}
	b.report.commit = commit()
	b.report.loadBefore = loadAverage()
	b.report.fact("pinning", "none: server, client and all else share the cores, as on a node")
	if err := run.measureFaultsOf(ctx, faults, b.report.servers, b.plan.rounds); err != nil {
		return nil, err
	}
	b.report.fact("load average", b.report.loadBefore+" before, "+loadAverage()+" after")
	return run.out, nil
}

// measureFaultsOf has every mishap befall every row, each in namespaces of its own.
func (b *faultRun) measureFaultsOf(ctx context.Context, list []fault, rows []server, rounds int) error {
	for n := range rounds {
		for _, m := range list {
			if !b.only.matchesName(m.name) {
				continue
			}
			for _, s := range rows {
				if s.program == m.unsupported {
					continue
				}
				h, err := b.inject(ctx, m, s)
				if errors.Is(err, testbed.ErrNoGroup) {
					b.omit(server{name: s.name + ", " + m.name}, err)
					continue
				}
				if err != nil {
					return fmt.Errorf("measuring %s, %s: %w", s.name, m.name, err)
				}
				at := cell{s.name, m.name}
				b.out.results[at] = append(b.out.results[at], h)
				fmt.Fprintf(b.progress, "round %d of %d, %s, %s: %s\n", n+1, rounds, m.name, s.name, h)
			}
		}
	}
	return nil
}

// inject has a mishap befall a server under load.
func (b *faultRun) inject(ctx context.Context, m fault, s server) (h faultResult, err error) {
	st, err := b.startNode(s)
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
	h.hitChange = -1
	err = errors.Join(st.awaitCached(ctx), sleep(ctx, b.length))
	if err == nil {
		err = st.countTracked(&h)
	}
	if err == nil {
		h.began = time.Now()
		err = m.run(ctx, st, &h)
	}
	if err == nil {
		err = sleep(ctx, b.length)
	}
	report, stopped := asking.Stop()
	h.Report = report
	return h, errors.Join(err, stopped)
}
