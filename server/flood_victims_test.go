// These tests use waiting, which is not exported.

package server

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// errAborted is the error of a request whose stream has lost its place while its reply was written.
var errAborted = errors.New("the stream is reset")

// askName asks for the addresses of a name and returns whether there are any. It may be called by several
// goroutines only over HTTPS.
type askName func(name string) (bool, error)

// newAskName returns what the client at from asks addr with.
func newAskName(t *testing.T, network, from string, addr netip.AddrPort, cfg *tls.Config) askName {
	t.Helper()
	if network != "https" {
		c := newAsker(t, network, from, addr)
		return func(name string) (bool, error) {
			if err := c.WriteMsg(question(name, dns.TypeA)); err != nil {
				return false, err
			}
			m, err := c.ReadMsg()
			return err == nil && m.Rcode == dns.RcodeSuccess && len(m.Answer) > 0, err
		}
	}
	c := newHTTPSFrom(t, cfg, from)
	return func(name string) (bool, error) {
		m, _, err := c.ask(addr, question(name, dns.TypeA))
		switch {
		case errors.Is(err, statusError(http.StatusServiceUnavailable)):
			return false, nil
		case err != nil && strings.Contains(err.Error(), "INTERNAL_ERROR"):
			return false, errAborted
		}
		return err == nil && m.Rcode == dns.RcodeSuccess && len(m.Answer) > 0, err
	}
}

// flooder is a client whose queries always take all places.
type flooder struct {
	t                *testing.T
	stop             chan struct{}
	refused, aborted atomic.Uint64
	all              sync.WaitGroup
}

// run asks with each of asks for names that nobody has asked for, whose upstream is silent.
func (f *flooder) run(asks []askName) {
	for i, ask := range asks {
		f.all.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-f.stop:
					return
				default:
				}
				switch ok, err := ask(fmt.Sprintf("n%d-%d.hold.test.", i, n)); {
				case errors.Is(err, errAborted):
					f.aborted.Add(1)
				case err != nil:
					f.t.Errorf("the flooder: %v", err)
					return
				case !ok:
					f.refused.Add(1)
				}
			}
		})
	}
}

// haveTurns gives s so many turns of workers that none of n clients' queries waits for one, and none is
// dropped because of that. s has answered no query yet.
func haveTurns(s *Server, n int) {
	s.turns.mu.Lock()
	defer s.turns.mu.Unlock()
	s.turns.slots = share.NewSlots[*pendingQuery](8 * n)
}

// TestFloodBesideVictims: beside a client that takes all waiting places with names that its upstream does
// not answer, no query of twenty other clients is refused, over each transport, hits and misses.
func TestFloodBesideVictims(t *testing.T) {
	const places, excess, victims, each = 128, 32, 20, 12
	for network, transport := range map[string]config.Transport{"udp": config.PlainDNS, "tcp": config.PlainDNS, "https": config.DNSOverHTTPS} {
		t.Run(network, func(t *testing.T) {
			release := make(chan struct{})
			b := resolvertest.StartBackend(t, withholding(release))
			z := &resolver.Zone{
				Name: wire.Root, Stats: resolver.NewStats(), Cache: resolvertest.Cache(),
				Hosts: resolvertest.Hosts(t, true, "192.0.2.9 by.hand"), Forward: patientPool(t, b.Addr()),
			}
			limits := patientLimits()
			limits.Waiting = places
			s, addr, roots := startListener(t, limits, ListenerConfig{Transport: transport}, z)
			haveTurns(s, places+excess)
			cfg := &tls.Config{RootCAs: roots}
			f := &flooder{t: t, stop: make(chan struct{})}
			asks := make([]askName, places+excess)
			for i := range asks {
				if asks[i] = asks[0]; i == 0 || network != "https" {
					asks[i] = newAskName(t, network, "127.0.0.9", addr, cfg)
				}
			}
			f.run(asks)
			eventually(t, "the flooder to hold all places, and to lose some", func() bool { return s.waiting.InUse() == places && f.refused.Load() > 0 })
			var all sync.WaitGroup
			for v := range victims {
				ask := newAskName(t, network, fmt.Sprintf("127.0.0.%d", 10+v), addr, cfg)
				all.Go(func() {
					for n := range each {
						name := fmt.Sprintf("v%d-%d.test.", v, n)
						if n%2 > 0 {
							name = "by.hand."
						}
						if ok, err := ask(name); !ok {
							t.Errorf("victim %d is refused %s (%v)", v, name, err)
						}
					}
				})
			}
			all.Wait()
			if n := s.waiting.InUse(); n < places/2 {
				t.Errorf("the flooder holds only %d places in the end", n)
			}
			close(f.stop)
			close(release)
			f.all.Wait()
			// A refusal, too, may be cut off while it is written.
			if n, least := shed(s), f.refused.Load(); n < least || n > least+f.aborted.Load() {
				t.Errorf("%d queries are counted as refused; %d of the flooder's were, and %d aborted", n, least, f.aborted.Load())
			}
		})
	}
}

// newHTTPSFrom is a client over HTTP/2 at from, for as long as the test lasts.
func newHTTPSFrom(t *testing.T, cfg *tls.Config, from string) httpsClient {
	t.Helper()
	c := openHTTPS(t, cfg, true)
	d := &net.Dialer{Timeout: patience, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))}
	c.Transport.(*http.Transport).DialContext = d.DialContext
	return c
}

// TestFloodOfMisses: a client floods the reader with queries to be forwarded, beyond what it can start. The reader drops queries of
// this client only, and others are answered meanwhile.
func TestFloodOfMisses(t *testing.T) {
	b := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1"))
	s, addr := start(t, Limits{Readers: 1}, &resolver.Zone{Name: wire.Root, Forward: patientPool(t, b.Addr())})
	s.turns.mu.Lock()
	s.turns.slots = share.NewSlots[*pendingQuery](1) // a flood exceeds it on any machine
	s.turns.mu.Unlock()
	table := s.listeners[ListenAddr{AddrPort: addr}].config.Load().Routes.Clients
	packet, err := question("flood.test.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	from := netip.MustParseAddr("127.4.0.1")
	var stop atomic.Bool
	var all sync.WaitGroup
	defer all.Wait()
	defer stop.Store(true)
	for range 2 {
		conn := dialFrom(t, from, addr)
		all.Go(func() { floodSocket(conn, packet, &stop) })
	}
	var victims []netip.Addr
	var answered atomic.Uint64
	for i := range 5 {
		victims = append(victims, netip.AddrFrom4([4]byte{127, 4, 1, byte(i)}))
		conn := dialFrom(t, victims[i], addr)
		all.Go(func() {
			for buf := make([]byte, 4096); !stop.Load(); {
				_, _ = conn.Write(packet)
				_ = conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
				if _, err := conn.Read(buf); err == nil {
					answered.Add(1)
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	eventually(t, "the flood to lose queries, and victims to be answered", func() bool { return droppedPackets(table, from) > 0 && answered.Load() >= 20 })
	stop.Store(true)
	all.Wait()
	for _, v := range victims {
		if n := droppedPackets(table, v); n > 0 {
			t.Errorf("%d packets of %s are dropped, which asks at most 50 times a second", n, v)
		}
	}
}
