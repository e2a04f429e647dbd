// Package wiretap counts the bytes between a process and a server that it talks to over
// TCP: a proxy on loopback that passes everything on as it comes, TLS included, so
// that what is counted is what the network would carry, whoever the client is.
package wiretap

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
)

// Tap is a proxy. Its methods may be called from several goroutines.
type Tap struct {
	listener net.Listener
	server   string
	count    struct{ received, sent, conns atomic.Uint64 }

	// passing is held while bytes are passed on, and locked while the tap is blocked.
	passing sync.RWMutex

	mu    sync.Mutex
	open  map[net.Conn]struct{} // nil once closed
	group sync.WaitGroup
	// clients is how many connections of clients are open.
	clients int
}

// Count is what has gone through a tap.
type Count struct {
	// Received are the server's bytes, Sent those to it.
	Received, Sent uint64
	// Conns is how many connections there have been.
	Conns uint64
}

// Sub is what came after the earlier count.
func (c Count) Sub(earlier Count) Count {
	return Count{c.Received - earlier.Received, c.Sent - earlier.Sent, c.Conns - earlier.Conns}
}

// Bytes is the sum of both ways.
func (c Count) Bytes() uint64 { return c.Received + c.Sent }

// Open starts a proxy on a free port of 127.0.0.1 to the server's address; the
// caller calls Close.
func Open(server string) (*Tap, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("starting a proxy: %w", err)
	}
	t := &Tap{listener: l, server: server, open: map[net.Conn]struct{}{}}
	t.group.Go(t.accept)
	return t, nil
}

// Addr is where the proxy listens.
func (t *Tap) Addr() netip.AddrPort { return netip.MustParseAddrPort(t.listener.Addr().String()) }

// Read is what has gone through so far.
func (t *Tap) Read() Count {
	return Count{t.count.received.Load(), t.count.sent.Load(), t.count.conns.Load()}
}

// Open is how many connections there are now.
func (t *Tap) Open() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.clients
}

// Block passes nothing on until release is called, as a network does that loses every packet: connections stay open, and new
// ones get no answer. Call release before Close.
func (t *Tap) Block() (release func()) {
	t.passing.Lock()
	return t.passing.Unlock
}

// Close ends the proxy and all its connections, and returns when they are gone.
func (t *Tap) Close() {
	t.listener.Close()
	t.mu.Lock()
	for c := range t.open {
		c.Close()
	}
	t.open = nil
	t.mu.Unlock()
	t.group.Wait()
}

// addConn notes a connection that Close has to end; false if that is over.
func (t *Tap) addConn(c net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		c.Close()
		return false
	}
	t.open[c] = struct{}{}
	return true
}

func (t *Tap) removeConn(c net.Conn) {
	c.Close()
	t.mu.Lock()
	delete(t.open, c)
	t.mu.Unlock()
}

func (t *Tap) counts(n int) {
	t.mu.Lock()
	t.clients += n
	t.mu.Unlock()
}

func (t *Tap) accept() {
	for {
		c, err := t.listener.Accept()
		if err != nil {
			return // closed: nothing else ends a listener on loopback
		}
		if !t.addConn(c) {
			return
		}
		t.count.conns.Add(1)
		t.group.Go(func() { t.serve(c) })
	}
}

// serve passes a client's bytes on until both sides have nothing more to say.
func (t *Tap) serve(client net.Conn) {
	t.counts(1)
	defer t.counts(-1)
	defer t.removeConn(client)
	server, err := net.Dial("tcp", t.server)
	if err != nil || !t.addConn(server) {
		return
	}
	defer t.removeConn(server)
	var wg sync.WaitGroup
	wg.Go(func() { t.copyBytes(server, client, &t.count.sent) })
	wg.Go(func() { t.copyBytes(client, server, &t.count.received) })
	wg.Wait()
}

// readSize is the size of a read: TLS records are 16 KiB, and twice that takes two
// of them at once.
const readSize = 32 << 10

// copyBytes copies until the source ends and tells the other side so. An error on one
// way ends the other too: half of a TLS connection is of no use.
func (t *Tap) copyBytes(to, from net.Conn, count *atomic.Uint64) {
	buf := make([]byte, readSize)
	for {
		n, err := from.Read(buf)
		// Counted before they arrive, so that who has seen them finds them counted.
		count.Add(uint64(n))
		if n > 0 {
			t.passing.RLock()
			_, err := to.Write(buf[:n])
			t.passing.RUnlock()
			if err != nil {
				from.Close()
				return
			}
		}
		if errors.Is(err, io.EOF) {
			if c, ok := to.(*net.TCPConn); ok {
				_ = c.CloseWrite()
			}
			return
		}
		if err != nil {
			to.Close()
			return
		}
	}
}
