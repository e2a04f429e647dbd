// These tests use Exposition, claim and httpConns, which are not exported.

package endpoint

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nodens-dns/nodens/internal/clock"
)

// TestExpositionShared: however many ask, making the text takes a part of the time; after a pause, and while it takes
// little, each sees the present.
func TestExpositionShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made, takes := 0, 50*time.Millisecond
		x := Exposition{spent: clock.Now, source: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			made++
			time.Sleep(takes)
			fmt.Fprint(w, made)
		})}
		scrape := func(gzip bool) (fresh bool) {
			before := made
			x.reply(gzip, clock.Now())
			return made > before
		}
		const span = 60 * time.Second
		for i, end := 0, time.Now().Add(span); time.Now().Before(end); i++ {
			scrape(i%2 == 0)
			time.Sleep(time.Millisecond)
		}
		// Each text may be made in two forms.
		if most := 2 * int((maxExpositionTime+span/expositionShare)/takes+span/expositionAge+1); made > most || made < most/4 {
			t.Errorf("%d texts in %v, want at most %d", made, span, most)
		}
		time.Sleep(time.Minute)
		for i := range int(maxExpositionTime / takes) {
			if !scrape(false) {
				t.Fatalf("scrape %d after a pause is not of the present", i)
			}
		}
		time.Sleep(time.Minute)
		takes = time.Millisecond
		for i := range 1000 {
			if !scrape(false) {
				t.Fatalf("scrape %d of a text that takes little is not of the present", i)
			}
			time.Sleep(expositionShare * takes)
		}
	})
}

// TestExpositionForms: a client gets what it accepts, whatever else it asks for.
func TestExpositionForms(t *testing.T) {
	r := prometheus.NewRegistry()
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "seen", Help: "h"}, func() float64 { return 7 }))
	x := NewExposition(promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	for _, accept := range []string{"", "gzip", "zstd", "deflate, gzip;q=0.5"} {
		req := httptest.NewRequest(http.MethodGet, "/metrics?name[]=none", nil)
		req.Header.Set("Accept", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited")
		req.Header.Set("Accept-Encoding", accept)
		w := httptest.NewRecorder()
		x.ServeHTTP(w, req)
		var body io.Reader = w.Body
		if packed := strings.Contains(accept, "gzip"); packed != (w.Header().Get("Content-Encoding") == "gzip") {
			t.Errorf("%q: the encoding is %q", accept, w.Header().Get("Content-Encoding"))
		} else if packed {
			var err error
			if body, err = gzip.NewReader(w.Body); err != nil {
				t.Fatal(err)
			}
		}
		if text, _ := io.ReadAll(body); w.Code != http.StatusOK || !strings.Contains(string(text), "\nseen 7\n") || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain; version=0.0.4") {
			t.Errorf("%q: %d %v %q", accept, w.Code, w.Header(), text)
		}
	}
}

// TestScrapesBesideALoop: clients that send requests in a loop, on as many connections as they may have, take nobody
// else's scrapes.
func TestScrapesBesideALoop(t *testing.T) {
	_, addr := bounded(t, NewExposition(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 64<<10)) })))
	ctx, cancel := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	defer loops.Wait()
	defer cancel()
	for i := range 7 * httpClientConns {
		s := connect(t, otherHost(1+i/httpClientConns), addr)
		context.AfterFunc(ctx, func() { _ = s.Close() })
		loops.Go(func() {
			for ctx.Err() == nil && s.served() {
			}
		})
	}
	for _, from := range []netip.Addr{otherHost(100), nodeAddr} {
		for i := range 39 {
			if s := connect(t, from, addr); !s.served() {
				t.Fatalf("%v: scrape %d fails", from, i)
			} else {
				_ = s.Close()
			}
		}
	}
}

// TestHTTPRate: a client gets the burst at once and then the rate, others lose nothing, and what a client does not
// need any more is nobody's loss.
func TestHTTPRate(t *testing.T) {
	var x httpRates
	a, now := otherHost(1), time.Hour
	var last time.Duration
	const requests = maxHTTPBurst + 10*maxHTTPRate
	for range requests {
		last = x.claim(a, now)
	}
	if want := 10 * time.Second; last != want {
		t.Errorf("the last of %d requests waits %v, want %v", requests, last, want)
	}
	if d := x.claim(a.Next(), now); d > 0 {
		t.Errorf("another client waits %v", d)
	}
	for range requests {
		x.giveBack(a)
	}
	if d := x.claim(a, now); d > 0 {
		t.Errorf("a client that has given its turns back waits %v", d)
	}
	for i := range 10_000 { // clients that come once
		x.claim(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), now+time.Duration(i)*time.Second)
	}
	if n := len(x.next); n > 2*minHTTPPrune {
		t.Errorf("%d clients are remembered", n)
	}
}

// TestWaitingIsIdle: a connection whose request waits for its turn may be closed for another client's.
func TestWaitingIsIdle(t *testing.T) {
	h := newHTTPConns(nil, new(httpCounts))
	conn := &httpConn{owner: h, client: otherHost(1), set: &h.others}
	for range maxHTTPBurst {
		h.rates.claim(conn.client, 0)
	}
	h.rates.next[conn.client] += time.Hour
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), httpConnKey{}, conn))
	defer cancel()
	done := make(chan struct{})
	before := h.rates.next[conn.client]
	go func() {
		defer close(done)
		h.handler(func(http.ResponseWriter, *http.Request) { t.Error("it is answered") }).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", nil))
	}()
	for h.rates.turn(conn.client) == before {
		time.Sleep(time.Millisecond)
	}
	if _, busy := conn.Activity(); busy {
		t.Error("it is busy")
	}
	cancel()
	<-done
	if got := h.rates.turn(conn.client); got != before {
		t.Errorf("its turn is not given back")
	}
}

// TestLingering: connections that lose their place while their requests wait stay a little, but not more than a few, and
// give their room back when they are closed.
func TestLingering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHTTPConns(nil, new(httpCounts))
		var conns []*httpConn
		for range maxLingering + 5 {
			c := &httpConn{TCPConn: new(net.TCPConn), owner: h, set: &h.others}
			c.waiting.Store(true)
			h.end(c)
			conns = append(conns, c)
		}
		if n := h.lingering.Load(); n != maxLingering {
			t.Errorf("%d connections linger, want %d", n, maxLingering)
		}
		for range 2 {
			_ = conns[0].Close()
		}
		if n := h.lingering.Load(); n != maxLingering-1 {
			t.Errorf("%d connections linger after one is closed", n)
		}
		time.Sleep(lingerTime)
		synctest.Wait()
		if n := h.lingering.Load(); n != 0 {
			t.Errorf("%d connections linger after their time", n)
		}
	})
}

// turn is the client's next turn.
func (x *httpRates) turn(client netip.Addr) time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.next[client]
}
