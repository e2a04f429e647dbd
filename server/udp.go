package server

import (
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// maxUDPQuery is the longest query read from UDP. A question and its OPT take
	// 300 bytes; cookies, client subnets and padding stay far below this. What is
	// longer is cut, and so malformed.
	maxUDPQuery = 4096
	// replyBuffer is where reply buffers start. Nearly all replies stay below
	// 1,232 bytes, what fits into one packet everywhere (DNS flag day 2020).
	replyBuffer = 2048
	// batchSize is the most packets a reader takes from its socket at once. With
	// 16 a system call's entry costs each packet a few nanoseconds; twice as many
	// would keep the first client waiting for twice as long, and hold twice the
	// buffers, for nothing that can be measured.
	batchSize = 16
)

// few is how many queries may wait for a reader to make place for the next one. With
// more, other threads are awake and look for work in every line, so that the reader
// can go on to the hits. With half of it, a steady hundred misses a second would
// find them asleep; with twice as much, hits wait in a flood.
const few = 8

// port is one of the UDP sockets that share an address. One reader takes from it;
// replies to queries that had to wait are sent by anybody.
type port interface {
	// take waits for packets and reads them into b. It is false once shut was
	// called, and the socket is then closed, or yield; the caller takes no more.
	take(b *batch) bool
	// give sends the replies in b. A reply that can't be sent is lost, as any
	// datagram may be; the client asks again.
	give(b *batch)
	// send sends one reply. It does not block and is safe for concurrent use, also
	// after shut.
	send(to *origin, msg []byte)
	// stamp says when the packet came that was last read, by the wall clock. It is for
	// the reader, between take and give.
	stamp(came *unix.Timespec) syscall.Errno
	// shut makes take return, now and for ever. It closes nothing but this process's
	// descriptor of the socket, which another one may share. It is safe for concurrent
	// use, as the rest is.
	shut()
	// yield makes take return and leaves what has come to others who read from the
	// socket, which stays open.
	yield()
	// resume ends what yield began: take reads again. The reader of before must have
	// ended.
	resume()
	// file is a duplicate of the socket; the caller closes it.
	file() (*os.File, error)
}

// order is what a port's reader is told to do.
type order = int32

const (
	reading  order = iota
	yielding       // to end, and leave the socket as it is
	closing        // to end, and close the socket
)

// origin is where a packet came from.
type origin struct {
	client netip.AddrPort
	// name is the client's address as the kernel wrote it, of length nameLen, for
	// ports that hand it back as it is; else nameLen is 0.
	name    [unix.SizeofSockaddrInet6]byte
	nameLen uint32
	// oob is the control message that came with a packet to a wildcard socket;
	// sent with the reply, it makes the address that was asked the source.
	oob    [unix.SizeofCmsghdr + unix.SizeofInet6Pktinfo + 16]byte
	oobLen uint32
}

// slot is the place of one packet and the reply to it.
type slot struct {
	in  [maxUDPQuery]byte
	n   int
	out []byte // the buffer that a reply is written to
	// reply is what is to be sent, in out; nil is nothing.
	reply []byte
	from  origin
}

// batch is what a reader takes at once. It belongs to the reader.
type batch struct {
	slots [batchSize]slot
	n     int
}

func newBatch() *batch {
	b := new(batch)
	for i := range b.slots {
		b.slots[i].out = make([]byte, 0, replyBuffer)
	}
	return b
}

// readUDP answers what comes in on one socket until it is shut.
func (s *Server) readUDP(l *listener, p port, lane int) {
	b := newBatch()
	x := exchange{via: udp, lane: lane}
	line := queue{waits: s.waits}
	work := &l.shifts[lane]
	for p.take(b) {
		work.turn()
		rt := l.routes.Load()
		x.start = clock.Now()
		line.look(p, x.start)
		waits := false
		for i := range b.slots[:b.n] {
			waits = s.answerSlot(rt, p, &x, &b.slots[i]) || waits
		}
		p.give(b)
		work.turn()
		if waits && s.waiting.Used() <= few {
			// The goroutines of those that wait stand in line for this goroutine's
			// P, which it would take along into the kernel. They would be stolen
			// from there, but only after a while.
			runtime.Gosched()
		}
	}
}

// answerSlot answers one packet, or hands it over to a goroutine, in which it waits.
func (s *Server) answerSlot(rt *Routes, p port, x *exchange, d *slot) (waits bool) {
	x.client = d.from.client
	x.q.Packet = d.in[:d.n]
	var at step
	x.glance = s.copies.glance()
	d.reply, at = s.serve(rt, x, d.out, (*wire.Query).Limit)
	x.start += x.took // the next one's turn
	switch {
	case at == done:
		s.copies.put(rt, x, d.reply)
	case s.acquire(x):
		s.detach(rt, p, x, at, &d.from)
		waits = true
	default:
		d.reply = s.full(x, x.q.Limit())
	}
	d.out = kept(d.out, d.reply)
	return waits
}

// kept is the buffer for the next reply: the one that msg was written to if it
// grew by little, or the one before; a rare long reply does not stay in memory.
func kept(buf, msg []byte) []byte {
	if msg != nil && cap(msg) <= 8*replyBuffer {
		return msg[:0]
	}
	return buf
}

// datagram is one UDP query that waits, with buffers of its own, and the rest of
// its way: from at on rt, and out of port.
type datagram struct {
	exchange
	in   [maxUDPQuery]byte
	out  []byte
	to   origin
	rt   *Routes
	port port
	at   step
}

// datagrams keeps those that are done, for the next that have to wait.
var datagrams = sync.Pool{New: func() any { return &datagram{out: make([]byte, 0, replyBuffer)} }}

// detach copies x and has a goroutine complete the copy.
func (s *Server) detach(rt *Routes, p port, x *exchange, at step, from *origin) {
	w := datagrams.Get().(*datagram)
	x.detach(&w.exchange, w.in[:], w.out)
	w.to, w.rt, w.port, w.at = *from, rt, p, at
	s.running.Add(1)
	if !s.crew.hand(w) {
		s.crew.all.Go(func() {
			for ; w != nil; w = s.crew.rest(s.ctx) {
				s.complete(w)
			}
		})
	}
}

// complete is the rest of w's way.
func (s *Server) complete(w *datagram) {
	defer s.running.Done()
	defer s.release(w.place)
	if msg := s.wait(w.rt, &w.exchange, w.at, w.q.Limit()); msg != nil {
		w.port.send(&w.to, msg)
		w.out = kept(w.out, msg)
	}
	w.rt, w.port = nil, nil // may be gone before the next query
	datagrams.Put(w)
}
