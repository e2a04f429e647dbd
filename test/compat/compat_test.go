package compat

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
	"github.com/nodens-dns/nodens/test/rig/load"
)

const (
	// patience is how long a question waits for its answer: these tests count what is
	// lost, not how long it takes on a machine that may be busy.
	patience = 20 * time.Second
	// enough is how many questions an agent gets before and after it is followed, a
	// second's worth.
	enough = 1500
	// streams is the number of TCP connections that outlive the first agent.
	streams = 8
)

// TestHandOver: an agent takes over from another under load. Not a question is lost, the TCP
// connections go on, and what the first has in its cache is a hit at the later one.
func TestHandOver(t *testing.T) {
	both(t, func(t *testing.T, d direction) {
		up := startUpstream(t)
		s := newSite(t, "errors", "cache 3600", "forward . "+up.Addr().String())
		first := s.run(t, d.first, "msg=serving", "-handover-dir", s.dir)
		names := warm(t, s)
		client, err := load.Start(load.Job{
			Servers: []netip.AddrPort{s.server()}, Local: answered, Cluster: netip.IPv4Unspecified(),
			Names: 500, FreshEvery: 20, Zone: "load.test.", Duration: 5 * time.Minute, Timeout: patience,
			Rate: 1000, Sockets: 64, QueriesPerSocket: 64, Streams: streams, StreamRate: 50, OneShots: 50,
		}, os.Args[0], "load")
		check.NoError(t, err)
		stopped := false
		t.Cleanup(func() {
			if !stopped {
				_, _ = client.Stop()
			}
		})
		s.served(t, first)
		later := s.run(t, d.later, "took over", "-handover-dir", s.dir)
		if err := first.Err(); err != nil {
			t.Fatalf("the first agent ended with %v and wrote:\n%s", err, first.Tail())
		}
		awaitTransferred(t, first)
		s.served(t, later)
		stopped = true
		r, err := client.Stop()
		check.NoError(t, err)
		t.Log(r)
		if all := r.All(); all.Local != all.Asked || r.Dropped > 0 || r.Stream.Asked == 0 || r.OneShot.Asked == 0 {
			t.Errorf("%+v, and %d dropped by the client; want all of them answered", all, r.Dropped)
		}
		cached(t, s, up, names)
		if m, err := s.metrics(t.Context()); m.Sum("nodens_handovers_total", `result="complete"`, `role="successor"`) != 1 {
			t.Errorf("one hand-over is not counted: %v, %v", m, err)
		}
	})
}

// transferred matches the message at the end of a hand-over.
var transferred = regexp.MustCompile(`"everything is handed over" part=handover connections=(\d+)`)

// awaitTransferred waits until the agent in p has handed everything over, the long-lived
// connections included. A connection for a single question may be among them, too.
func awaitTransferred(t *testing.T, p *peer.Process) {
	t.Helper()
	p.Must(t, "the end of the hand-over", func(context.Context) error {
		m := transferred.FindStringSubmatch(p.Tail())
		if m == nil {
			return fmt.Errorf("it says:\n%s", p.Tail())
		}
		if n, err := strconv.Atoi(m[1]); err != nil || n < streams {
			t.Fatalf("%s connections were handed over, want %d or more", m[1], streams)
		}
		return nil
	})
}

// served waits until the agent in p has answered enough questions. A new one counts from 0.
func (s *site) served(t *testing.T, p *peer.Process) {
	t.Helper()
	p.Must(t, "questions", func(ctx context.Context) error {
		m, err := s.metrics(ctx)
		if n := m.Sum("coredns_dns_requests_total"); err == nil && n < enough {
			err = fmt.Errorf("%.0f so far", n)
		}
		return err
	})
}

// warm asks for some names, and gives them.
func warm(t *testing.T, s *site) (names []string) {
	t.Helper()
	for i := range 20 {
		name := fmt.Sprintf("warm-%d.example.test.", i)
		names = append(names, name)
		ask(t, s.server(), name, dns.TypeA)
	}
	return names
}

// cached asks for the names again: none may be asked for upstream.
func cached(t *testing.T, s *site, up *fakedns.Server, names []string) {
	t.Helper()
	for _, name := range names {
		if got, want := ask(t, s.server(), name, dns.TypeA), "NOERROR\n"+name+"\t0\tIN\tA\t"+answered.String(); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if n := up.CountName(name); n != 1 {
			t.Errorf("%s was asked for %d times upstream, want once", name, n)
		}
	}
}

// found fails the test unless p, which serves, has logged one of the messages, which differ
// between this agent and the earlier one.
func found(t *testing.T, p *peer.Process, messages ...string) {
	t.Helper()
	log := p.Tail()
	if !slices.ContainsFunc(messages, func(m string) bool { return strings.Contains(log, m) }) {
		t.Fatalf("the agent has logged none of %q:\n%s", messages, log)
	}
}

// TestSavedCache: an agent that starts when the other has ended finds what that one has saved.
func TestSavedCache(t *testing.T) {
	both(t, func(t *testing.T, d direction) {
		up := startUpstream(t)
		s := newSite(t, "errors", "cache 3600", "forward . "+up.Addr().String())
		first := s.run(t, d.first, "msg=serving", "-handover-dir", s.dir)
		names := warm(t, s)
		end(t, first)
		if _, err := os.Stat(filepath.Join(s.dir, "cache")); err != nil {
			t.Fatalf("%v; the agent wrote:\n%s", err, first.Tail())
		}
		found(t, s.run(t, d.later, "msg=serving", "-handover-dir", s.dir), "saved answers were found")
		cached(t, s, up, names)
	})
}

// TestSavedView: an agent that starts while the API server is away answers the cluster's
// names from what the other has saved, as that one did.
func TestSavedView(t *testing.T) {
	both(t, func(t *testing.T, d direction) {
		api := newCluster(t)
		s := newSite(t, "kubernetes cluster.local clusterset.local in-addr.arpa ip6.arpa {", "endpoint "+api.URL, "save DIR/view", "startup_timeout 10s",
			"scope cluster", "endpoints all", "pods verified", "multicluster clusterset.local", "zonal", "}", "k8s_external example.org")
		first := s.run(t, d.first, "msg=serving")
		before := make(map[string]string)
		for _, q := range questions {
			// Not before the last list does the first agent have all that is asked for.
			first.Must(t, q.name, func(context.Context) error {
				before[q.String()] = ask(t, s.server(), q.name, q.qtype)
				if !q.fits(before[q.String()]) {
					return fmt.Errorf("it is %s", before[q.String()])
				}
				return nil
			})
		}
		end(t, first)
		api.Close()
		found(t, s.run(t, d.later, "msg=serving"), "saved view restored", "started from the saved view")
		after := make(map[string]string)
		for _, q := range questions {
			after[q.String()] = ask(t, s.server(), q.name, q.qtype)
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("-first +later:\n%s", diff)
		}
	})
}
