// Package failover measures the section about agents that are replaced or fail. A pod in a network
// namespace sends queries while a fault is injected into the agent of its node; the report says how
// many were lost and how long the pod had no answer, beside CoreDNS behind the rules of NodeLocal
// DNSCache.
package failover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/load"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// servers are the rows of the section about an agent that goes away: nodens in both ways
// of making rules, and CoreDNS behind NodeLocal DNSCache's rules. Node-cache itself, which
// is CoreDNS with code that makes those rules, is no module that can be built.
func servers() []harness.Server {
	return []harness.Server{
		{Name: "nodens, iptables", Program: "nodens"},
		{Name: "nodens, nftables", Program: "nodens"},
		{Name: "CoreDNS, NodeLocal's rules", Program: "coredns"},
	}
}

// proxyModeOf is kube-proxy's way in the row.
func proxyModeOf(s harness.Server) string {
	if strings.HasSuffix(s.Name, "nftables") {
		return testbed.ProxyNftables
	}
	return testbed.ProxyIptablesNft
}

// Result is what one fault has done to clients.
type Result struct {
	*load.Report
	// began is when the fault began: all names are known by then.
	began time.Time
	// Gone is when the process had ended, and spawned when the next one was started;
	// zero if there was none.
	Gone, spawned time.Time
	// hitChange is by how much the part of cache hits differs after an upgrade; below zero
	// it has not been measured.
	hitChange float64
	// tracked is how many connections of port 53 were tracked before the fault.
	tracked int
}

func (h Result) Lost() float64           { return float64(h.All().Lost) }
func (h Result) servfails() float64      { return float64(h.All().Servfail + h.All().Other) }
func (h Result) clusterAnswers() float64 { return float64(h.All().Cluster) }
func (h Result) MaxSilence() float64     { return figures.Millis(h.LongestSilence) }
func (h Result) worstP99() float64       { return figures.Millis(h.WorstP99(h.began)) }
func (h Result) trackedConns() float64   { return float64(h.tracked) }

// LostAfterExit is how many questions over UDP, asked after the process was gone, got no
// answer.
func (h Result) LostAfterExit() float64 {
	if h.Gone.IsZero() {
		return 0
	}
	return float64(h.Between(h.Gone, h.End.Add(1)).Failed())
}

// timeToAnswer is the time from the start of the next process to the first question that it
// answered.
func (h Result) timeToAnswer() float64 {
	for _, r := range h.Runs {
		if r.Outcome == load.Local && r.Last.After(h.spawned) {
			return max(0, figures.Millis(r.First.Sub(h.spawned)))
		}
	}
	return figures.Millis(h.End.Sub(h.spawned))
}

// hitPoints is the difference of cache hits in points of a hundred.
func (h Result) hitPoints() float64 { return 100 * h.hitChange }

func (h Result) String() string {
	return fmt.Sprintf("%.0f lost, %.0f SERVFAIL, %.0f by the cluster DNS, at most %.1f ms without an answer, p99 %.1f ms; %d skipped, %d dropped by the client, %d by the machine",
		h.Lost(), h.servfails(), h.clusterAnswers(), h.MaxSilence(), h.worstP99(), h.Skipped, h.Dropped, h.Backlog)
}

// Run lets agents fail.
type Run struct {
	*harness.Run
	Out *Report
	// upgrades is how many upgrades there are in a row.
	upgrades int
	nodens   string     // the path of the agent
	mu       sync.Mutex // guards the report
}

// NewRun makes a run in which the agent stands so many upgrades in a row.
func NewRun(b *harness.Run, upgrades int) *Run {
	return &Run{Run: b, Out: &Report{b.Report, harness.Results[Result]{}}, upgrades: upgrades}
}

// Report is its result.
type Report struct {
	*harness.Report
	Results harness.Results[Result]
}

// Measure measures what clients see of an agent that is replaced, dies, hangs or
// loses its rules. Nothing that it started runs when it returns.
func Measure(ctx context.Context, p harness.Plan, upgrades int) (*Report, error) {
	if err := testbed.Usable(); err != nil {
		return nil, err
	}
	b, err := harness.New(p, servers())
	if err != nil {
		return nil, err
	}
	defer b.Close()
	run := NewRun(b, upgrades)
	b.Report.Facts = machine.Describe()
	for _, s := range b.Rows {
		if !b.Only.Server(s) {
			continue
		}
		if err := b.FindBinary(ctx, s); err != nil {
			return nil, err
		}
	}
	b.Report.Commit = harness.Commit()
	b.Report.LoadBefore = machine.LoadAverage()
	b.Report.Fact("pinning", "none: server, client and all else share the cores, as on a node")
	if err := run.MeasureFaults(ctx, Faults, b.Report.Servers, b.Plan.Rounds); err != nil {
		return nil, err
	}
	b.Report.NoteLoad()
	return run.Out, nil
}

// MeasureFaults injects every fault into every row, each in namespaces of its own. In the short form
// there is one round, rows run side by side, and a row has the same namespaces for all faults.
func (b *Run) MeasureFaults(ctx context.Context, list []Fault, rows []harness.Server, rounds int) error {
	if _, err := b.Nodens(ctx); err != nil {
		return err
	}
	if b.Short {
		var all []func() error
		for _, s := range rows {
			all = append(all, func() error { return b.measureRow(ctx, list, s) })
		}
		return b.RunAll(all)
	}
	for n := range rounds {
		for _, m := range list {
			for _, s := range rows {
				if !injects(b.Plan, m, s) {
					continue
				}
				h, err := b.inject(ctx, m, s)
				if err := b.add(m, s, fmt.Sprintf("round %d of %d", n+1, rounds), h, err); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Nodens returns the path of the agent. Every node has agents as its upstream and its cluster DNS.
func (b *Run) Nodens(ctx context.Context) (path string, err error) {
	b.nodens = cmp.Or(b.nodens, b.BinaryOf(harness.Server{Program: "nodens"}))
	if b.nodens == "" {
		b.nodens, err = peer.Binary(ctx, "nodens", b.Dir)
	}
	return b.nodens, err
}

// measureRow injects faults into a server, one after the other. While clients wait for their last
// answers, the next fault is injected.
func (b *Run) measureRow(ctx context.Context, list []Fault, s harness.Server) error {
	st, err := b.startNode(s)
	if st != nil {
		defer st.close()
	}
	if err != nil {
		return err
	}
	var finish []func() error
	for _, m := range list {
		if !injects(b.Plan, m, s) {
			continue
		}
		// Clients of the last fault may have asked the cluster's DNS.
		if _, err := st.In(st.Node, "conntrack", "-F"); err != nil {
			return err
		}
		report, err := b.injectInto(ctx, m, st)
		finish = append(finish, func() error {
			h, stopped := report()
			return b.add(m, s, "short form", h, errors.Join(err, stopped))
		})
		if err != nil && !errors.Is(err, testbed.ErrNoMemoryGroup) {
			break
		}
	}
	return b.RunAll(finish)
}

// shortFaults are the faults that the short form injects into every server, because they depend on
// its rules. It injects all others only into the server with nftables' rules.
var shortFaults = []string{upgraded, Killed, Hung, rulesFlushed}

// injects reports whether the fault is injected into the server.
func injects(p harness.Plan, m Fault, s harness.Server) bool {
	if s.Program == m.unsupported || !p.Only.MatchesName(m.Name) {
		return false
	}
	return !p.Short || proxyModeOf(s) == testbed.ProxyNftables || slices.Contains(shortFaults, m.Name)
}

// add adds a result, or why there is none, to the report. It is safe for concurrent use.
func (b *Run) add(m Fault, s harness.Server, round string, h Result, err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if errors.Is(err, testbed.ErrNoMemoryGroup) {
		b.Omit(harness.Server{Name: s.Name + ", " + m.Name}, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("measuring %s, %s: %w", s.Name, m.Name, err)
	}
	at := harness.Cell{Server: s.Name, Workload: m.Name}
	b.Out.Results[at] = append(b.Out.Results[at], h)
	fmt.Fprintf(b.Progress, "%s, %s, %s: %s\n", round, m.Name, s.Name, h)
	return nil
}

// inject injects a fault into a server under load, on a node of its own.
func (b *Run) inject(ctx context.Context, m Fault, s harness.Server) (Result, error) {
	st, err := b.startNode(s)
	if st != nil {
		defer st.close()
	}
	if err != nil {
		return Result{}, err
	}
	report, err := b.injectInto(ctx, m, st)
	h, stopped := report()
	return h, errors.Join(err, stopped)
}

// injectInto injects a fault into the server of a node under load. The load has ended when it returns;
// report waits for the last answers.
func (b *Run) injectInto(ctx context.Context, m Fault, st *node) (report func() (Result, error), err error) {
	var h Result
	report = func() (Result, error) { return h, nil }
	self, err := os.Executable()
	if err != nil {
		return report, err
	}
	if err := st.WarmCache(b.loadJob(), self); err != nil {
		return report, err
	}
	then, err := st.CacheStats()
	if err != nil {
		return report, err
	}
	asking, err := st.StartLoad(b.loadJob(), self)
	if err != nil {
		return report, err
	}
	h.hitChange = -1
	err = errors.Join(st.awaitCached(ctx, then), harness.Sleep(ctx, b.Length))
	if err == nil {
		err = st.countTracked(&h)
	}
	if err == nil {
		h.began = time.Now()
		err = m.run(ctx, st, &h)
	}
	if err == nil {
		err = harness.Sleep(ctx, b.Length)
	}
	asking.EndLoad()
	return sync.OnceValues(func() (Result, error) {
		var stopped error
		h.Report, stopped = asking.Wait()
		return h, stopped
	}), err
}

// shortTimeout is how long the clients of the short form wait for an answer. They count what is lost
// on a machine that may be busy; the agent gives up on its upstream after five seconds.
const shortTimeout = 6 * time.Second

// loadJob returns the load of a node's pods; in the short form of a few clients.
func (b *Run) loadJob() load.Job {
	j := testbed.LoadJob(testbed.Service4)
	if b.Short {
		j.Names, j.Rate, j.Sockets, j.QueriesPerSocket, j.Timeout = 50, 400, 16, 16, shortTimeout
		j.Streams, j.StreamRate, j.OneShots = 2, 20, 20
	}
	return j
}
