package upstream

import (
	"crypto/tls"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
)

// hostileStream is hostile, and breaks connections, too.
func (h *hostile) stream(r request) {
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

// TestHostileStream is TestHostile over connections that break, to a server that has
// a script, one that is silent and one where nobody is.
func TestHostileStream(t *testing.T) {
	a := newAuthority(t)
	for name, cfg := range map[string]*tls.Config{"TCP": nil, "TLS": a.server("dns.test")} {
		t.Run(name, func(t *testing.T) {
			goroutines, before := runtime.NumGoroutine(), openSockets(t)
			t.Run("exchanges", func(t *testing.T) { besiegeStream(t, a, cfg) })
			eventually(t, "goroutines and sockets are gone", func() bool {
				return runtime.NumGoroutine() <= goroutines && openSockets(t) <= before
			})
		})
	}
}

func besiegeStream(t *testing.T, a *authority, server *tls.Config) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	h := &hostile{random: rand.New(rand.NewPCG(seed, 0))}
	bad, dead, gone := startFakeTLS(t, server, h.stream), startFakeTLS(t, server, silence), startFake(t, silence)
	gone.tcp.Close()
	cfg := directive(bad, dead, bad, gone)
	cfg.Policy, cfg.ForceTCP = config.PolicyRoundRobin, true
	cfg.MaxFails, cfg.ReadTimeout = 0, 50*time.Millisecond
	p := start(t, cfg)
	for _, s := range p.servers() {
		s.tcp.close()
		opts := streamOptions{unexpected: &s.unexpected, expire: 20 * time.Millisecond, maxAge: 60 * time.Millisecond, maxIdle: 1}
		if server != nil {
			opts.tls = a.client("dns.test")
		}
		s.tcp = newStreamTransport(s.addr, opts)
	}
	askHostile(t, p)
	for _, s := range p.servers() {
		// The Pool itself may still look whether a server that was doubted answers.
		eventually(t, "no query is in flight to "+s.label, func() bool { return s.tcp.(*streamTransport).inFlightCount() == 0 })
	}
	if p.Stats().Servers[0].UnexpectedReplies == 0 {
		t.Error("no stray is counted")
	}
	p.Close()
	if n := live(p); n != 0 {
		t.Errorf("%d sockets are held by a closed pool", n)
	}
}
