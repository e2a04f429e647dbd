package server

import (
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/server/resolver"
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

// yieldThreshold is how many queries may wait for a reader to make place for the next one. With
// more, other threads are awake and look for work in every line, so that the reader
// can go on to the hits. With half of it, a steady hundred misses a second would
// find them asleep; with twice as much, hits wait in a flood.
const yieldThreshold = 8

// udpSocket is one of the UDP sockets that share an address. One reader takes from it;
// replies to queries that had to wait are sent by anybody.
type udpSocket interface {
	// readBatch waits for packets and reads them into b. It is false once shut was
	// called, and the socket is then closed, or yield; the caller takes no more.
	readBatch(b *batch) bool
	// writeBatch sends the replies in b. A reply that can't be sent is lost, as any
	// datagram may be; the client asks again.
	writeBatch(b *batch)
	// send sends one reply. It does not block and is safe for concurrent use, also
	// after shut.
	send(to *udpPeer, msg []byte)
	// timestamp says when the packet came that was last read, by the wall clock. It is for
	// the reader, between take and give.
	timestamp(came *unix.Timespec) syscall.Errno
	// close makes take return, now and for ever. It closes nothing but this process's
	// descriptor of the socket, which another one may share. It is safe for concurrent
	// use, as the rest is.
	close()
	// suspend makes take return and leaves what has come to others who read from the
	// socket, which stays open.
	suspend()
	// resume ends what yield began: take reads again. The reader of before must have
	// ended.
	resume()
	// duplicate is a duplicate of the socket; the caller closes it.
	duplicate() (*os.File, error)
}

// socketCommand is what a port's reader is told to do.
type socketCommand = int32

const (
	keepReading  socketCommand = iota
	stopKeepOpen               // to end, and leave the socket as it is
	stopAndClose               // to end, and close the socket
)

// udpPeer is where a packet came from.
type udpPeer struct {
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

// packet is the place of one packet and the reply to it.
type packet struct {
	in  [maxUDPQuery]byte
	n   int
	out []byte // the buffer that a reply is written to
	// reply is what is to be sent, in out; nil is nothing.
	reply []byte
	from  udpPeer
}

// batch is what a reader takes at once. It belongs to the reader.
type batch struct {
	packets [batchSize]packet
	n       int
}

func newBatch() *batch {
	b := new(batch)
	for i := range b.packets {
		b.packets[i].out = make([]byte, 0, replyBuffer)
	}
	return b
}

// readUDP answers what comes in on one socket until it is shut.
func (s *Server) readUDP(l *listener, p udpSocket, lane int) {
	b := newBatch()
	r := udpRequest{Request: resolver.Request{Proto: resolver.UDP, Stripe: lane}}
	line := delaySampler{delays: s.delays}
	work := &l.progress[lane]
	for p.readBatch(b) {
		work.tick()
		cfg := l.config.Load()
		r.Arrival = clock.Now()
		line.sample(p, r.Arrival)
		waits := false
		for i := range b.packets[:b.n] {
			waits = s.answerPacket(cfg, p, &r, &b.packets[i]) || waits
		}
		p.writeBatch(b)
		work.tick()
		if waits && s.waiting.InUse() <= yieldThreshold {
			// The goroutines of those that wait stand in line for this goroutine's
			// P, which it would take along into the kernel. They would be stolen
			// from there, but only after a while.
			runtime.Gosched()
		}
	}
}

// answerPacket answers one packet, or hands it over to a goroutine, in which it waits.
func (s *Server) answerPacket(cfg *activeConfig, p udpSocket, r *udpRequest, d *packet) (waits bool) {
	r.Client = d.from.client
	r.Query.Packet = d.in[:d.n]
	var o resolver.Outcome
	r.epochs = s.copies.epochs()
	d.reply, o = s.serve(cfg.Routes, &r.Request, d.out)
	r.Arrival += r.Latency // the next one's turn
	switch {
	case o == resolver.Answered:
		s.copies.put(cfg, r, d.reply)
	case s.acquire(&r.Request):
		s.dispatch(cfg.Routes, p, &r.Request, o, &d.from)
		waits = true
	default:
		d.reply = r.Reject()
	}
	d.out = reuseBuffer(d.out, d.reply)
	return waits
}

// reuseBuffer is the buffer for the next reply: the one that msg was written to if it
// grew by little, or the one before; a rare long reply does not stay in memory.
func reuseBuffer(buf, msg []byte) []byte {
	if msg != nil && cap(msg) <= 8*replyBuffer {
		return msg[:0]
	}
	return buf
}

// pendingQuery is one UDP query that waits, with buffers of its own, and the rest of
// its way: from the outcome o on rt, and out of port.
type pendingQuery struct {
	resolver.Request
	in   [maxUDPQuery]byte
	out  []byte
	to   udpPeer
	rt   *resolver.Routes
	port udpSocket
	o    resolver.Outcome
}

// pendingQueries keeps those that are done, for the next that have to wait.
var pendingQueries = sync.Pool{New: func() any { return &pendingQuery{out: make([]byte, 0, replyBuffer)} }}

// dispatch copies r and has a goroutine complete the copy.
func (s *Server) dispatch(rt *resolver.Routes, p udpSocket, r *resolver.Request, o resolver.Outcome, from *udpPeer) {
	w := pendingQueries.Get().(*pendingQuery)
	r.Detach(s.ctx, &w.Request, w.in[:], w.out)
	w.to, w.rt, w.port, w.o = *from, rt, p, o
	s.running.Add(1)
	if !s.workers.dispatch(w) {
		s.workers.running.Go(func() {
			for ; w != nil; w = s.workers.waitForWork(s.ctx) {
				s.completePending(w)
			}
		})
	}
}

// completePending is the rest of w's way.
func (s *Server) completePending(w *pendingQuery) {
	defer s.running.Done()
	defer s.release(w.Place)
	if msg := s.wait(w.rt, &w.Request, w.o, w.out); msg != nil {
		w.port.send(&w.to, msg)
		w.out = reuseBuffer(w.out, msg)
	}
	w.rt, w.port = nil, nil // may be gone before the next query
	pendingQueries.Put(w)
}
