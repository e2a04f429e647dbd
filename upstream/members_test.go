// Inside the package: the tests read the list of servers and call lookup.

package upstream

import (
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
)

// service is a Service whose endpoints a test sets.
type service struct {
	mu      sync.Mutex
	addrs   []netip.AddrPort
	changed chan struct{}
}

func newService(addrs ...netip.AddrPort) *service {
	return &service{addrs: addrs, changed: make(chan struct{})}
}

func (s *service) endpoints(string, uint16) ([]netip.AddrPort, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addrs, s.changed
}

func (s *service) set(addrs ...netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addrs = addrs
	close(s.changed)
	s.changed = make(chan struct{})
}

// serverAddrs returns the addresses of p's servers.
func serverAddrs(p *Pool) (list []netip.AddrPort) {
	for _, s := range p.servers() {
		list = append(list, s.addr)
	}
	return list
}

// TestServersComeAndGo changes the endpoints while queries are sent: none may fail, servers
// that stay keep their counters, and removed ones are closed.
func TestServersComeAndGo(t *testing.T) {
	goroutines := runtime.NumGoroutine()
	t.Run("changes", func(t *testing.T) {
		a, b, c := startFake(t, answerOK), startFake(t, answerOK), startFake(t, answerOK)
		kubeDNS := newService(a.addr, b.addr)
		cfg := longTimeout()
		cfg.Policy = config.PolicyRoundRobin
		cfg.To = []config.Target{{Service: "kube-system/kube-dns"}}
		p := New(cfg, Options{Deadline: time.Second, Endpoints: kubeDNS.endpoints})
		t.Cleanup(func() { p.Close() })
		p.hedgeBudget.credit.Store(-1 << 40)
		var stop atomic.Bool
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for n := 0; !stop.Load(); n++ {
					mustExchange(t, p, 1000*i+n)
				}
			})
		}
		for _, set := range [][]*fake{{b}, {b, c}, {}, {c, b}, {a, b, c}, {b}} {
			var addrs []netip.AddrPort
			for _, f := range set {
				addrs = append(addrs, f.addr)
			}
			kubeDNS.set(addrs...)
			if len(addrs) == 0 { // the old ones may still work
				addrs = []netip.AddrPort{b.addr, c.addr}
			}
			eventually(t, "the change is taken on", func() bool { return slices.Equal(serverAddrs(p), addrs) })
			last := set
			if len(last) > 0 {
				before := queriesReceived(last[0])
				eventually(t, "a query goes there", func() bool { return queriesReceived(last[0]) > before })
			}
		}
		stop.Store(true)
		wg.Wait()
		s := p.Stats().Servers
		if len(s) != 1 || s[0].To != b.addr {
			t.Fatalf("servers %v", s)
		}
		// Not all: an exchange waits for one of two servers only.
		if n := int(s[0].Durations[0].Count); n < queriesReceived(b)*3/4 {
			t.Errorf("%d exchanges are counted with the server that stayed, it has seen %d", n, queriesReceived(b))
		}
	})
	eventually(t, "all goroutines gone", func() bool { return runtime.NumGoroutine() <= goroutines })
}

// TestNoEndpointsYet: queries wait until there is a server, not for the whole timeout.
func TestNoEndpointsYet(t *testing.T) {
	f := startFake(t, answerOK)
	kubeDNS := newService()
	cfg := longTimeout()
	cfg.To = []config.Target{{Service: "kube-system/kube-dns"}}
	p := New(cfg, Options{Endpoints: kubeDNS.endpoints})
	defer p.Close()
	q := question(t, "example.org.")
	ended := make(chan error, 1)
	go func() {
		_, err := p.Exchange(t.Context(), q, false)
		ended <- err
	}()
	kubeDNS.set(f.addr)
	if err := <-ended; err != nil {
		t.Error(err)
	}

	alone := New(cfg, Options{Deadline: time.Millisecond})
	defer alone.Close()
	if _, err := alone.Exchange(t.Context(), question(t, "example.org."), false); !errors.Is(err, ErrNoUpstream) {
		t.Errorf("without a view of the cluster: %v, want ErrNoUpstream", err)
	}
}

// TestOwnAddress: an endpoint with the agent's own address is ignored.
func TestOwnAddress(t *testing.T) {
	own, other := startFake(t, answerOK), startFake(t, answerOK)
	cfg := longTimeout()
	cfg.To = []config.Target{{Service: "kube-system/kube-dns"}}
	p := New(cfg, Options{
		Endpoints: newService(own.addr, other.addr).endpoints,
		Own:       func(to netip.AddrPort) bool { return to == own.addr },
	})
	defer p.Close()
	mustExchange(t, p, 0)
	if got := serverAddrs(p); len(got) != 1 || got[0] != other.addr {
		t.Errorf("servers %v, want %v alone", got, other.addr)
	}
}

// TestOtherFamily: IPv6 servers are not asked from an IPv4 source address.
func TestOtherFamily(t *testing.T) {
	f := startFake(t, answerOK)
	cfg := longTimeout()
	cfg.To, cfg.SourceAddress = []config.Target{{Service: "kube-system/kube-dns"}}, netip.MustParseAddr("127.0.0.9")
	p := New(cfg, Options{Endpoints: newService(netip.MustParseAddrPort("[2001:db8::1]:53"), f.addr).endpoints})
	defer p.Close()
	mustExchange(t, p, 0)
	if got := serverAddrs(p); len(got) != 1 || got[0] != f.addr {
		t.Errorf("servers %v, want %v alone", got, f.addr)
	}
}

// answerLoopback answers like a resolver that resolves upstream.test to 127.0.0.1.
func answerLoopback(ttl uint32) script {
	return func(r request) {
		m := r.answer(0)
		if r.Question[0].Qtype == dns.TypeA {
			m = r.answer(1)
			m.Answer[0].(*dns.A).A = []byte{127, 0, 0, 1}
			m.Answer[0].Header().Ttl = ttl
		}
		r.reply(m)
	}
}

// TestName: an upstream's name is looked up, again after a failure, and never at the agent
// itself.
func TestName(t *testing.T) {
	f := startFake(t, answerOK)
	resolver := startFake(t, func(r request) {
		if r.nth < 3 {
			r.reply(r.rcode(dns.RcodeServerFailure))
			return
		}
		answerLoopback(3600)(r)
	})
	itself := startFake(t, answerLoopback(60))
	cfg := longTimeout()
	cfg.Resolver = []netip.AddrPort{itself.addr, resolver.addr}
	cfg.To = []config.Target{{Host: "upstream.test", Port: f.addr.Port()}}
	p := New(cfg, Options{Deadline: 20 * time.Second, Own: func(to netip.AddrPort) bool { return to == itself.addr }})
	defer p.Close()
	mustExchange(t, p, 0)
	if got := serverAddrs(p); len(got) != 1 || got[0] != f.addr {
		t.Errorf("servers %v, want %v", got, f.addr)
	}
	if queriesReceived(itself) != 0 {
		t.Error("the agent was asked for the name of its upstream")
	}
	for _, r := range resolver.requests() {
		if r.Question[0].Name != "upstream.test." {
			t.Errorf("the resolver was asked for %s", r.Question[0].Name)
		}
	}
}

func TestLookUp(t *testing.T) {
	for _, tt := range []struct {
		name   string
		script script
		fresh  time.Duration
		fails  bool
	}{
		{"an address", answerLoopback(30), 30 * time.Second, false},
		{"the other kind fails", func(r request) {
			if r.Question[0].Qtype == dns.TypeA {
				answerLoopback(7)(r)
				return
			}
			answerRcode(dns.RcodeServerFailure)(r)
		}, 7 * time.Second, false},
		{"no address", func(r request) { r.reply(r.answer(0)) }, 0, true},
		{"no such name", answerRcode(dns.RcodeNameError), 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := longTimeout()
			cfg.Resolver = []netip.AddrPort{startFake(t, tt.script).addr}
			addrs, fresh, err := newPool(t, cfg).lookup("upstream.test", 5353)
			if tt.fails {
				if err == nil {
					t.Errorf("addresses %v", addrs)
				}
				return
			}
			want := netip.MustParseAddrPort("127.0.0.1:5353")
			if err != nil || len(addrs) != 1 || addrs[0] != want || fresh != tt.fresh {
				t.Errorf("%v for %v, error %v; want %v for %v", addrs, fresh, err, want, tt.fresh)
			}
		})
	}
}
