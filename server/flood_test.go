// These tests use appendFrame, lengthPrefix and past, which are not exported.

package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// Inside the package: a load generator for the tests of readers and connections, which uses their framing.

// flood is clients who keep count: each query has to have one reply, however many
// servers come and go on the address. They send no query twice and wait for none.
type flood struct {
	t       *testing.T
	addr    netip.AddrPort
	stop    chan struct{}
	all     sync.WaitGroup
	clients []*floodClient

	answered                         atomic.Uint64
	unexpected, unanswered, servfail atomic.Uint64
	broken                           atomic.Uint64 // connections

	mu    sync.Mutex
	wrong []string // what was wrong, the first of it
}

// floodWindow is how many queries a client of a flood has under way.
const floodWindow = 16

// floodInterval is between two looks of a client of a flood whose window is full, or two of its
// bursts: six clients with 16 queries each send up to 24,000 a second then.
const floodInterval = 4 * time.Millisecond

// maxReported is how many faults a flood tells of one by one: all of a client's window. With
// half of it some would be missing where one client has lost all, twice as many would say
// the same again.
const maxReported = floodWindow

// startFlood starts that many clients over UDP and over TCP, and returns when each of them
// has a reply: a connection that nobody has accepted yet is not there for its server. One
// in ten of their queries is for a name that has to be asked for elsewhere.
func startFlood(t *testing.T, addr netip.AddrPort, udp, tcp int) *flood {
	t.Helper()
	f := &flood{t: t, addr: addr, stop: make(chan struct{})}
	for range udp {
		f.connect("udp", func(b []byte) []byte { return b }, readPacket)
	}
	for range tcp {
		f.connect("tcp", func(b []byte) []byte { return appendFrame(nil, b) }, readFrame)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("the flood's clients:\n" + f.report())
		}
	})
	for _, c := range f.clients {
		eventually(t, "the first reply to "+c.name, c.served)
	}
	return f
}

func readPacket(conn net.Conn, buf []byte) ([]byte, error) {
	n, err := conn.Read(buf)
	return buf[:n], err
}

func readFrame(conn net.Conn, buf []byte) ([]byte, error) {
	if _, err := io.ReadFull(conn, buf[:lengthPrefix]); err != nil {
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
	c := &floodClient{Conn: conn, name: network + " " + conn.LocalAddr().String(), pending: make(map[uint16]time.Time)}
	f.clients = append(f.clients, c)
	f.all.Go(func() { f.sendAll(c, queries[:], wrap) })
	f.all.Go(func() { f.receiveAll(c, read) })
}

// floodClient is one client of a flood. Beside its own two goroutines others may look at it.
type floodClient struct {
	net.Conn
	name string

	mu      sync.Mutex
	pending map[uint16]time.Time // queries that have no reply yet, and when they were sent
	stopped bool                 // there will be no more of them
	replies int
	last    time.Time // when the last reply came
}

func (c *floodClient) add(id uint16) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) >= floodWindow {
		return false
	}
	c.pending[id] = time.Now()
	return true
}

// done takes id off; done is whether it was the last one.
func (c *floodClient) done(id uint16) (was, done bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, was = c.pending[id]
	delete(c.pending, id)
	c.replies++
	c.last = time.Now()
	return was, c.stopped && len(c.pending) == 0
}

func (c *floodClient) stop() (left int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	return len(c.pending)
}

func (c *floodClient) served() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.replies > 0
}

// String is where c stands: which queries have no reply, and since when.
func (c *floodClient) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%s has %d replies", c.name, c.replies)
	if c.replies > 0 {
		fmt.Fprintf(&b, ", the last %v ago", time.Since(c.last).Round(time.Millisecond))
	}
	for id, sent := range c.pending {
		fmt.Fprintf(&b, "; none to %s, sent %v ago", queryName(id), time.Since(sent).Round(time.Millisecond))
	}
	return b.String()
}

func queryName(id uint16) string {
	if id%10 == 0 {
		return fmt.Sprintf("query %d, to be forwarded", id)
	}
	return fmt.Sprintf("query %d", id)
}

// sendAll asks until the flood ends. Over TCP what it sends is cut wherever it happens to.
func (f *flood) sendAll(c *floodClient, queries [][]byte, wrap func([]byte) []byte) {
	for id := uint16(0); ; {
		select {
		case <-f.stop:
			if c.stop() == 0 {
				_ = c.SetReadDeadline(past)
			} else {
				_ = c.SetReadDeadline(time.Now().Add(patience))
			}
			return
		default:
		}
		for range floodWindow {
			if !c.add(id) {
				break
			}
			q := queries[int(id)%len(queries)]
			binary.BigEndian.PutUint16(q, id)
			out := wrap(q)
			cut := len(out)
			if len(out) != len(q) {
				cut = int(id) % len(out)
			}
			f.send(c, id, out[:cut])
			if cut < len(out) {
				if id%7 == 0 {
					time.Sleep(floodInterval)
				}
				f.send(c, id, out[cut:])
			}
			id++
		}
		time.Sleep(floodInterval)
	}
}

// send tells of an error and goes on: what was not sent has no reply.
func (f *flood) send(c *floodClient, id uint16, part []byte) {
	if _, err := c.Write(part); err != nil {
		f.fail(nil, "%s: sending %s: %v", c.name, queryName(id), err)
	}
}

// receiveAll takes the replies, until the last one.
func (f *flood) receiveAll(c *floodClient, read func(net.Conn, []byte) ([]byte, error)) {
	buf := make([]byte, 65536)
	for {
		packet, err := read(c, buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			f.unanswered.Add(uint64(c.stop()))
			return
		case err != nil:
			f.fail(&f.broken, "%s: %v", c.name, err)
			return
		}
		id := binary.BigEndian.Uint16(packet)
		was, done := c.done(id)
		if !was {
			f.fail(&f.unexpected, "%s: a reply to %s", c.name, queryName(id))
		}
		if rcode, answers := packet[3]&15, packet[7]; rcode != 0 || answers != 1 {
			f.fail(&f.servfail, "%s: the reply to %s has rcode %d and %d answers", c.name, queryName(id), rcode, answers)
		}
		f.answered.Add(1)
		if done {
			return
		}
	}
}

// fail counts what was wrong, if there is a count for it, and keeps it.
func (f *flood) fail(count *atomic.Uint64, format string, args ...any) {
	if count != nil {
		count.Add(1)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.wrong) < maxReported {
		f.wrong = append(f.wrong, fmt.Sprintf(format, args...))
	}
}

// report is what was wrong and where each client stands.
func (f *flood) report() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	lines := slices.Clone(f.wrong)
	for _, c := range f.clients {
		lines = append(lines, c.String())
	}
	return strings.Join(lines, "\n")
}

// stopAndCheck stops asking, waits for all replies and checks the counts.
func (f *flood) stopAndCheck() {
	f.t.Helper()
	close(f.stop)
	f.all.Wait()
	for what, n := range map[string]uint64{
		"queries had no reply": f.unanswered.Load(), "replies were to no query, or to one that had one": f.unexpected.Load(),
		"replies had no answer": f.servfail.Load(), "connections broke": f.broken.Load(),
	} {
		if n > 0 {
			f.t.Errorf("%d %s, of %d that were answered", n, what, f.answered.Load())
		}
	}
}
