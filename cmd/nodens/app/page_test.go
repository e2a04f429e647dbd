// These tests use startAgent, history and historyCounters, which are not exported.

package app

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cmd/nodens/app/page"
	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// pageAt makes an agent serve the page at a port.
func pageAt(port uint16) func(*options.Agent) {
	return func(o *options.Agent) { o.Page = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port) }
}

// pageText returns the page at a port, and the status; "" while nobody serves it.
func pageText(t *testing.T, port uint16) (text string, status int) {
	t.Helper()
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return "", 0
	}
	_ = conn.Close()
	status, text = agenttest.Get(t, port, "/")
	return text, status
}

// TestPage: the agent serves the page, with what it knows of its clients.
func TestPage(t *testing.T) {
	p := peer.Ports(t, 2)
	r := startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts {\n  192.0.2.1 a.test\n }\n}\n", p[0]), pageAt(p[1]))
	r.AwaitLog("the page is served")
	agenttest.Ask(t, p[0], "a.test.")
	text, status := pageText(t, p[1])
	for _, want := range []string{`<p class="badge good">healthy</p>`, ">(host)</a>", "The configuration has no forward directive."} {
		if status != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("status %d, and the page has no %s", status, want)
		}
	}
	r.Stop()
	if text, _ := pageText(t, p[1]); text != "" {
		t.Error("the page is still there")
	}
}

// TestPageWithoutClients: without counts by client the page says why.
func TestPageWithoutClients(t *testing.T) {
	p := peer.Ports(t, 2)
	r := startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n}\n", p[0]), pageAt(p[1]), func(o *options.Agent) { o.ClientMetrics = options.ClientMetricsOff })
	r.AwaitLog("the page is served")
	if text, status := pageText(t, p[1]); status != http.StatusOK || !strings.Contains(text, "--client-metrics=off") {
		t.Errorf("status %d:\n%s", status, text)
	}
}

// TestPageOccupied: an agent whose port another program has serves, logs it once, and serves the page when
// the port is free.
func TestPageOccupied(t *testing.T) {
	p := peer.Ports(t, 2)
	other, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p[1]))
	check.NoError(t, err)
	defer other.Close()
	r := startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts {\n  192.0.2.1 a.test\n }\n}\n", p[0]), pageAt(p[1]))
	r.AwaitLog("listening for the page failed")
	agenttest.Expect(t, p[0], "a.test.", "192.0.2.1")
	_ = other.Close()
	r.AwaitLog("the page is served")
	if n := strings.Count(r.Log.String(), "listening for the page failed"); n != 1 {
		t.Errorf("logged %d times, want once", n)
	}
}

// TestPageHandover: the agent that serves has the page. A stream ends at the hand-over, and the next one is
// of the other agent.
func TestPageHandover(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "192.0.2.1") // an agent that has handed over waits
	p := peer.Ports(t, 4)
	dir := filepath.Join(t.TempDir(), "handover")
	start := func(version string) *agenttest.Agent {
		r := startAgent(t, withCache(p[0], p[1], p[2]), pageAt(p[3]), func(o *options.Agent) {
			o.HandoverDir, o.HandoverCompare, o.Build.Version = dir, 0, version
		})
		r.AwaitLog("the page is served")
		return r
	}
	// stream opens a stream, and returns the version that it begins with.
	stream := func() (version string, lines *bufio.Scanner) {
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/events", p[3]))
		check.NoError(t, err)
		t.Cleanup(func() { _ = resp.Body.Close() })
		lines = bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if version, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				return version, lines
			}
		}
		t.Fatal("the stream has ended")
		return "", nil
	}
	first := start("one")
	version, lines := stream()
	second := start("two")
	for lines.Scan() { // until the stream ends
	}
	if after, _ := stream(); version != "one" || after != "two" {
		t.Errorf("the page was of %q before the hand-over and is of %q after it", version, after)
	}
	second.Stop()
	first.Await("the first agent to serve the page again", func() bool {
		return strings.Count(first.Log.String(), "the page is served") == 2
	})
	if version, _ := stream(); version != "one" {
		t.Errorf("the page is of %q at the end", version)
	}
}

// TestHistory: samples are differences of counters, an upstream keeps its place, and an hour is kept.
func TestHistory(t *testing.T) {
	var h history
	server := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 53)
	}
	now := time.Now()
	counters := historyCounters{
		sums:   resolver.Sums{Cluster: 10, Cache: 5, Upstream: 3, Others: 1, NXDomain: 2, ServFail: 1, Durations: [17]uint64{18, 0, 1}},
		kernel: 4, exchanges: map[netip.AddrPort]uint64{server(1): 3, server(2): 0},
	}
	h.add(counters, now)
	first := page.Sample{Cluster: 10, Cache: 5, Upstream: 3, Others: 1, Kernel: 4, NXDomain: 2, ServFail: 1, P50: 0.00025, P99: 0.001, Exchanges: [page.MaxUpstreams + 1]uint32{3}}
	counters.sums.Cluster, counters.sums.Cache = 12, 1 // a reload has made the cache's zone anew
	counters.exchanges = map[netip.AddrPort]uint64{server(2): 7, server(1): 2}
	h.add(counters, now)
	second := page.Sample{Cluster: 2, Cache: 1, Exchanges: [page.MaxUpstreams + 1]uint32{2, 7}}
	want := page.History{End: now, Samples: []page.Sample{first, second}, Upstreams: []string{"192.0.2.1:53", "192.0.2.2:53"}}
	check.Equal(t, want, h.read(), "the history differs")
	for i := range 400 {
		h.add(historyCounters{sums: resolver.Sums{Cluster: uint64(13 + i)}, exchanges: map[netip.AddrPort]uint64{server(i%20 + 3): 1}}, now)
	}
	got := h.read()
	if len(got.Samples) != page.HistoryLength || got.Samples[0].Cluster != 1 || len(got.Upstreams) != page.MaxUpstreams {
		t.Errorf("%d samples, the first one is %+v, upstreams %v", len(got.Samples), got.Samples[0], got.Upstreams)
	}
	others := uint32(0)
	for _, s := range got.Samples {
		others += s.Exchanges[page.MaxUpstreams]
	}
	if others != 16*page.HistoryLength/20 {
		t.Errorf("%d exchanges with others, want %d", others, 16*page.HistoryLength/20)
	}
}

// TestHistoryCounters: a sample counts replies by source, and exchanges by upstream, without an allocation
// for each zone.
func TestHistoryCounters(t *testing.T) {
	p := peer.Ports(t, 1)
	up := fakedns.Start(t, func(q *fakedns.Query) {
		switch q.Msg.Question[0].Name {
		case "broken.test.":
			q.Reply(fakedns.Negative(q.Msg, dns.RcodeServerFailure, 0))
		case "none.test.":
			q.Reply(fakedns.Negative(q.Msg, dns.RcodeNameError, 0))
		default:
			q.Reply(fakedns.Address(q.Msg, 60, "192.0.2.1"))
		}
	})
	l := lookedAt(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts {\n  192.0.2.9 local.test\n  fallthrough\n }\n cache 300\n forward . %s\n}\n", p[0], up.Addr()))
	for _, name := range []string{"a.test.", "a.test.", "none.test.", "broken.test.", "local.test."} {
		agenttest.Ask(t, p[0], name)
	}
	c := l.historyCounters(make(map[netip.AddrPort]uint64))
	if c.exchanges[up.Addr()] < 3 || len(c.exchanges) != 1 {
		t.Errorf("exchanges are %v, want three or more with %v", c.exchanges, up.Addr())
	}
	var replies uint64
	for _, n := range c.sums.Durations {
		replies += n
	}
	c.sums.Durations = [17]uint64{}
	want := resolver.Sums{Cache: 1, Upstream: 3, Others: 1, NXDomain: 1, ServFail: 1, Lookups: 3, Hits: 1}
	if diff := cmp.Diff(want, c.sums); diff != "" || replies != 5 {
		t.Errorf("%d replies, sums (-want +got):\n%s", replies, diff)
	}
	for _, listener := range l.current.Load().listeners {
		for z := range listener.Routes.Zones() {
			if n := testing.AllocsPerRun(10, func() { z.Stats.AddTo(&c.sums) }); n != 0 {
				t.Errorf("AddTo allocates %v times", n)
			}
		}
	}
}
