// Inside the package: the tests use a stream transport without a Pool.

package upstream

import (
	"crypto/tls"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
)

// streamScript is hostile.script that also closes connections.
func (h *hostile) streamScript(r request) {
	h.mu.Lock()
	end := h.random.IntN(40)
	h.mu.Unlock()
	switch end {
	case 0:
		r.conn.Close()
	case 1:
		r.conn.Write([]byte{0, 40, 1, 2, 3})
		r.conn.Close()
	case 2:
		r.send(nil)
		h.script(r)
	default:
		h.script(r)
	}
}

// TestHostileStream is TestHostile over connections that fail, to a scripted, a silent and
// an absent server.
func TestHostileStream(t *testing.T) {
	a := newAuthority(t)
	for name, cfg := range map[string]*tls.Config{"TCP": nil, "TLS": a.server("dns.test")} {
		t.Run(name, func(t *testing.T) {
			goroutines, before := runtime.NumGoroutine(), openSockets(t)
			t.Run("exchanges", func(t *testing.T) { attackStream(t, a, cfg) })
			eventually(t, "goroutines and sockets are gone", func() bool {
				return runtime.NumGoroutine() <= goroutines && openSockets(t) <= before
			})
		})
	}
}

func attackStream(t *testing.T, a *authority, server *tls.Config) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	h := &hostile{random: rand.New(rand.NewPCG(seed, 0))}
	bad, dead, gone := startFakeTLS(t, server, h.streamScript), startFakeTLS(t, server, ignore), startFake(t, ignore)
	gone.server.Close()
	cfg := forwardTo(bad, dead, bad, gone)
	cfg.Policy, cfg.ForceTCP = config.PolicyRoundRobin, true
	cfg.MaxFails, cfg.ReadTimeout = 0, 50*time.Millisecond
	p := newPool(t, cfg)
	for _, s := range p.servers() {
		s.tcp.close()
		opts := connOptions{unexpected: &s.unexpected, expire: 20 * time.Millisecond, maxAge: 60 * time.Millisecond, maxIdle: 1}
		if server != nil {
			opts.tls = a.client("dns.test")
		}
		s.tcp = newStreamTransport(s.addr, opts)
	}
	askHostile(t, p)
	for _, s := range p.servers() {
		// The Pool may still be probing a suspect server.
		eventually(t, "no query is in flight to "+s.label, func() bool { return s.tcp.(*streamTransport).inFlightCount() == 0 })
	}
	if p.Stats().Servers[0].UnexpectedReplies == 0 {
		t.Error("no stray is counted")
	}
	p.Close()
	count(t, liveConns(p), 0, "sockets are held by a closed pool")
}
