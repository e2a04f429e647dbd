package node

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
	"github.com/nodens-dns/nodens/test/rig/load"
	"github.com/nodens-dns/nodens/test/rig/testbed"
	"github.com/nodens-dns/nodens/test/soak"
)

// podLoad returns the load of the pods of a busy node in the long form, and a fourth of it
// otherwise: tests run beside each other then. Before they are cached, so many names may wait for
// an upstream that a busy machine delays, without being too many for one pod.
func podLoad() load.Job {
	j := testbed.LoadJob(local4, testbed.Service4)
	if !soak.Enabled() {
		j.Rate, j.Names, j.Sockets, j.Streams, j.OneShots = 2000, 400, 64, 4, 50
	}
	return j
}

// podPackets is podLoad without TCP, for agents that die: a connection ends with its process.
func podPackets() load.Job {
	j := podLoad()
	j.Streams, j.OneShots = 0, 0
	return j
}

// startLoad starts a client in the pod; stop stops it, logs its report and returns it.
func (l *network) startLoad(j load.Job) (stop func() *load.Report) {
	l.t.Helper()
	j.Timeout = answerTimeout
	c, err := l.StartLoad(j, os.Args[0])
	if err != nil {
		l.t.Fatal(err)
	}
	stopped := false
	l.t.Cleanup(func() {
		if !stopped {
			_, _ = c.Stop()
		}
	})
	return func() *load.Report {
		l.t.Helper()
		stopped = true
		r, err := c.Stop()
		if err != nil {
			l.t.Fatal(err)
		}
		l.t.Log(r)
		for i, run := range r.Runs {
			if run.Outcome != load.Local && i < loggedRuns {
				l.t.Logf("%s: %d, asked from %v to %v", run.Outcome, run.Count, run.First.Sub(r.Start), run.Last.Sub(r.Start))
			}
		}
		if r.Dropped > 0 {
			l.t.Errorf("the client lost %d packets itself", r.Dropped)
		}
		return r
	}
}

const (
	// answerTimeout is how long a test waits for an answer: these count what is lost, not how
	// long things take on a machine that may be busy. The agent gives up on its upstream
	// after five seconds.
	answerTimeout = 10 * time.Second
	// loggedRuns is how many runs of a report a test looks at for its log.
	loggedRuns = 50
)

// enoughLookups is how many look-ups ask for all names of the load at least twice.
func enoughLookups() float64 { return soak.Choose(1500.0, 12_000) }

// scrapeInterval is the time between two scrapes: each takes a millisecond or two of the cores of
// those that are tested.
const scrapeInterval = 250 * time.Millisecond

// waitForLookups waits until there have been enough look-ups since then, and gives them.
func (l *network) waitForLookups(p *peer.Process, then testbed.CacheStats) (now testbed.CacheStats) {
	l.t.Helper()
	p.Must(l.t, "look-ups in the cache", func(context.Context) error {
		c, err := l.CacheStats()
		if now = c.Since(then); err == nil && now.Requests < enoughLookups() {
			err = fmt.Errorf("%.0f so far", now.Requests)
			time.Sleep(scrapeInterval)
		}
		return err
	})
	return now
}

// TestUpgrades: agents take over from one another under load, some in quick succession. No query is lost
// or answered with SERVFAIL, none goes to the cluster DNS, and each agent inherits the cache: the
// upstream is not asked again for names that are cached.
func TestUpgrades(t *testing.T) {
	t.Parallel()
	l := newNetwork(t)
	l.addKubeProxy(testbed.ProxyIptablesNft)
	args := l.allAddrArgs()
	repeated := l.countRepeatedNames()
	p := l.startAgentWith(args...)
	job := podLoad()
	stop := l.startLoad(job)
	l.waitForLookups(p, testbed.CacheStats{}) // until all names are cached
	before := repeated()
	upgrades, pauseEvery := soak.Choose(4, 20), soak.Choose(3, 5)
	for n := range upgrades {
		p = l.upgrade(p, n, args)
		if n%pauseEvery == 0 {
			l.waitForLookups(p, testbed.CacheStats{}) // a new agent counts from zero
		}
	}
	r := stop()
	if all := r.All(); all.Asked == 0 || all.Local != all.Asked {
		t.Errorf("after %d upgrades: %+v", upgrades, all)
	}
	// An agent with an empty cache asks for all of them. One with a full cache may have
	// evicted some before they are used.
	again := repeated() - before
	t.Logf("cached names that the upstream was asked for: %d", again)
	if again > upgrades*job.Names/10 {
		t.Errorf("in %d upgrades the upstream was asked for %d names that were cached, of %d", upgrades, again, job.Names)
	}
}

// upgrade starts the agent that takes over from p, which is the n-th, and waits for the end of p. Every
// second agent is stopped, as by the kubelet; outside a pod the others end by themselves.
func (l *network) upgrade(p *peer.Process, n int, args []string) (next *peer.Process) {
	l.t.Helper()
	next = l.startAgentWith(args...)
	if n%2 == 0 {
		if err := p.Signal(syscall.SIGTERM); err != nil {
			l.t.Fatal(err)
		}
	}
	if err := p.Err(); err != nil {
		l.t.Fatalf("agent %d ended with %v and wrote:\n%s", n, err, p.Tail())
	}
	return next
}

// countRepeatedNames gives the agents an upstream that counts the queries for the names of the load that
// are asked for again and again.
func (l *network) countRepeatedNames() (asked func() int) {
	l.t.Helper()
	var n atomic.Int64
	l.startOwnUpstream(func(q *dns.Msg) *dns.Msg {
		if strings.HasPrefix(q.Question[0].Name, "name-") {
			n.Add(1)
		}
		return fakedns.Address(q, 3600, testbed.FromAgent.String())
	})
	l.useOwnUpstream()
	return func() int { return int(n.Load()) }
}

// ownUpstreamPort is the port of a test's own upstream.
const ownUpstreamPort = "5301"

// startOwnUpstream starts an upstream in its namespace.
func (l *network) startOwnUpstream(reply func(*dns.Msg) *dns.Msg) {
	l.t.Helper()
	at := netip.MustParseAddrPort(net.JoinHostPort(upstreamIP, ownUpstreamPort))
	var s *fakedns.Server
	err := testbed.InNamespace(l.upstream, func() (err error) {
		s, err = fakedns.Open(fakedns.Answers(reply), fakedns.Options{Addr: at})
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(s.Close)
}

// useOwnUpstream makes agents forward to the test's own upstream.
func (l *network) useOwnUpstream() {
	l.t.Helper()
	conf, err := os.ReadFile(filepath.Join(l.dir, "Corefile"))
	if err != nil {
		l.t.Fatal(err)
	}
	l.file("Corefile", strings.Replace(string(conf), ":"+testbed.UpstreamPort, ":"+ownUpstreamPort, 1))
}

// TestKilledUnderLoad: the cluster DNS answers from the first query after a SIGKILL on. Only queries that
// the killed process had received, or that arrived while it died, are lost. The next agent answers as
// soon as it is ready.
func TestKilledUnderLoad(t *testing.T) {
	t.Parallel()
	for _, way := range append([]string{kernelPathCase}, testbed.ProxyModes...) {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			l := newNetwork(t)
			args := l.allAddrArgs()
			if way == kernelPathCase {
				if err := testbed.KernelPathUsable(); err != nil {
					t.Skip(err)
				}
				args, way = append(args, testbed.KernelPathFlag), testbed.ProxyIptablesNft
			}
			l.addKubeProxy(way)
			p := l.startAgentWith(args...)
			job := podPackets()
			stop := l.startLoad(job)
			l.waitForLookups(p, testbed.CacheStats{})
			killed := time.Now()
			p.Kill()
			gone := time.Now()
			back := l.startAgentWith(args...)
			ready := time.Now()
			l.waitForLookups(back, testbed.CacheStats{})
			r := stop()
			// Queries in the killed process's sockets, and those that it had forwarded, are
			// lost.
			if early := r.Between(r.Start, killed.Add(-answerTimeout)); early.Failed() > 0 {
				t.Errorf("before the kill: %+v", early)
			}
			if dead := r.Between(gone, ready); dead.Asked == 0 || dead.Failed() > 0 || dead.Cluster == 0 {
				t.Errorf("without an agent: %+v", dead)
			}
			if after := r.Between(ready, r.End); after.Asked == 0 || after.Local != after.Asked {
				t.Errorf("after the restart: %+v", after)
			}
			dying := uint64(gone.Sub(killed).Seconds()*float64(job.Rate)) + inFlight
			if r.UDP.Failed() > dying {
				t.Errorf("%d lost in all, want %d at most, of those that were asked within the %v of dying or were under way", r.UDP.Failed(), dying, gone.Sub(killed))
			}
		})
	}
}

// kernelPathCase is a case with kube-proxy and an agent that answers inside the kernel.
const kernelPathCase = "in the kernel"

// inFlight is how many unanswered queries a process may have: those in its socket buffers after a few
// hundredths of a second of a busy core, and those forwarded to an upstream.
const inFlight = 400

// TestSuccessorDies: when an agent dies at any step of a handover, only the queries that it has read are
// lost. The previous agent continues, and no query goes to the cluster DNS. The agents believe that they
// run in pods, where the previous agent waits for the kubelet to stop it, and so still runs when its
// successor dies at a late step.
func TestSuccessorDies(t *testing.T) {
	t.Parallel()
	l := newNetwork(t)
	l.addKubeProxy(testbed.ProxyIptablesNft)
	args, env := l.allAddrArgs(), []string{"KUBERNETES_SERVICE_HOST=192.0.2.1"}
	p := l.start(l.node, env, args...)
	p.Must(t, "the first agent to log that it serves", testbed.LogContains(p, "msg=serving"))
	stop := l.startLoad(podPackets())
	l.waitForLookups(p, testbed.CacheStats{})
	steps := []string{"taking over from the running agent", "answers were handed over", "rules set up", "took over"}
	for _, step := range steps {
		next := l.start(l.node, env, args...)
		next.Must(t, "the successor to log: "+step, testbed.LogContains(next, step))
		next.Kill()
		var then testbed.CacheStats
		p.Must(t, "the first agent's metrics", func(context.Context) (err error) {
			then, err = l.CacheStats()
			return err
		})
		l.waitForLookups(p, then)
		if !strings.Contains(l.listening(), fmt.Sprintf("pid=%d,", p.PID())) {
			t.Errorf("after the death at %q the first agent does not listen:\n%s", step, l.listening())
		}
	}
	// A handover still works.
	next := l.startAgentWith(args...)
	check.NoError(t, p.Signal(syscall.SIGTERM))
	if err := p.Err(); err != nil {
		t.Errorf("the first agent ended with %v", err)
	}
	l.waitForLookups(next, testbed.CacheStats{})
	r := stop()
	if all := r.All(); all.Asked == 0 || all.Cluster > 0 || all.Failed() > uint64(len(steps)*inFlight) {
		t.Errorf("%+v, want %d lost at most", all, len(steps)*inFlight)
	}
}

// listening returns the node's UDP sockets on port 53.
func (l *network) listening() string {
	l.t.Helper()
	return l.in(l.node, "ss", "-Hlnup", "sport", "=", ":53")
}
