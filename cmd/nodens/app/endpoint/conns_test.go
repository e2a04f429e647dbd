// These tests use httpClientConns, counts and has, which are not exported.

package endpoint

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/connlimit"

	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// nodeAddr is the node's own address in these tests; what else is in the loopback
// network stands for other machines.
var nodeAddr = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// otherHost is the i-th other machine.
func otherHost(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 1, byte(i)}) }

// bounded are endpoints that serve h at the address.
func bounded(t *testing.T, h http.Handler) (e *Servers, addr string) {
	t.Helper()
	e, addr = newEndpoints(), free(t)
	e.opts.Local = func(a netip.Addr) bool { return a == nodeAddr }
	check.NoError(t, e.Listen(at("/who", h, addr)))
	t.Cleanup(e.Close)
	return e, addr
}

// openConns is how many connections the endpoint at addr holds: of others, and of the node.
func openConns(e *Servers, addr string) (others, node int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.servers[addr].conns
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.others.Len(), h.node.Len()
}

// scraper is one connection to an endpoint, which stays open.
type scraper struct {
	net.Conn
	in *bufio.Reader
}

func connect(t *testing.T, from netip.Addr, addr string) *scraper {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from.AsSlice()}}
	conn, err := d.Dial("tcp", addr)
	check.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(agenttest.Timeout))
	return &scraper{conn, bufio.NewReader(conn)}
}

func (s *scraper) send() error {
	_, err := s.Write([]byte("GET /who HTTP/1.1\r\nHost: test\r\n\r\n"))
	return err
}

// served asks once and reports whether the answer came.
func (s *scraper) served() bool {
	if s.send() != nil {
		return false
	}
	resp, err := http.ReadResponse(s.in, nil)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// closed waits until the other side has closed the connection; false if it does not.
func (s *scraper) closed() bool {
	_, err := s.in.ReadByte()
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

// TestHTTPClientLimit: a client has at most 8 connections. One more costs it the one that
// has been idle for longest, and costs nobody else anything; half a request is no
// activity.
func TestHTTPClientLimit(t *testing.T) {
	e, addr := bounded(t, says("x"))
	scrape := connect(t, otherHost(1), addr)
	if !scrape.served() {
		t.Fatal("the first connection is not served")
	}
	kept := connect(t, otherHost(2), addr)
	if !kept.served() {
		t.Fatal("a client's first connection is not served")
	}
	var idle []*scraper
	for i := range 50 {
		c := connect(t, otherHost(2), addr)
		if i%2 == 0 {
			_, _ = c.Write([]byte("GET /who HTTP/1.1\r\n"))
		} else if !c.served() {
			t.Fatalf("connection %d of a client is not served", i)
		}
		if !kept.served() {
			t.Fatalf("the connection that is in use is gone after %d others", i+1)
		}
		if others, _ := openConns(e, addr); others > httpClientConns+1 {
			t.Fatalf("%d connections are open, want %d", others, httpClientConns+1)
		}
		idle = append(idle, c)
	}
	for i, c := range idle[:len(idle)-httpClientConns+1] {
		if !c.closed() {
			t.Errorf("connection %d is open", i)
		}
	}
	if !scrape.served() {
		t.Error("another client's idle connection is gone")
	}
	if n, want := e.counts.evicted[connlimit.Client].Load(), uint64(50-httpClientConns+1); n != want {
		t.Errorf("%d connections evicted, want %d", n, want)
	}
}

// TestHTTPTotalLimit: many clients with many connections leave the endpoint within its
// limit. Meanwhile the node's own probes get in at once, a scraper that was there keeps its
// connection, and one that comes is served.
func TestHTTPTotalLimit(t *testing.T) {
	e, addr := bounded(t, says("x"))
	scrape := connect(t, otherHost(200), addr)
	if !scrape.served() {
		t.Fatal("the first connection is not served")
	}
	for i := range 4 * httpTotalConns {
		flood := connect(t, otherHost(1+i%20), addr)
		if i%3 == 0 {
			_ = flood.send()
		}
		if i%16 > 0 {
			continue
		}
		if !connect(t, nodeAddr, addr).served() {
			t.Fatalf("the node's probe is not served behind %d connections", i+1)
		}
		if c := connect(t, otherHost(201), addr); !c.served() {
			t.Fatalf("a new client is not served behind %d connections", i+1)
		} else {
			_ = c.Close()
		}
		if others, node := openConns(e, addr); others > httpTotalConns || node > httpNodeConns {
			t.Fatalf("%d connections of others and %d of the node are open", others, node)
		}
	}
	if !scrape.served() {
		t.Error("the scraper has lost its connection")
	}
	if e.counts.evicted[connlimit.Total].Load() == 0 {
		t.Error("the endpoint was never full")
	}
}

// TestHTTPBusy: a connection on which a request is being answered does not go for
// another one; the node's own probes get in all the same.
func TestHTTPBusy(t *testing.T) {
	var waiting sync.WaitGroup
	begun, release := make(chan struct{}), make(chan struct{})
	e, addr := bounded(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Slow") != "" {
			begun <- struct{}{}
			<-release
		}
	}))
	defer waiting.Wait()
	slow := func(from netip.Addr) *scraper {
		c := connect(t, from, addr)
		if _, err := c.Write([]byte("GET /who HTTP/1.1\r\nHost: test\r\nSlow: 1\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		<-begun
		return c
	}
	var busy []*scraper
	for range httpClientConns {
		busy = append(busy, slow(otherHost(1)))
		slow(nodeAddr)
	}
	if c := connect(t, otherHost(1), addr); !c.closed() {
		t.Error("a client has more connections than it may have")
	}
	if n := e.counts.refused[connlimit.Client].Load(); n != 1 {
		t.Errorf("%d connections refused, want one", n)
	}
	if !connect(t, nodeAddr, addr).served() {
		t.Error("the node's probe is not served while its others are busy")
	}
	close(release)
	for i, c := range busy {
		resp, err := http.ReadResponse(c.in, nil)
		if err != nil {
			t.Errorf("request %d: %v", i, err)
			continue
		}
		resp.Body.Close()
	}
}

// TestHTTPLimitHandedBack: connections count whichever way the listener came.
func TestHTTPLimitHandedBack(t *testing.T) {
	e, addr := bounded(t, says("x"))
	e.Suspend()
	e.Resume()
	for range 3 * httpClientConns {
		if !connect(t, otherHost(1), addr).served() {
			t.Fatal("a connection is not served")
		}
		if others, _ := openConns(e, addr); others > httpClientConns {
			t.Fatalf("%d connections are open", others)
		}
	}
}
