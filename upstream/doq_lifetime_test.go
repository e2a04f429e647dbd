// Inside the package: the tests use the DoQ transport without a Pool.

package upstream

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/nodens-dns/nodens/internal/config"
)

// TestDoQResumption: the second connection resumes the first one's session, without 0-RTT.
func TestDoQResumption(t *testing.T) {
	a := newAuthority(t)
	f := startFakeQUIC(t, a.server("dns.test"), func(q *fakeQUIC) { q.config.Allow0RTT = true }, answerOK)
	via := newDoQ(t, a, f, connOptions{expire: time.Hour})
	for range 2 {
		noError(t, roundTripOnce(t, via))
		eventually(t, "the connection has a session ticket", func() bool {
			_, ok := via.tls.ClientSessionCache.Get("dns.test")
			return ok
		})
		eventually(t, "the connection is closed", func() bool {
			via.closeIdle(time.Now().Add(2 * time.Hour))
			_, open := f.quicConns()
			return open == 0
		})
	}
	for i, r := range f.requests() {
		if s := r.quicConn.ConnectionState(); s.TLS.DidResume != (i > 0) || s.Used0RTT {
			t.Errorf("connection %d: resumed %t, 0-RTT %t", i, s.TLS.DidResume, s.Used0RTT)
		}
	}
}

// TestDoQLifetimes: connections end after expire and max_age, and with the last query if
// none are kept.
func TestDoQLifetimes(t *testing.T) {
	a := newAuthority(t)
	for name, tt := range map[string]struct {
		opts  connOptions
		after time.Duration
	}{
		"expire":       {connOptions{expire: time.Second}, time.Second},
		"max_age":      {connOptions{expire: time.Hour, maxAge: time.Hour}, time.Hour},
		"nothing kept": {connOptions{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFakeQUIC(t, a.server("dns.test"), nil, answerOK)
			via := newDoQ(t, a, f, tt.opts)
			noError(t, roundTripOnce(t, via))
			eventually(t, "the connection is closed", func() bool {
				if tt.after > 0 {
					via.closeIdle(time.Now().Add(tt.after))
				}
				_, open := f.quicConns()
				return open == 0
			})
			c := f.requests()[0].quicConn
			var app *quic.ApplicationError
			if err := context.Cause(c.Context()); !errors.As(err, &app) || app.ErrorCode != doqNoError {
				t.Errorf("the connection ended with %v, want DOQ_NO_ERROR", err)
			}
		})
	}
}

// TestDoQUnderLoad has more queries at once than the server has streams, and cancels some:
// each gets its own answer, over one connection, and nothing is left over.
func TestDoQUnderLoad(t *testing.T) {
	a := newAuthority(t)
	goroutines, before := runtime.NumGoroutine(), openSockets(t)
	t.Run("queries", func(t *testing.T) { loadDoQ(t, a) })
	eventually(t, "goroutines and sockets are gone", func() bool {
		return runtime.NumGoroutine() <= goroutines && openSockets(t) <= before
	})
}

func loadDoQ(t *testing.T, a *authority) {
	f := startFakeQUIC(t, a.server("dns.test"), func(q *fakeQUIC) { q.config.MaxIncomingStreams = 10 }, func(r request) {
		time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
		answerOK(r)
	})
	via := newDoQ(t, a, f, connOptions{expire: time.Hour, connectTimeout: time.Hour})
	askManyAtOnce(t, via)
	eventually(t, "all are over", func() bool {
		via.mu.Lock()
		defer via.mu.Unlock()
		return via.running == 0 && via.inFlight.Total() == 0 && (via.current == nil || via.current.inFlight == 0) // none is left after an error
	})
	if _, open := f.quicConns(); open > maxConnsDoQ {
		t.Errorf("%d connections are open, want %d at most", open, maxConnsDoQ)
	}
}

// TestDoQName: the name of an upstream over QUIC is looked up, and its certificate is for
// that name.
func TestDoQName(t *testing.T) {
	a := newAuthority(t)
	f := startFakeQUIC(t, a.server("upstream.test"), nil, answerOK)
	cfg := longTimeout()
	cfg.TLS = &config.TLSClient{CA: a.file}
	cfg.Resolver = []netip.AddrPort{startFake(t, answerLoopback(3600)).addr}
	cfg.To = []config.Target{{Transport: config.DNSOverQUIC, Host: "upstream.test", Port: f.addr.Port()}}
	p := newPool(t, cfg)
	mustExchange(t, p, 0)
	if got := serverAddrs(p); len(got) != 1 || got[0] != f.addr {
		t.Errorf("servers %v, want %v", got, f.addr)
	}
	if r := f.requests()[0]; r.quicConn.ConnectionState().TLS.ServerName != "upstream.test" {
		t.Errorf("asked for the server %s", r.quicConn.ConnectionState().TLS.ServerName)
	}
}
