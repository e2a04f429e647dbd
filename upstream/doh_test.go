// Inside the package: the tests use the DoH transport without a Pool.

package upstream

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// dohServer is an HTTPS server whose certificate is for dns.test.
type dohServer struct {
	*httptest.Server
	authority *authority
	conns     atomic.Int64 // open connections
	made      atomic.Int64
}

// startDoHServer runs handle until the test ends.
func startDoHServer(t *testing.T, a *authority, set func(*httptest.Server), handle http.HandlerFunc) *dohServer {
	t.Helper()
	w := &dohServer{Server: httptest.NewUnstartedServer(handle), authority: a}
	w.EnableHTTP2 = true
	w.TLS = a.server("dns.test")
	w.Config.ErrorLog = log.New(io.Discard, "", 0)
	w.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			w.conns.Add(1)
			w.made.Add(1)
		case http.StateClosed, http.StateHijacked:
			w.conns.Add(-1)
		}
	}
	if set != nil {
		set(w.Server)
	}
	w.StartTLS()
	t.Cleanup(w.Close)
	return w
}

func (w *dohServer) addr() netip.AddrPort { return w.Listener.Addr().(*net.TCPAddr).AddrPort() }

// newTransport returns a transport to w.
func (w *dohServer) newTransport(t *testing.T, opts dohOptions) *dohTransport {
	t.Helper()
	if opts.tls == nil {
		opts.tls = w.authority.client("")
	}
	d := newDoHTransport(config.Target{Transport: config.DNSOverHTTPS, Host: "dns.test"}, w.addr(), opts).(*dohTransport)
	t.Cleanup(d.close)
	return d
}

// messageOf returns the DNS message in r.
func messageOf(r *http.Request) []byte {
	b, _ := io.ReadAll(r.Body)
	if r.Method == http.MethodGet {
		b, _ = base64.RawURLEncoding.DecodeString(r.URL.Query().Get("dns"))
	}
	return b
}

// answerDoH answers like echoServer.
func answerDoH(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", messageType)
	w.Write(answerA(messageOf(r)))
}

// TestDoHRequest checks the request that a server receives, for both methods.
func TestDoHRequest(t *testing.T) {
	type request struct {
		Proto, Method, Host, URI, Type, Accept, Agent, Key string
		ID                                                 []byte
	}
	a := newAuthority(t)
	message := fixedQuery(t).message()
	message[0], message[1] = 0, 0
	get := "/dns-query?dns=" + base64.RawURLEncoding.EncodeToString(message)
	for _, tt := range []struct {
		name   string
		target config.Target
		method string
		want   request
	}{
		{"POST", config.Target{Host: "dns.test"}, "", request{Method: "POST", Host: "dns.test", URI: "/dns-query", Type: messageType}},
		{"GET", config.Target{Host: "dns.test"}, "GET", request{Method: "GET", Host: "dns.test", URI: get}},
		{"another path", config.Target{Host: "dns.test", Path: "/q/x"}, "POST", request{Method: "POST", Host: "dns.test", URI: "/q/x", Type: messageType}},
		{"an address and a name", config.Target{}, "", request{Method: "POST", Host: "dns.test", URI: "/dns-query", Type: messageType}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got request
			w := startDoHServer(t, a, nil, func(w http.ResponseWriter, r *http.Request) {
				h := r.Header
				host, _, _ := net.SplitHostPort(r.Host)
				b := messageOf(r)
				got = request{r.Proto, r.Method, host, r.RequestURI, h.Get("Content-Type"), h.Get("Accept"), h.Get("User-Agent"), h.Get("Idempotency-Key"), b[:2]}
				w.Header().Set("Content-Type", messageType)
				w.Write(answerA(b))
			})
			opts := dohOptions{method: tt.method, connOptions: connOptions{expire: time.Hour, tls: a.client("")}}
			if tt.target.Host == "" {
				opts.tls = a.client("dns.test")
			}
			d := newDoHTransport(tt.target, w.addr(), opts)
			defer d.close()
			q := fixedQuery(t)
			msg, err := roundTrip(t.Context(), d, q, time.Now().Add(20*time.Second))
			noError(t, err)
			if r, err := parseResponse(msg, q); err != nil || r.Answers != 1 {
				t.Errorf("%d answers, %v; want 1", r.Answers, err)
			}
			tt.want.Proto, tt.want.Accept, tt.want.ID = "HTTP/2.0", messageType, []byte{0, 0}
			equal(t, tt.want, got, "wrong request")
		})
	}
}

// TestDoHErrors: an invalid response is an error that gives the reason.
func TestDoHErrors(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	typed := func(f func(w http.ResponseWriter, r *http.Request)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", messageType)
			f(w, r)
		}
	}
	for _, tt := range []struct {
		name   string
		handle http.HandlerFunc
		client *tls.Config
		want   string
	}{
		{"status", func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", http.StatusForbidden) }, nil, "HTTP status 403"},
		{"a page", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "<html>") }, nil, `media type "text/html`},
		{"a redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/x", http.StatusFound) }, nil, "HTTP status 302"},
		{"no type", func(w http.ResponseWriter, r *http.Request) {
			w.Header()["Content-Type"] = nil
			w.Write(answerA(messageOf(r)))
		}, nil, `media type ""`},
		{"too long", typed(func(w http.ResponseWriter, r *http.Request) { w.Write(make([]byte, wire.MaxMessage+1)) }), nil, errTooLong.Error()},
		{"empty", typed(func(http.ResponseWriter, *http.Request) {}), nil, errMismatch.Error()},
		{"another's answer", typed(func(w http.ResponseWriter, r *http.Request) {
			b := answerA(messageOf(r))
			b[headerLen+1] ^= 1
			w.Write(b)
		}), nil, errMismatch.Error()},
		{"another's ID", typed(func(w http.ResponseWriter, r *http.Request) {
			b := answerA(messageOf(r))
			b[0] = 7
			w.Write(b)
		}), nil, errMismatch.Error()},
		{"a denial without a question", typed(func(w http.ResponseWriter, r *http.Request) {
			w.Write([]byte{0, 0, qrBit, byte(wire.NXDomain), 0, 0, 0, 0, 0, 0, 0, 0})
		}), nil, errMismatch.Error()},
		{"cut off", typed(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			w.Write(make([]byte, 50))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}), nil, "INTERNAL_ERROR"},
		{"headers without end", func(w http.ResponseWriter, r *http.Request) {
			for i := range 100 {
				w.Header().Set(fmt.Sprintf("x-%d", i), strings.Repeat("x", 1000))
			}
		}, nil, ""},
		{"another name", answerDoH, a.client("other.test"), "valid for dns.test, not other.test"},
		{"another authority", answerDoH, other.client(""), "unknown authority"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := startDoHServer(t, a, nil, tt.handle)
			d := w.newTransport(t, dohOptions{connOptions: connOptions{expire: time.Hour, tls: tt.client}})
			err := roundTripOnce(t, d)
			if err == nil || !strings.Contains(err.Error(), tt.want) || isTimeout(err) {
				t.Errorf("the error is %v, want one about %q", err, tt.want)
			}
		})
	}
}

// TestDoHCancelAndClose: a query ends at its deadline, when it is canceled, and when the
// transport closes.
func TestDoHCancelAndClose(t *testing.T) {
	ended := make(chan struct{}, 4)
	var began atomic.Int64
	w := startDoHServer(t, newAuthority(t), nil, func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		began.Add(1)
		<-r.Context().Done()
		ended <- struct{}{}
	})
	d := w.newTransport(t, dohOptions{connOptions: connOptions{expire: time.Hour}})
	q := fixedQuery(t)
	q.deadline = time.Now().Add(5 * time.Millisecond)
	d.start(q)
	if <-q.done; !errors.Is(q.err, os.ErrDeadlineExceeded) && !errors.Is(q.err, errNoCapacity) { // the time may be too short to connect
		t.Errorf("after its time: %v", q.err)
	}
	before := int(began.Load())
	q = startLong(t, d)
	eventually(t, "the server has the query", func() bool { return int(began.Load()) > before })
	if !d.cancel(q) || d.cancel(q) {
		t.Error("a call in flight is withdrawn not at all or twice")
	}
	if over, _ := completed(q); over {
		t.Error("a withdrawn call has landed")
	}
	eventually(t, "the server is told that nobody waits", func() bool { return len(ended) > before })
	q = startLong(t, d)
	d.close()
	if <-q.done; !errors.Is(q.err, ErrClosed) {
		t.Errorf("in flight when the transport closed: %v, want ErrClosed", q.err)
	}
	if err := roundTripOnce(t, d); !errors.Is(err, ErrClosed) {
		t.Errorf("after close: %v, want ErrClosed", err)
	}
	eventually(t, "the connections are closed", func() bool { return w.conns.Load() == 0 })
}

// TestDoHCancelFirst: over HTTP/1.1 a canceled query ends its connection. If that was the first query, it is no reason to connect
// later.
func TestDoHCancelFirst(t *testing.T) {
	began := make(chan struct{})
	var first atomic.Bool
	w := startDoHServer(t, newAuthority(t), func(s *httptest.Server) { s.EnableHTTP2 = false }, func(rw http.ResponseWriter, r *http.Request) {
		if first.Swap(true) {
			answerDoH(rw, r)
			return
		}
		io.Copy(io.Discard, r.Body)
		close(began)
		<-r.Context().Done()
	})
	d := w.newTransport(t, dohOptions{connOptions: connOptions{expire: time.Hour}})
	q := startLong(t, d)
	<-began
	d.cancel(q)
	eventually(t, "the connection has ended", func() bool { return w.conns.Load() == 0 })
	if err := roundTripOnce(t, d); err != nil {
		t.Errorf("after a canceled query: %v", err)
	}
}

// TestDoHConnectionFails: queries on a failed connection are sent again.
func TestDoHConnectionFails(t *testing.T) {
	const n = 20
	var arrived atomic.Int64
	var w *dohServer
	w = startDoHServer(t, newAuthority(t), nil, func(rw http.ResponseWriter, r *http.Request) {
		switch i := arrived.Add(1); {
		case i <= 1, i > 1+n:
			answerDoH(rw, r)
			return
		case i == 1+n:
			w.CloseClientConnections()
		}
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	d := w.newTransport(t, dohOptions{connOptions: connOptions{expire: time.Hour}})
	noError(t, roundTripOnce(t, d))
	var calls []*query
	for range n {
		q := startLong(t, d)
		calls = append(calls, q)
	}
	for _, q := range calls {
		if <-q.done; q.err != nil {
			t.Error(q.err)
		}
	}
	count(t, d.brokenConns.Load(), 1, "broken connections are counted")
}

// TestDoHLifetimes: connections end after expire and max_age, and with the last query if
// none are kept.
func TestDoHLifetimes(t *testing.T) {
	w := startDoHServer(t, newAuthority(t), nil, answerDoH)
	for name, opts := range map[string]connOptions{
		"expire":       {expire: time.Millisecond},
		"nothing kept": {},
	} {
		d := w.newTransport(t, dohOptions{connOptions: opts})
		noError(t, roundTripOnce(t, d))
		if opts.expire > 0 {
			d.closeIdle(time.Now().Add(time.Second))
		}
		eventually(t, name+": the connection is closed", func() bool { return w.conns.Load() == 0 })
	}
	d := w.newTransport(t, dohOptions{connOptions: connOptions{expire: time.Hour, maxAge: 2 * time.Hour}})
	for i := range 3 {
		noError(t, roundTripOnce(t, d))
		if _, misses := d.reuse(); misses != uint64(i+1) {
			t.Errorf("%d connections were made, want %d", misses, i+1)
		}
		if i < 2 {
			d.mu.Lock()
			d.open[0].openedAt = time.Now().Add(-2 * time.Hour)
			d.mu.Unlock()
		}
	}
	d.closeIdle(time.Now().Add(3 * time.Hour))
	eventually(t, "max_age: the connections are closed", func() bool { return w.conns.Load() == 0 })
}

// TestDoHUnderLoad has more queries at once than the server has streams, and cancels some:
// each gets its own answer, over few connections, and nothing is left over.
func TestDoHUnderLoad(t *testing.T) {
	a := newAuthority(t)
	for name, two := range map[string]bool{"HTTP/2": true, "HTTP/1.1": false} {
		t.Run(name, func(t *testing.T) {
			goroutines, before := runtime.NumGoroutine(), openSockets(t)
			t.Run("queries", func(t *testing.T) { loadDoH(t, a, two) })
			eventually(t, "goroutines and sockets are gone", func() bool {
				return runtime.NumGoroutine() <= goroutines && openSockets(t) <= before
			})
		})
	}
}

func loadDoH(t *testing.T, a *authority, two bool) {
	w := startDoHServer(t, a, func(s *httptest.Server) {
		s.EnableHTTP2 = two
		s.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 10}
	}, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
		answerDoH(w, r)
	})
	// No limits of time: a busy machine answers later than they allow.
	d := w.newTransport(t, dohOptions{connOptions: connOptions{expire: time.Hour, connectTimeout: time.Hour}})
	d.client.HTTP2 = &http.HTTP2Config{}
	askManyAtOnce(t, d)
	if n := w.conns.Load(); n > maxConns {
		t.Errorf("%d connections are open, want %d at most", n, maxConns)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inFlight.Total() > 60 {
		t.Errorf("%d are in flight", d.inFlight.Total())
	}
}

// askManyAtOnce has 60 goroutines send queries, of which some are canceled. All others get their own answers.
func askManyAtOnce(t *testing.T, via transport) {
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			q := newQuery()
			for j := range 10 {
				ctx, cancel := context.WithCancel(t.Context())
				if rand.IntN(10) == 0 {
					go cancel()
				}
				q.request, q.payload = question(t, fmt.Sprintf("n%d.m%d.test.", i, j)), DefaultPayload
				q.build(true, new(server))
				msg, err := roundTrip(ctx, via, q, time.Now().Add(time.Hour))
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Errorf("query %d of %d: %v", j, i, err)
				}
				if err == nil && !wire.Matches(msg, q.message()) {
					t.Errorf("query %d of %d has another's answer", j, i)
				}
				cancel()
			}
		})
	}
	wg.Wait()
}

// TestDoHStalled: a stalled connection gets no queries while another one can be opened, and
// gets them again after a reply.
func TestDoHStalled(t *testing.T) {
	hold := make(chan struct{})
	var arrived atomic.Int64
	w := startDoHServer(t, newAuthority(t), nil, func(w http.ResponseWriter, r *http.Request) {
		if arrived.Add(1) == 1 {
			<-hold
		}
		answerDoH(w, r)
	})
	d := w.newTransport(t, dohOptions{connOptions: connOptions{expire: time.Hour}})
	q := startLong(t, d)
	eventually(t, "the query is in flight", func() bool {
		if arrived.Load() == 0 {
			return false
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.open) == 0 || d.open[0].inFlight == 0 {
			return false
		}
		d.open[0].owedSince = time.Now().Add(-stalledAfter)
		return true
	})
	noError(t, roundTripOnce(t, d))
	close(hold)
	if <-q.done; q.err != nil {
		t.Errorf("an answer after a long time: %v", q.err)
	}
	noError(t, roundTripOnce(t, d))
	count(t, w.made.Load(), 2, "connections were made")
	if _, misses := d.reuse(); misses != 2 {
		t.Errorf("%d connections are counted, want 2", misses)
	}
}

// TestDoHAge: the time that a reply was in HTTP caches counts, whatever the method.
func TestDoHAge(t *testing.T) {
	var age atomic.Pointer[[]string]
	w := startDoHServer(t, newAuthority(t), nil, func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Age"] = *age.Load()
		answerDoH(w, r)
	})
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		d := w.newTransport(t, dohOptions{method: method, connOptions: connOptions{expire: time.Hour}})
		for _, tt := range []struct {
			age  []string
			want uint32 // of 60
		}{
			{nil, 60},
			{[]string{"0"}, 60},
			{[]string{"45"}, 15},
			{[]string{"45, 7"}, 15},
			{[]string{"7", "45"}, 53},
			{[]string{"61"}, 0},
			{[]string{"99999999999999999999"}, 0},
			{[]string{"-1"}, 60},
			{[]string{"soon"}, 60},
		} {
			age.Store(&tt.age)
			msg, err := roundTrip(t.Context(), d, fixedQuery(t), time.Now().Add(time.Hour))
			noError(t, err)
			if ttl, _ := wire.MinTTL(msg); ttl != tt.want {
				t.Errorf("%s, Age %q: the TTL is %d, want %d", method, tt.age, ttl, tt.want)
			}
		}
	}
}
