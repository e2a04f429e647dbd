package resolver_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
	"github.com/nodens-dns/nodens/upstream"
)

// fromServers counts what comes from the servers that were asked.
func fromServers(servers []netip.Addr) func(netip.Addr) bool {
	return func(client netip.Addr) bool { return slices.Contains(servers, client) }
}

// newLoop makes the detector of the root zone, which logs to w.
func newLoop(t *testing.T, pools []*upstream.Pool, w *strings.Builder, sources func([]netip.Addr) func(netip.Addr) bool) *resolver.Loop {
	t.Helper()
	l, err := resolver.NewLoop(wire.Root, pools, resolver.LoopOptions{Logger: slog.New(slog.NewTextHandler(w, nil)), Sources: sources})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// watch runs l until the test ends. ended says that it has returned before.
func watch(t *testing.T, l *resolver.Loop) (ended *atomic.Bool) {
	ctx, cancel := context.WithCancel(context.Background())
	ended = new(atomic.Bool)
	var running sync.WaitGroup
	running.Go(func() {
		l.Run(ctx)
		ended.Store(true)
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return ended
}

var (
	upstreamAddr = netip.MustParseAddr("192.0.2.53") // the upstream
	somePod      = netip.MustParseAddr("10.244.1.7")
)

// fates are what becomes of a probe.
const (
	replied  = "replied"
	back     = "back"  // it comes back from the upstream
	frompod  = "pod"   // it comes back from a pod, several times
	lost     = "lost"  // nothing comes
	servfail = "fails" // the upstream says SERVFAIL
)

// rehearse runs a Loop whose i-th probe has the i-th fate, and the last one from then on,
// for a time. It gives the moments of all probes, in seconds, whether forwarding is
// stopped at the end, and the log.
func rehearse(t *testing.T, length time.Duration, was *resolver.Loop, fates ...string) (at []int, l *resolver.Loop, log string) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		l = newLoop(t, nil, &text, fromServers)
		if was != nil {
			var err error
			if l, err = resolver.NewLoop(wire.Root, nil, resolver.LoopOptions{Logger: l.Options().Logger, Sources: fromServers, Was: was}); err != nil {
				t.Fatal(err)
			}
		}
		asked := make(map[string]bool)
		begun := time.Now()
		l.Rehearse([]netip.Addr{upstreamAddr}, func(_ context.Context, q *wire.Query) (wire.Response, error) {
			if name := string(q.Name()); asked[name] || q.Type != wire.TypeHINFO {
				t.Errorf("a probe has a name that was asked before, or the type %d", q.Type)
			} else {
				asked[name] = true
			}
			at = append(at, int(time.Since(begun)/time.Second))
			fate := fates[0]
			fates = fates[min(1, len(fates)-1):]
			sent := func(from netip.Addr) {
				var again wire.Query
				again.Parse(q.Packet)
				if !l.Observe(&again, from) {
					t.Error("a probe that comes back is not known")
				}
			}
			switch fate {
			case back:
				sent(upstreamAddr)
			case frompod:
				for range resolver.LoopProbes {
					sent(somePod)
				}
			case lost:
				return wire.Response{}, errors.New("no answer")
			case replied:
				return wire.Response{Rcode: wire.NXDomain}, nil
			}
			return wire.Response{Rcode: wire.ServFail}, nil
		})
		ctx, cancel := context.WithTimeout(context.Background(), length)
		defer cancel()
		l.Run(ctx)
		log = text.String()
	})
	return at, l, log
}

// TestLoopCourse: when forwarding stops, and when it goes on.
func TestLoopCourse(t *testing.T) {
	for _, c := range []struct {
		name    string
		length  time.Duration
		fates   []string
		at      []int
		stopped bool
		log     []string // messages begin so
	}{
		{"nothing comes back", time.Hour, []string{replied}, []int{0}, false, nil},
		{"the upstreams are silent", time.Hour, []string{lost}, []int{0, 5, 10}, false, nil},
		{"the upstreams fail", time.Hour, []string{servfail}, []int{0, 5, 10}, false, nil},
		{"silent at first", time.Hour, []string{lost, replied}, []int{0, 5}, false, nil},
		{"one comes back", time.Hour, []string{back, replied}, []int{0, 0, 5}, false, nil},
		{"two come back, time and again", time.Hour, []string{back, back, replied, back, back, lost, replied}, []int{0, 0, 0, 5, 5, 5, 10}, false, nil},
		{"a pod knows the name", time.Hour, []string{frompod}, []int{0, 5, 10}, false, []string{"a loop probe", "a loop probe", "a loop probe"}},
		{"a pod knows two of the names", time.Hour, []string{back, frompod, frompod, replied}, []int{0, 0, 5, 10}, false, []string{"a loop probe", "a loop probe"}},
		{"all come back", 12 * time.Second, []string{back}, []int{0, 0, 0, 5, 10}, true, []string{"forwarding stopped"}},
		{"a loop found late", 12 * time.Second, []string{lost, lost, back}, []int{0, 5, 10, 10, 10}, true, []string{"forwarding stopped"}},
		{"a loop that ends", time.Hour, []string{back, back, back, back, replied}, []int{0, 0, 0, 5, 10, 15, 20, 25}, false, []string{"forwarding stopped", "forwarding resumed"}},
		{"and is there again", 31 * time.Second, []string{back, back, back, replied, replied, back}, []int{0, 0, 0, 5, 10, 15, 15, 15, 20, 25, 30}, true, []string{"forwarding stopped", "forwarding resumed", "forwarding stopped"}},
		{"a loop in which probes are lost", 31 * time.Second, []string{back, back, back, lost, lost, back, lost, lost, back}, []int{0, 0, 0, 5, 10, 15, 20, 25, 30}, true, []string{"forwarding stopped"}},
		{"a loop, and then silence", 16 * time.Second, []string{back, back, back, lost}, []int{0, 0, 0, 5, 10, 15}, false, []string{"forwarding stopped", "forwarding resumed"}},
		{"a loop, and then a pod", 16 * time.Second, []string{back, back, back, frompod}, []int{0, 0, 0, 5, 10, 15}, false, []string{"forwarding stopped", "a loop probe", "a loop probe", "a loop probe", "forwarding resumed"}},
		{"a loop of minutes", 181 * time.Second, []string{back}, nil, true, []string{"forwarding stopped", "forwarding is still", "forwarding is still", "forwarding is still"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			at, l, log := rehearse(t, c.length, nil, c.fates...)
			if d := cmp.Diff(c.at, at); c.at != nil && d != "" {
				t.Errorf("probes are sent at (-want +got):\n%s", d)
			}
			if l.Stopped() != c.stopped {
				t.Errorf("stopped: %v, want %v", l.Stopped(), c.stopped)
			}
			lines := strings.Split(strings.TrimSuffix(log, "\n"), "\n")
			if log == "" {
				lines = nil
			}
			same := slices.EqualFunc(lines, c.log, func(line, message string) bool { return strings.Contains(line, `msg="`+message) })
			if !same {
				t.Errorf("the log is\n%swant lines that begin with %q", log, c.log)
			}
		})
	}
}

// TestLoopReload: forwarding that is stopped stays so across a reload, whatever else has
// changed, until a probe has shown that nothing comes back.
func TestLoopReload(t *testing.T) {
	_, was, _ := rehearse(t, time.Second, nil, back)
	if !was.Stopped() {
		t.Fatal("the loop is not found")
	}
	was.AddRefused()
	_, l, log := rehearse(t, time.Second, was, back)
	if !l.Stopped() || log != "" {
		t.Errorf("stopped: %v; the log says\n%s", l.Stopped(), log)
	}
	if l.Options().Was != nil {
		t.Error("every loop that there ever was is kept")
	}
	at, l, log := rehearse(t, time.Second, l, replied)
	if l.Stopped() || len(at) != 1 || !strings.Contains(log, "forwarding resumed") || !strings.Contains(log, "servfail=1") {
		t.Errorf("stopped: %v, probes at %v; the log says\n%s", l.Stopped(), at, log)
	}
}

// relay is an upstream that passes queries on to the agent while loops is set.
type relay struct {
	*resolvertest.Backend
	from  net.Addr
	to    netip.AddrPort
	loops atomic.Bool
	times atomic.Int32 // for how often each query is sent
}

// startRelay passes queries on to to, out of the address from.
func startRelay(t *testing.T, from netip.Addr, to netip.AddrPort) *relay {
	r := &relay{from: net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), to: to}
	r.times.Store(1)
	r.Backend = resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		if !r.loops.Load() {
			return resolvertest.Address("192.0.2.1")(q)
		}
		c := dns.Client{Dialer: &net.Dialer{LocalAddr: r.from}, Timeout: patience}
		var m *dns.Msg
		for range r.times.Load() {
			m, _, _ = c.Exchange(q.Copy(), to.String())
		}
		return m
	})
	return r
}

// TestLoop: queries that come back stop the forwarding of their zone, and of nothing
// else. What the zone has itself or in its cache is still replied. When they come back
// no more, forwarding goes on without a restart.
func TestLoop(t *testing.T) {
	addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	r := startRelay(t, loopback, addr)
	other := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.2"))
	z := &resolver.Zone{Name: wire.Root, Stats: resolver.NewStats(), Hosts: resolvertest.Hosts(t, true, "192.0.2.9 by.hand"), Cache: resolvertest.Cache(), Forward: resolvertest.Pool(t, r.Addr())}
	z.Loop = newLoop(t, z.Forward, new(strings.Builder), fromServers)
	z.Loop.SetInterval(time.Millisecond)
	elsewhere := &resolver.Zone{Name: resolvertest.ZoneName(t, "other.test."), Stats: resolver.NewStats(), Forward: resolvertest.Pool(t, other.Addr())}
	s := server.New(slog.New(slog.DiscardHandler), server.Limits{})
	if err := s.Listen(map[server.ListenAddr]server.ListenerConfig{{AddrPort: addr}: {Routes: resolver.NewRoutes([]*resolver.Zone{z, elsewhere}, resolver.NewStats())}}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Shutdown(context.Background()) }()
	ask := func(name string) *dns.Msg {
		m := question(name, dns.TypeA)
		m.SetEdns0(1232, false)
		return query(t, "udp", addr, m)
	}
	if m := ask("cached.test."); m.Rcode != dns.RcodeSuccess {
		t.Fatalf("before the loop: %v", m)
	}
	r.loops.Store(true)
	watch(t, z.Loop)
	eventually(t, "forwarding to stop", z.Loop.Stopped)
	for name, want := range map[string]int{
		"by.hand.": dns.RcodeSuccess, "cached.test.": dns.RcodeSuccess, "www.other.test.": dns.RcodeSuccess, "new.test.": dns.RcodeServerFailure,
	} {
		m := ask(name)
		if m.Rcode != want {
			t.Errorf("%s: %s", name, dns.RcodeToString[m.Rcode])
		}
		if want == dns.RcodeSuccess {
			continue
		}
		opt := m.IsEdns0()
		if opt == nil || len(opt.Option) != 1 || !strings.Contains(opt.Option[0].String(), "forwarding loop") {
			t.Errorf("%s: the reply does not say why: %v", name, opt)
		}
	}
	if n := r.CountName("new.test."); n != 0 {
		t.Errorf("the upstream was asked %d times for a name that is not forwarded", n)
	}
	r.loops.Store(false)
	eventually(t, "forwarding to go on", func() bool { return !z.Loop.Stopped() })
	if m := ask("new.test."); m.Rcode != dns.RcodeSuccess {
		t.Errorf("after the loop: %v", m)
	}
}

// TestLoopColluders: an upstream that gives the probes' names to a pod, which sends each
// three times, has no effect.
func TestLoopColluders(t *testing.T) {
	addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	r := startRelay(t, netip.MustParseAddr("127.0.0.66"), addr)
	r.loops.Store(true)
	r.times.Store(resolver.LoopProbes)
	z := &resolver.Zone{Name: wire.Root, Stats: resolver.NewStats(), Forward: resolvertest.Pool(t, r.Addr())}
	z.Loop = newLoop(t, z.Forward, new(strings.Builder), fromServers)
	z.Loop.SetInterval(time.Millisecond)
	s := server.New(slog.New(slog.DiscardHandler), server.Limits{})
	if err := s.Listen(map[server.ListenAddr]server.ListenerConfig{{AddrPort: addr}: {Routes: resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())}}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Shutdown(context.Background()) }()
	ended := watch(t, z.Loop)
	eventually(t, "the looks to end", func() bool { return ended.Load() || z.Loop.Stopped() })
	if z.Loop.Stopped() {
		t.Error("forwarding is stopped")
	}
	if probes := len(r.Asked()); probes != resolver.LoopLooks {
		t.Errorf("the upstream saw %d probes, want %d", probes, resolver.LoopLooks)
	}
	r.loops.Store(false)
	if m := query(t, "udp", addr, question("new.test.", dns.TypeA)); m.Rcode != dns.RcodeSuccess {
		t.Errorf("a query is not forwarded: %v", m)
	}
}

// TestLoopName: a zone whose name leaves no room for a probe is refused.
func TestLoopName(t *testing.T) {
	long := resolvertest.ZoneName(t, strings.Repeat(strings.Repeat("a", 60)+".", 4))
	if _, err := resolver.NewLoop(long, nil, resolver.LoopOptions{}); err == nil {
		t.Error("a probe is longer than a name may be")
	}
	if (*resolver.Loop)(nil).Stopped() {
		t.Error("there is a loop where nobody looks")
	}
}
