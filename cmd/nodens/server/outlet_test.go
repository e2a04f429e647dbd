package server

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
)

// pair is a connection as the server holds it, without its reader, and the client's
// end of it.
func pair(t *testing.T, limits Limits) (*stream, *tcpListener, func() []byte) {
	t.Helper()
	s := New(slog.New(slog.DiscardHandler), limits)
	addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	ln, err := listenTCP(addr, s.limits)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ln.close)
	client := dial(t, loopback, addr)
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c, err := s.newStream(&listener{addr: addr, tcp: ln}, conn.(*net.TCPConn), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := ln.admit(c); !ok {
		t.Fatal("not admitted")
	}
	return c, ln, func() []byte {
		msg, err := client.ReadMsgHeader(nil)
		if err != nil {
			t.Fatal(err)
		}
		return msg
	}
}

// TestOwed: replies that come while their client takes none are held up to a bound,
// beyond which it loses its connection, and nobody waits.
func TestOwed(t *testing.T) {
	c, ln, _ := pair(t, Limits{Taking: patience})
	msg := make([]byte, 16<<10)
	state := func() (stuck, broken bool) {
		c.out.mu.Lock()
		defer c.out.mu.Unlock()
		return c.out.stuck, c.out.broken
	}
	var first sync.WaitGroup
	first.Go(func() {
		for broken := false; !broken; _, broken = state() {
			c.out.put(msg)
		}
	})
	eventually(t, "the kernel's buffers to be full", func() bool { stuck, _ := state(); return stuck })
	for broken := false; !broken; _, broken = state() {
		if held := c.s.owed.Load(); held > maxOwed {
			t.Fatalf("%d bytes are held", held)
		}
		c.out.put(msg)
	}
	first.Wait()
	c.out.put(msg)
	if n := c.s.owed.Load(); n != 0 {
		t.Errorf("%d bytes are held for a client that is given up", n)
	}
	if n := c.s.ConnsCut(); n != 1 {
		t.Errorf("%d connections cut, want one", n)
	}
	if ln.await(c, patience) {
		t.Error("its reader may wait for more")
	}
}

// TestPut: replies of many at once come whole, each once, whoever writes them.
func TestPut(t *testing.T) {
	c, _, read := pair(t, Limits{Taking: patience})
	const writers, each = 16, 50
	for w := range writers {
		go func() {
			for i := range each {
				msg := make([]byte, 12+w*100)
				msg[0], msg[1] = byte(w), byte(i)
				for k := range msg[2:] {
					msg[2+k] = byte(w)
				}
				c.out.put(msg)
			}
		}()
	}
	next := make(map[byte]byte)
	for range writers * each {
		msg := read()
		w := msg[0]
		if msg[1] != next[w] || len(msg) != 12+int(w)*100 || msg[len(msg)-1] != w {
			t.Fatalf("message %d of writer %d, %d bytes; want message %d of %d bytes", msg[1], w, len(msg), next[w], 12+int(w)*100)
		}
		next[w]++
	}
}

// TestBegin: no more queries wait than may, and a reader that waits for one to end
// goes on when it does.
func TestBegin(t *testing.T) {
	c, _, _ := pair(t, Limits{})
	o := &c.out
	for range 2 {
		if !o.begin(2, false) {
			t.Fatal("there is room, and the query may not wait")
		}
	}
	if o.begin(2, false) {
		t.Error("a third of two waits")
	}
	done := make(chan bool)
	go func() { done <- o.begin(2, true) }()
	o.end()
	if !<-done {
		t.Error("a place came back, and the query may not wait")
	}
	o.end()
	o.end()
	o.settle()
	if n := o.waiting.Load(); n != 0 {
		t.Errorf("%d wait after the end", n)
	}
}
