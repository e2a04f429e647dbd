package server

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// flood is clients who keep count: each query has to have one reply, however many
// servers come and go on the address. They send no query twice and wait for none.
type flood struct {
	t    *testing.T
	addr netip.AddrPort
	stop chan struct{}
	all  sync.WaitGroup

	answered                  atomic.Uint64
	unasked, silent, servfail atomic.Uint64
	broken                    atomic.Uint64 // connections
}

// window is how many queries a client of a flood has under way.
const window = 16

// tick is between two looks of a client of a flood whose window is full, or two of its
// bursts: six clients with 16 queries each send up to 24,000 a second then.
const tick = 4 * time.Millisecond

// startFlood starts that many clients over UDP and over TCP. One in ten of their
// queries is for a name that has to be asked for elsewhere.
func startFlood(t *testing.T, addr netip.AddrPort, udp, tcp int) *flood {
	t.Helper()
	f := &flood{t: t, addr: addr, stop: make(chan struct{})}
	for range udp {
		f.connect("udp", func(b []byte) []byte { return b }, readPacket)
	}
	for range tcp {
		f.connect("tcp", func(b []byte) []byte { return appendFrame(nil, b) }, readFrame)
	}
	return f
}

func readPacket(conn net.Conn, buf []byte) ([]byte, error) {
	n, err := conn.Read(buf)
	return buf[:n], err
}

func readFrame(conn net.Conn, buf []byte) ([]byte, error) {
	if _, err := io.ReadFull(conn, buf[:framing]); err != nil {
		return nil, err
	}
	packet := buf[:binary.BigEndian.Uint16(buf)]
	_, err := io.ReadFull(conn, packet)
	return packet, err
}

// connect starts one client.
func (f *flood) connect(network string, wrap func([]byte) []byte, read func(net.Conn, []byte) ([]byte, error)) {
	f.t.Helper()
	conn, err := net.Dial(network, f.addr.String())
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = conn.Close() })
	var queries [10][]byte
	for i := range queries {
		name := "by.hand."
		if i == 0 {
			name = "forwarded.test."
		}
		if queries[i], err = question(name, dns.TypeA).Pack(); err != nil {
			f.t.Fatal(err)
		}
	}
	owed := &owing{ids: make(map[uint16]bool)}
	f.all.Go(func() { f.ask(conn, owed, queries[:], wrap) })
	f.all.Go(func() { f.listen(conn, owed, read) })
}

// owing is the queries of one client that have no reply yet.
type owing struct {
	mu   sync.Mutex
	ids  map[uint16]bool
	over bool // there will be no more of them
}

func (o *owing) add(id uint16) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.ids) >= window {
		return false
	}
	o.ids[id] = true
	return true
}

// settle takes id off; done is whether it was the last one.
func (o *owing) settle(id uint16) (was, done bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	was = o.ids[id]
	delete(o.ids, id)
	return was, o.over && len(o.ids) == 0
}

func (o *owing) end() (left int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	return len(o.ids)
}

// ask asks until the flood ends. Over TCP what it sends is cut wherever it happens to.
func (f *flood) ask(conn net.Conn, owed *owing, queries [][]byte, wrap func([]byte) []byte) {
	for id := uint16(0); ; {
		select {
		case <-f.stop:
			if owed.end() == 0 {
				_ = conn.SetReadDeadline(past)
			} else {
				_ = conn.SetReadDeadline(time.Now().Add(patience))
			}
			return
		default:
		}
		for range window {
			if !owed.add(id) {
				break
			}
			q := queries[int(id)%len(queries)]
			binary.BigEndian.PutUint16(q, id)
			out := wrap(q)
			cut := len(out)
			if len(out) != len(q) {
				cut = int(id) % len(out)
			}
			_, _ = conn.Write(out[:cut])
			if cut < len(out) {
				if id%7 == 0 {
					time.Sleep(tick)
				}
				_, _ = conn.Write(out[cut:])
			}
			id++
		}
		time.Sleep(tick)
	}
}

// listen takes the replies, until the last one.
func (f *flood) listen(conn net.Conn, owed *owing, read func(net.Conn, []byte) ([]byte, error)) {
	buf := make([]byte, 65536)
	for {
		packet, err := read(conn, buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			f.silent.Add(uint64(owed.end()))
			return
		case err != nil:
			f.broken.Add(1)
			return
		}
		was, done := owed.settle(binary.BigEndian.Uint16(packet))
		if !was {
			f.unasked.Add(1)
		}
		if packet[3]&15 != 0 || packet[7] != 1 {
			f.servfail.Add(1)
		}
		f.answered.Add(1)
		if done {
			return
		}
	}
}

// end stops asking, waits for all replies and checks the counts.
func (f *flood) end() {
	f.t.Helper()
	close(f.stop)
	f.all.Wait()
	for what, n := range map[string]uint64{
		"queries had no reply": f.silent.Load(), "replies were to no query, or to one that had one": f.unasked.Load(),
		"replies had no answer": f.servfail.Load(), "connections broke": f.broken.Load(),
	} {
		if n > 0 {
			f.t.Errorf("%d %s, of %d that were answered", n, what, f.answered.Load())
		}
	}
}
