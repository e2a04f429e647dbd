// Inside the package: the tests use transports without a Pool.

package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/nodens-dns/nodens/internal/config"
)

// countDials counts the attempts of d to connect.
func countDials(d *dohTransport) *atomic.Int64 {
	n, dial := new(atomic.Int64), d.client.DialContext
	d.client.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		n.Add(1)
		return dial(ctx, network, addr)
	}
	return n
}

// failManyOnce sends queries one after the other, which fail, and checks that the attempts to connect
// are those of the first query and of one per pause.
func failManyOnce(t *testing.T, via transport, attempts func() int64) {
	t.Helper()
	before, begun := attempts(), time.Now()
	for range 200 {
		if err := roundTripOnce(t, via); err == nil || isTimeout(err) {
			t.Fatalf("a query ends with %v, want the error of the attempt to connect", err)
		}
	}
	if n, most := attempts()-before, 1+int64(time.Since(begun)/firstConnectPause); n > most {
		t.Errorf("%d attempts to connect, want %d at most", n, most)
	}
}

// TestGracefulShutdown: a server that still answers the queries it has, and takes no more, neither on
// the connection nor on others. Further queries fail at once, and cause few attempts to connect.
func TestGracefulShutdown(t *testing.T) {
	a := newAuthority(t)
	for _, tt := range []struct {
		name      string
		tls       *tls.Config
		transport func(config.Target, connOptions) transport
	}{
		{"HTTPS", a.client("dns.test"), func(to config.Target, opts connOptions) transport {
			return newDoHTransport(to, to.Addr, dohOptions{connOptions: opts})
		}},
		{"gRPC", nil, func(to config.Target, opts connOptions) transport { return newGRPCTransport(to, to.Addr, opts) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var queries atomic.Int64
			hold := make(chan struct{})
			s := &http.Server{TLSConfig: a.server("dns.test"), Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				queries.Add(1)
				if r.ContentLength = 0; queries.Load() > 1 {
					<-hold
				}
				http.Error(w, "", http.StatusTeapot) // a reply, as far as the connection is concerned
			})}
			s.Protocols.SetHTTP2(true)
			s.Protocols.SetUnencryptedHTTP2(true)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			noError(t, err)
			served := make(chan struct{})
			go func() {
				defer close(served)
				if tt.tls != nil {
					_ = s.ServeTLS(l, "", "")
				} else {
					_ = s.Serve(l)
				}
			}()
			d := tt.transport(config.Target{Addr: l.Addr().(*net.TCPAddr).AddrPort()}, connOptions{expire: time.Hour, tls: tt.tls}).(*dohTransport)
			t.Cleanup(d.close)
			dials := countDials(d)
			_ = roundTripOnce(t, d)
			slow := fixedQuery(t)
			slow.deadline = time.Now().Add(time.Hour)
			d.start(slow)
			eventually(t, "a query is in flight", func() bool { return queries.Load() == 2 })
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				_ = s.Shutdown(context.Background())
			}()
			<-served
			eventually(t, "the connection takes no more", func() bool {
				d.mu.Lock()
				defer d.mu.Unlock()
				return len(d.open) == 1 && d.open[0].draining()
			})
			failManyOnce(t, d, dials.Load)
			if err := roundTripOnce(t, d); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("the error is %v, want that of the attempt to connect", err)
			}
			close(hold)
			if <-slow.done; isConnectionError(slow.err) {
				t.Errorf("the query in flight: %v", slow.err)
			}
			<-stopped
		})
	}
}

// isConnectionError reports whether a query ended without any HTTP response.
func isConnectionError(err error) bool {
	return err == nil || errors.Is(err, syscall.ECONNREFUSED) || isTimeout(err) || errors.Is(err, errEndedUnanswered)
}

// TestConnectionsEndAtOnce: a server that accepts connections and closes them is like one that refuses
// them. Its first reply ends the pauses.
func TestConnectionsEndAtOnce(t *testing.T) {
	a := newAuthority(t)
	t.Run("TCP", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		noError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.Close()
			}
		}()
		to := config.Target{Addr: l.Addr().(*net.TCPAddr).AddrPort()}
		for name, opts := range map[string]connOptions{
			"TCP": {expire: time.Hour},
			"TLS": {expire: time.Hour, tls: a.client("dns.test")},
		} {
			t.Run(name, func(t *testing.T) {
				d := newStreamTransport(to.Addr, opts)
				t.Cleanup(d.close)
				_ = roundTripOnce(t, d) // the first end begins no pause
				failManyOnce(t, d, func() int64 { _, misses := d.reuse(); return int64(misses) })
			})
		}
		for name, via := range map[string]transport{
			"HTTPS": newDoHTransport(to, to.Addr, dohOptions{connOptions: connOptions{expire: time.Hour, tls: a.client("dns.test")}}),
			"gRPC":  newGRPCTransport(to, to.Addr, connOptions{expire: time.Hour}),
		} {
			t.Run(name, func(t *testing.T) {
				d := via.(*dohTransport)
				t.Cleanup(d.close)
				failManyOnce(t, d, countDials(d).Load)
			})
		}
	})
	t.Run("TCP, nobody listens", func(t *testing.T) {
		f := startFake(t, answerOK)
		f.server.Close()
		via := newStreamTransport(f.addr, connOptions{expire: time.Hour}).(*streamTransport)
		t.Cleanup(via.close)
		attempts := func() int64 { _, misses := via.reuse(); return int64(misses) }
		failManyOnce(t, via, attempts)
		via.mu.Lock()
		via.queryLimit, via.queryLimitUntil = 1, time.Now().Add(time.Hour)
		via.mu.Unlock()
		failManyOnce(t, via, attempts)
		f.run(answerOK)
		to := f.addr
		eventually(t, "it answers", func() bool {
			via.mu.Lock()
			via.addr = to
			via.mu.Unlock()
			return roundTripOnce(t, via) == nil
		})
		if via.mu.Lock(); via.pause != (connectPause{}) {
			t.Error("a pause is left after a reply")
		}
		via.mu.Unlock()
	})
	t.Run("QUIC", func(t *testing.T) {
		f := startFakeQUIC(t, a.server("dns.test"), nil, func(r request) { _ = r.quicConn.CloseWithError(doqInternalError, "") })
		via := newDoQ(t, a, f, connOptions{expire: time.Hour})
		failManyOnce(t, via, func() int64 { _, misses := via.reuse(); return int64(misses) })
		f.setScript(answerOK)
		eventually(t, "it answers", func() bool { return roundTripOnce(t, via) == nil })
		if via.pause != (connectPause{}) {
			t.Error("a pause is left after a reply")
		}
	})
	t.Run("QUIC, nobody listens", func(t *testing.T) {
		f := startFakeQUIC(t, a.server("dns.test"), nil, answerOK)
		f.killQUIC()
		via := newDoQ(t, a, f, connOptions{expire: time.Hour})
		failManyOnce(t, via, func() int64 { _, misses := via.reuse(); return int64(misses) })
	})
	t.Run("QUIC refused", func(t *testing.T) {
		f := startFakeQUIC(t, a.server("dns.test"), func(q *fakeQUIC) {
			q.config.GetConfigForClient = func(*quic.ClientInfo) (*quic.Config, error) { return nil, errors.New("no") }
		}, answerOK)
		via := newDoQ(t, a, f, connOptions{expire: time.Hour})
		failManyOnce(t, via, func() int64 { _, misses := via.reuse(); return int64(misses) })
	})
}

// TestConnectPause: the pauses double up to a limit, and end with the first reply.
func TestConnectPause(t *testing.T) {
	var p connectPause
	now := time.Now()
	for _, ms := range []int{100, 200, 400, 400, 400} {
		want := time.Duration(ms) * time.Millisecond
		if p.err(now) != nil {
			t.Fatal("there is a pause before the attempt")
		}
		p.start(errCutOff, now)
		now = now.Add(want - 1)
		if !errors.Is(p.err(now), errCutOff) {
			t.Fatalf("no pause after %v", want)
		}
		now = now.Add(1)
	}
	p.start(errCutOff, now)
	if p.end(); p.err(now) != nil || p.failures != 0 {
		t.Error("a reply does not end the pause")
	}
}
