// These tests use writer, enqueue and beginQuery, which are not exported.

package server

import (
	"bytes"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/peer"
)

// Inside the package: the writer is not exported.

// newServerConn returns the server's side of a connection, without its reader, and the
// client's side.
func newServerConn(t *testing.T, limits Limits) (*tcpConn, *tcpListener, *dns.Conn) {
	t.Helper()
	s := New(slog.New(slog.DiscardHandler), limits)
	addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	ln, err := listenTCP(addr, s.limits, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ln.close)
	client := dial(t, loopback, addr, 32<<10)
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	l := &listener{s: s, addr: ListenAddr{AddrPort: addr}, tcp: ln}
	l.config.Store(&activeConfig{})
	c, err := newTCPConn(l, conn.(*net.TCPConn), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := ln.add(&c.connState); !ok {
		t.Fatal("not admitted")
	}
	return c, ln, client
}

// isBlocked reports whether the current write waits for the client.
func (o *connWriter) isBlocked() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.blocked
}

// TestMaxUnsent checks that replies to a client that reads none are held up to a limit,
// beyond which the client loses its connection, and that no goroutine waits.
func TestMaxUnsent(t *testing.T) {
	c, ln, _ := newServerConn(t, Limits{WriteTimeout: patience})
	msg := make([]byte, 16<<10)
	isBroken := func() bool {
		c.writer.mu.Lock()
		defer c.writer.mu.Unlock()
		return c.writer.broken
	}
	var first sync.WaitGroup
	first.Go(func() {
		for !isBroken() {
			c.writer.enqueue(msg)
		}
	})
	eventually(t, "the kernel's buffers to be full", c.writer.isBlocked)
	for !isBroken() {
		if held := c.s.unsent.Load(); held > maxUnsent {
			t.Fatalf("%d bytes are held", held)
		}
		c.writer.enqueue(msg)
	}
	first.Wait()
	c.writer.enqueue(msg)
	if n := c.s.unsent.Load(); n != 0 {
		t.Errorf("%d bytes are held for a client that is given up", n)
	}
	if n := c.s.ConnsCut(); n != 1 {
		t.Errorf("%d connections cut, want one", n)
	}
	if ln.setReadDeadline(&c.connState, patience) {
		t.Error("its reader may wait for more")
	}
}

// TestEnqueue checks that replies of many goroutines, the reader among them, arrive whole,
// once, and in the order of each goroutine.
func TestEnqueue(t *testing.T) {
	c, _, client := newServerConn(t, Limits{WriteTimeout: patience})
	const writers, each = 16, 50
	message := func(w, i int) []byte {
		msg := bytes.Repeat([]byte{byte(w)}, 12+w*200)
		msg[1] = byte(i)
		return msg
	}
	for w := range writers {
		give := func(i int) { c.writer.enqueue(message(w, i)) }
		if w == writers-1 {
			give = func(i int) {
				_ = c.raw.Control(func(fd uintptr) { c.writer.write(int(fd), appendFrame(nil, message(w, i))) })
			}
		}
		go func() {
			for i := range each {
				give(i)
			}
		}()
	}
	// More than fits into the kernel, so that some of it is written in pieces.
	eventually(t, "the kernel's buffers to be full", c.writer.isBlocked)
	var next [writers]int
	for range writers * each {
		msg, err := client.ReadMsgHeader(nil)
		if err != nil {
			t.Fatal(err)
		}
		w := int(msg[0])
		if w >= writers || !bytes.Equal(msg, message(w, next[w])) {
			t.Fatalf("a message of %d bytes, %d, is not the next one of its writer", len(msg), msg[:2])
		}
		next[w]++
	}
}

// TestClosingNotRead checks that a closing connection is not read from.
func TestClosingNotRead(t *testing.T) {
	c, ln, client := newServerConn(t, Limits{})
	c.l.config.Store(&activeConfig{ListenerConfig: ListenerConfig{Routes: resolver.NewRoutes([]*resolver.Zone{byHand(t)}, resolver.NewStats())}})
	ln.closeSoon(&c.connState)
	if err := client.WriteMsg(question("by.hand.", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	_ = c.conn.SetReadDeadline(time.Time{}) // as if it had not waited when it was told
	c.serve()
	if m, err := client.ReadMsg(); err == nil {
		t.Errorf("a query is answered: %v", m)
	}
}

// TestBeginQuery checks the limit of pending queries, and that a reader that waits for one to
// end continues when it does.
func TestBeginQuery(t *testing.T) {
	c, _, _ := newServerConn(t, Limits{})
	o := &c.writer
	for range 2 {
		if !o.beginQuery(2, false) {
			t.Fatal("there is room, and the query may not wait")
		}
	}
	if o.beginQuery(2, false) {
		t.Error("a third of two waits")
	}
	done := make(chan bool)
	go func() { done <- o.beginQuery(2, true) }()
	o.endQuery()
	if !<-done {
		t.Error("a place came back, and the query may not wait")
	}
	o.endQuery()
	o.endQuery()
	o.waitIdle()
	if n := c.waiting.Load(); n != 0 {
		t.Errorf("%d wait after the end", n)
	}
}
