package node

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/node/load"
	"github.com/nodens-dns/nodens/test/node/testbed"
	"github.com/nodens-dns/nodens/test/peer"
)

// usual is what the pods of a busy node ask, ten thousand questions a second in all: half
// of them at the link-local address and half at the ClusterIP, over UDP from ports that
// change, over TCP connections that stay and over some that don't. One in twenty over UDP
// is a name that has to be asked for upstream.
func usual() load.Job {
	return load.Job{
		Servers: []netip.AddrPort{netip.MustParseAddrPort(local4 + ":53"), netip.MustParseAddrPort(testbed.Service4 + ":53")},
		Local:   testbed.FromAgent, Cluster: testbed.FromCluster,
		Names: 5000, Fresh: 20, Zone: testbed.Zone + ".", Length: 5 * time.Minute,
		Rate: 9000, Sockets: 256, Reuse: 32, Streams: 8, StreamRate: 100, Shots: 200,
	}
}

// load starts a client in the pod; stop gives its report, which is logged.
func (l *lab) load(j load.Job) (stop func() *load.Report) {
	l.t.Helper()
	c, err := load.Start(j, "ip", "netns", "exec", l.pod, os.Args[0], "load")
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
		if r.Dropped > 0 {
			l.t.Errorf("the client lost %d packets itself", r.Dropped)
		}
		return r
	}
}

// tally is what an agent's metrics say of its cache.
type tally struct{ requests, hits float64 }

func (a tally) since(b tally) tally { return tally{a.requests - b.requests, a.hits - b.hits} }

// ratio is the part of the requests that were hits.
func (a tally) ratio() float64 { return a.hits / a.requests }

// counted reads them from whoever answers at the node's address for metrics.
func (l *lab) counted() (c tally, err error) {
	text, err := l.In(l.node, "curl", "-sf", "--max-time", "5", "http://127.0.0.1:9253/metrics")
	if err != nil {
		return c, err
	}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		for name, sum := range map[string]*float64{"coredns_cache_requests_total{": &c.requests, "coredns_cache_hits_total{": &c.hits} {
			if len(f) == 2 && strings.HasPrefix(f[0], name) {
				v, err := strconv.ParseFloat(f[1], 64)
				if err != nil {
					return c, err
				}
				*sum += v
			}
		}
	}
	return c, nil
}

// enough is how many look-ups say what part of them are hits: the names of the load once,
// and some.
const enough = 6000

// over waits until there have been enough look-ups since then, and gives them.
func (l *lab) over(p *peer.Process, then tally) (now tally) {
	l.t.Helper()
	p.Must(l.t, "look-ups in the cache", func(context.Context) error {
		c, err := l.counted()
		if now = c.since(then); err == nil && now.requests < enough {
			err = fmt.Errorf("%.0f so far", now.requests)
		}
		return err
	})
	return now
}

// TestUpgrades: twenty agents in a row, each of which takes over from the one before it,
// under load: not a question is lost or answered SERVFAIL, none goes to the cluster's
// DNS, and the next agent finds in the cache what the last one has found.
func TestUpgrades(t *testing.T) {
	upgrades := 20
	if testing.Short() {
		upgrades = 2
	}
	l := newLab(t)
	l.proxied(testbed.Iptables)
	args := l.everywhere()
	p := l.run(args...)
	stop := l.load(usual())
	l.over(p, tally{}) // all names are known
	worst := 0.0
	for n := range upgrades {
		then, err := l.counted()
		if err != nil {
			t.Fatal(err)
		}
		before := l.over(p, then)
		next := l.run(args...)
		if n%2 == 0 { // kubelet's way; an agent that is nobody's pod ends by itself
			if err := p.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Err(); err != nil {
			t.Fatalf("agent %d ended with %v and wrote:\n%s", n, err, p.Tail())
		}
		p = next
		// A new agent counts from zero.
		after := l.over(p, tally{})
		worst = max(worst, math.Abs(after.ratio()-before.ratio()))
	}
	t.Logf("the part of hits differs by %.4f at most", worst)
	if worst > 0.01 {
		t.Errorf("the part of hits differs by %.4f, want 0.01 at most", worst)
	}
	r := stop()
	if all := r.All(); all.Asked == 0 || all.Local != all.Asked {
		t.Errorf("after %d upgrades: %+v", upgrades, all)
	}
}

// TestKilledUnderLoad: the cluster's DNS answers from the very next question after a
// SIGKILL, those that are lost are the ones that were in the dead process or came while
// it died, and the next agent answers from its first moment.
func TestKilledUnderLoad(t *testing.T) {
	for _, way := range testbed.Ways {
		t.Run(way, func(t *testing.T) {
			l := newLab(t)
			l.proxied(way)
			args := l.everywhere()
			p := l.run(args...)
			job := usual()
			job.Streams, job.Shots = 0, 0 // a connection ends with its process
			stop := l.load(job)
			l.over(p, tally{})
			killed := time.Now()
			p.Kill()
			gone := time.Now()
			back := l.run(args...)
			ready := time.Now()
			l.over(back, tally{})
			r := stop()
			// Lost are those in the sockets of the dead process, and those that it had
			// asked its upstream for.
			if early := r.Between(r.Began, killed.Add(-load.Patience)); early.Failed() > 0 {
				t.Errorf("before the kill: %+v", early)
			}
			if dead := r.Between(gone, ready); dead.Asked == 0 || dead.Failed() > 0 || dead.Cluster == 0 {
				t.Errorf("while nobody listened: %+v", dead)
			}
			if after := r.Between(ready, r.Ended); after.Asked == 0 || after.Local != after.Asked {
				t.Errorf("after the restart: %+v", after)
			}
			dying := uint64(gone.Sub(killed).Seconds()*float64(job.Rate)) + inFlight
			if r.UDP.Failed() > dying {
				t.Errorf("%d lost in all, want %d at most, of those that were asked within the %v of dying or were under way", r.UDP.Failed(), dying, gone.Sub(killed))
			}
		})
	}
}

// inFlight is how many questions a process may have taken without an answer: what fits
// into the buffers of its sockets if a core is busy for a few hundredths of a second, and
// those that wait for an upstream next door.
const inFlight = 400
