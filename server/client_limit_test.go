// These tests use overLimit and listeners, which are not exported.

package server

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/ratelimit"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/udp"
)

// Inside the package: it uses the test servers of the package.

// newLimit returns a limit that no test reaches by its own queries.
func newLimit(action config.LimitAction) *resolver.ClientLimit {
	return &resolver.ClientLimit{Limiter: ratelimit.New(ratelimit.Options{Rate: 1000, Burst: 1000}), Action: action}
}

// exhaust uses up the limit of addr for an hour.
func exhaust(l *resolver.ClientLimit, addr netip.Addr) {
	for at := clock.Now(); l.Allow(addr, at+time.Hour); {
		continue
	}
}

// limitPlaces are where a limit is checked.
var limitPlaces = map[string]func(l *resolver.ClientLimit, limits *Limits, z *resolver.Zone){
	"agent": func(l *resolver.ClientLimit, limits *Limits, _ *resolver.Zone) { limits.Client = l },
	"block": func(l *resolver.ClientLimit, _ *Limits, z *resolver.Zone) { z.Limit = l },
}

// limitedServer is a server with a limit, and how it is asked over one transport.
type limitedServer struct {
	limit *resolver.ClientLimit
	table *clients.Table
	addr  netip.AddrPort
	// ask returns the reply in short: the rcode, and TC if it is truncated, or the HTTP status.
	ask func() string
}

func short(m *dns.Msg) string {
	text := fmt.Sprintf("%s %d", dns.RcodeToString[m.Rcode], len(m.Answer))
	if m.Truncated {
		text += " TC"
	}
	return text
}

// transports are how the tests ask.
var limitTransports = map[string]config.Transport{
	"udp": config.PlainDNS, "tcp": config.PlainDNS, "tcp-tls": config.DNSOverTLS, "http/1.1": config.DNSOverHTTPS, "http/2": config.DNSOverHTTPS,
}

func startLimited(t *testing.T, place, network string, limit *resolver.ClientLimit) *limitedServer {
	t.Helper()
	x := &limitedServer{limit: limit}
	limits, zone := patientLimits(), byHand(t)
	limits.Readers = 1
	limitPlaces[place](x.limit, &limits, zone)
	s, addr, roots := startListener(t, limits, ListenerConfig{Transport: limitTransports[network]}, zone)
	x.addr = addr
	x.table = clients.New(clients.Options{})
	cfg := s.listeners[ListenAddr{AddrPort: addr}].config.Load().ListenerConfig
	routes := resolver.NewRoutes([]*resolver.Zone{zone}, resolver.NewStats())
	routes.Clients, cfg.Routes = x.table, routes
	if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: addr}: cfg}); err != nil {
		t.Fatal(err)
	}
	q := question("by.hand.", dns.TypeA)
	if limitTransports[network] == config.DNSOverHTTPS {
		client := openHTTPS(t, &tls.Config{RootCAs: roots}, network == "http/2")
		x.ask = func() string {
			m, _, err := client.ask(addr, q)
			if err != nil {
				return err.Error()
			}
			return short(m)
		}
		return x
	}
	client := dns.Client{Net: network, Timeout: patience, TLSConfig: &tls.Config{RootCAs: roots}}
	x.ask = func() string {
		m, _, err := client.Exchange(q, addr.String())
		if err != nil {
			return err.Error()
		}
		if len(m.Question) != 1 || m.Question[0] != q.Question[0] {
			t.Errorf("the question of the reply is %v", m.Question)
		}
		return short(m)
	}
	return x
}

// checkLimited compares what the table has counted.
func (x *limitedServer) checkLimited(t *testing.T, queries, limited uint64) {
	t.Helper()
	total := x.table.Report(clients.Pods, clients.Hour).Total
	if total.Queries() != queries || total.Limited[clients.ReasonClientLimit] != limited || total.AllLimited() != limited {
		t.Errorf("%d queries and %d limited ones are counted, want %d and %d", total.Queries(), total.AllLimited(), queries, limited)
	}
}

// TestClientLimit: what a query over the limit gets, by transport and action, of the agent and of a block.
func TestClientLimitReplies(t *testing.T) {
	for place := range limitPlaces {
		for network, via := range limitTransports {
			for _, action := range []config.LimitAction{config.LimitRefuse, config.LimitTruncate, config.LimitDrop} {
				if network == "udp" && action == config.LimitDrop {
					continue // see TestClientLimitDrop
				}
				t.Run(strings.Join([]string{place, network, action.String()}, "/"), func(t *testing.T) {
					x := startLimited(t, place, network, newLimit(action))
					if got := x.ask(); got != "NOERROR 1" {
						t.Errorf("within the limit: %s", got)
					}
					exhaust(x.limit, loopback)
					want := "REFUSED 0"
					switch {
					case via == config.DNSOverHTTPS:
						want = statusError(http.StatusTooManyRequests).Error()
					case network == "udp" && action == config.LimitTruncate:
						want = "NOERROR 0 TC"
					}
					queries, limited := uint64(1), uint64(3)
					if network != "udp" && action == config.LimitTruncate { // where the client of a truncated reply asks again
						want, queries, limited = "NOERROR 1", 4, 0
					}
					for range 3 {
						if got := x.ask(); got != want {
							t.Errorf("over the limit: %s, want %s", got, want)
						}
					}
					x.checkLimited(t, queries, limited)
				})
			}
		}
	}
}

// TestClientLimitDrop: a query over the limit that is to be dropped gets no reply, and those of others do.
func TestClientLimitDrop(t *testing.T) {
	for place := range limitPlaces {
		t.Run(place, func(t *testing.T) {
			x := startLimited(t, place, "udp", newLimit(config.LimitDrop))
			other := netip.MustParseAddr("127.0.0.7")
			exhaust(x.limit, other)
			conn, err := net.DialUDP("udp", &net.UDPAddr{IP: other.AsSlice()}, net.UDPAddrFromAddrPort(x.addr))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			packet, err := question("by.hand.", dns.TypeA).Pack()
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if _, err := conn.Write(packet); err != nil {
					t.Fatal(err)
				}
			}
			if got := x.ask(); got != "NOERROR 1" { // after those, by the same reader
				t.Errorf("another client: %s", got)
			}
			if n := received(t, conn); n > 0 {
				t.Errorf("a reply of %d bytes", n)
			}
			x.checkLimited(t, 1, 3)
		})
	}
}

// received returns the length of a packet in conn's queue, 0 for none. It does not wait.
func received(t *testing.T, conn *net.UDPConn) (n int) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Read(func(fd uintptr) bool {
		n, _, err = unix.Recvfrom(int(fd), make([]byte, udp.ReplyBuffer), unix.MSG_DONTWAIT)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return max(n, 0)
}

// TestClientLimitPackets: packets over the limit that are no queries get no reply, and broken ones none that is longer.
func TestClientLimitPackets(t *testing.T) {
	query, err := question("by.hand.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	reply := append([]byte{}, query...)
	reply[2] |= 0x80
	cut := query[:len(query)-5]
	compressed := append(append([]byte{}, query[:12]...), 0xc0, 12, 0, 1, 0, 1)
	l := newLimit(config.LimitRefuse)
	for name, tt := range map[string]struct {
		packet []byte
		want   int
	}{
		"query": {query, len(query)}, "reply": {reply, 0}, "empty": {nil, 0}, "half a header": {query[:11], 0}, "header": {query[:12], 12},
		"cut": {cut, 12}, "compressed": {compressed, 12}, "with more": {append(append([]byte{}, query...), 1, 2, 3), len(query)},
	} {
		t.Run(name, func(t *testing.T) {
			for _, proto := range []resolver.Proto{resolver.UDP, resolver.TCP} {
				if got := l.Refuse(nil, tt.packet, proto); len(got) != tt.want {
					t.Errorf("the reply is %x, want %d bytes", got, tt.want)
				}
			}
		})
	}
}

// TestClientLimitMixed: of queries at a higher rate, exactly those within the limit are answered.
func TestClientLimitMixed(t *testing.T) {
	const burst, all = 7, 30
	for place := range limitPlaces {
		t.Run(place, func(t *testing.T) {
			x := startLimited(t, place, "udp", &resolver.ClientLimit{Limiter: ratelimit.New(ratelimit.Options{Rate: 1, Burst: burst})})
			began := clock.Now()
			counts := make(map[string]uint64)
			for range all {
				counts[x.ask()]++
			}
			most := burst + 1 + uint64((clock.Now()-began)/time.Second) // the rate goes on
			if n := counts["NOERROR 1"]; n < burst || n > most || n+counts["REFUSED 0"] != all {
				t.Errorf("%v, want %d to %d answers", counts, burst, most)
			}
			x.checkLimited(t, counts["NOERROR 1"], counts["REFUSED 0"])
		})
	}
}

// TestClientLimitAlloc: neither a query within the limit nor one over it costs an allocation.
func TestClientLimitAlloc(t *testing.T) {
	l := newLimit(config.LimitRefuse)
	s := New(nil, Limits{Client: l})
	t.Cleanup(s.stop)
	r := &resolver.Request{Client: netip.AddrPortFrom(loopback, 53)}
	rt := resolver.NewRoutes(nil, resolver.NewStats())
	rt.Clients = clients.New(clients.Options{})
	packet, err := question("by.hand.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	out := make([]byte, 0, udp.ReplyBuffer)
	for _, over := range []bool{false, true} {
		if over {
			exhaust(l, loopback)
			s.overLimit(rt, r) // takes a slot of the table
		}
		if n := testing.AllocsPerRun(100, func() {
			if s.overLimit(rt, r) {
				l.Refuse(out, packet, resolver.UDP)
			}
		}); n > 0 {
			t.Errorf("over the limit %t: %v allocations", over, n)
		}
	}
}

// TestShedRequestCounts: a request over HTTPS that gets no place is counted for its client.
func TestShedRequestCounts(t *testing.T) {
	s, addr, roots := startListener(t, patientLimits(), dohConfig, byHand(t))
	table := clients.New(clients.Options{})
	s.listeners[ListenAddr{AddrPort: addr}].config.Load().Routes.Clients = table
	h := s.listeners[ListenAddr{AddrPort: addr}].https.requests
	drain := func(on bool) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.draining = on
	}
	drain(true)
	_, _, err := openHTTPS(t, &tls.Config{RootCAs: roots}, true).ask(addr, question("by.hand.", dns.TypeA))
	drain(false)
	if !errors.Is(err, statusError(http.StatusServiceUnavailable)) {
		t.Errorf("the reply is %v, want status 503", err)
	}
	if total := table.Report(clients.Pods, clients.Hour).Total; total.Limited[clients.ReasonPlaces] != 1 || total.AllLimited() != 1 {
		t.Errorf("the counts are %+v", total)
	}
}
