package server

import (
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/server/resolver"
)

const (
	// maxUDPQuery is the longest query that is read from UDP. A question with its OPT record
	// takes 300 bytes; cookies, client subnets and padding stay far below this. Longer
	// packets are truncated and therefore malformed.
	maxUDPQuery = 4096
	// replyBuffer is the initial size of reply buffers. Nearly all replies stay below 1,232
	// bytes, which fits into one packet everywhere (DNS flag day 2020).
	replyBuffer = 2048
	// batchSize is the most packets that a reader takes from its socket at once. With 16,
	// entering a system call costs each packet a few nanoseconds.
	batchSize = 16
)

// yieldThreshold is up to how many waiting queries a reader yields its P to them. With more,
// other threads are awake and take work from every run queue, so the reader can go on with
// the hits.
const yieldThreshold = 8

// udpSocket is one of the UDP sockets that share an address. One reader reads from it; any
// goroutine may send replies.
type udpSocket interface {
	// readBatch waits for packets and reads them into b, which belongs to the reader and is
	// the same in all its calls. It returns false after close, when the socket is closed,
	// and after suspend; the reader then ends.
	readBatch(b *batch) bool
	// writeBatch sends the replies in b. A reply that cannot be sent is lost; the client
	// asks again.
	writeBatch(b *batch)
	// send sends one reply. It does not block, and works after close, too.
	send(to *udpPeer, msg []byte)
	// timestamp stores when the packet that was last read arrived, by the wall clock. Only
	// the reader calls it, between readBatch and writeBatch.
	timestamp(came *unix.Timespec) syscall.Errno
	memoryReader
	// close makes readBatch return, now and in the future. It closes this process's
	// descriptor only; other processes keep the socket.
	close()
	// suspend makes readBatch return and leaves the packets in the queue to others who read
	// from the socket, which stays open.
	suspend()
	// resume undoes suspend. The previous reader must have ended.
	resume()
	// duplicate returns a duplicate of the socket, which the caller closes.
	duplicate() (*os.File, error)
}

// socketCommand tells the reader of a socket what to do.
type socketCommand = int32

const (
	keepReading  socketCommand = iota
	stopKeepOpen               // end, and leave the socket open
	stopAndClose               // end, and close the socket
)

// udpPeer is where a packet came from and where its reply goes.
type udpPeer struct {
	client netip.AddrPort
	// name is the client's address as the kernel wrote it, of length nameLen. nameLen is 0
	// for sockets that do not use it.
	name    [unix.SizeofSockaddrInet6]byte
	nameLen uint32
	// oob is the control message of a packet to a wildcard socket. Sent with the reply, it
	// makes the queried address the source.
	oob    [unix.SizeofCmsghdr + unix.SizeofInet6Pktinfo + 16]byte
	oobLen uint32
}

// packet is one packet and the reply to it.
type packet struct {
	in  [maxUDPQuery]byte
	n   int
	out []byte // the buffer for the reply
	// reply is what to send, usually in out; nil is nothing.
	reply []byte
	from  udpPeer
}

// batch is what a reader reads at once. It belongs to the reader.
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

// udpReader answers the packets of one socket. It belongs to one goroutine and reuses its
// batch and request for all queries.
type udpReader struct {
	s        *Server
	l        *listener
	socket   udpSocket
	batch    *batch
	request  udpRequest
	delays   delaySampler
	shares   socketShares
	progress *progress
}

// newUDPReader returns the reader of l's socket with that index.
func newUDPReader(l *listener, index int) *udpReader {
	return &udpReader{
		s: l.s, l: l, socket: l.udp[index], batch: newBatch(),
		request:  udpRequest{Request: resolver.Request{Proto: resolver.UDP, Stripe: index}},
		delays:   delaySampler{delays: l.s.delays},
		shares:   socketShares{pods: l.s.limits.PodRanges, drops: dropCounter{stripe: index}},
		progress: &l.progress[index],
	}
}

// run answers packets until the socket is closed or suspended.
func (u *udpReader) run() {
	b, r := u.batch, &u.request
	for u.socket.readBatch(b) {
		u.progress.tick()
		cfg := u.l.config.Load()
		r.Arrival = clock.Now()
		u.delays.sample(u.socket, b.n, r.Arrival)
		waits := false
		if u.shares.begin(b.n, r.Arrival, u.socket) {
			waits = u.answerShares(cfg)
		} else {
			for i := range b.packets[:b.n] {
				waits = u.answer(cfg, &b.packets[i]) || waits
			}
		}
		u.shares.drops.count()
		u.socket.writeBatch(b)
		u.progress.tick()
		if waits && u.s.waiting.InUse() <= yieldThreshold {
			// The workers of the waiting queries are queued on this goroutine's P,
			// which it would take along into the kernel. Another thread would steal
			// them, but only after a while.
			runtime.Gosched()
		}
	}
}

// answerShares answers the packets of each client up to its share, and drops the others. waits
// reports whether a query was handed to a worker.
func (u *udpReader) answerShares(cfg *activeConfig) (waits bool) {
	u.shares.drops.routes = cfg.Routes
	for i := range u.batch.packets[:u.batch.n] {
		d := &u.batch.packets[i]
		if !u.shares.admit(d.from.client.Addr()) {
			d.reply = nil
			continue
		}
		waits = u.answer(cfg, d) || waits
	}
	return waits
}

// answer answers one packet or hands it to a worker. waits reports the latter.
func (u *udpReader) answer(cfg *activeConfig, d *packet) (waits bool) {
	s, r := u.s, &u.request
	r.Client = d.from.client
	r.Query.Packet = d.in[:d.n]
	if s.overLimit(cfg.Routes, &r.Request) {
		d.reply = s.limits.Client.Refuse(d.out[:0], r.Query.Packet, resolver.UDP)
		d.out = reuseBuffer(d.out, d.reply)
		return false
	}
	var o resolver.Outcome
	r.epochs = s.fastPath.epochs()
	d.reply, o = s.serve(cfg.Routes, &r.Request, d.out)
	r.Arrival += r.Latency // when the next query's turn begins
	switch {
	case o == resolver.Answered:
		s.copyReply(cfg, r, d.reply)
	case u.dispatch(cfg.Routes, o, &d.from):
		waits = true
	default:
		d.reply = r.Reject()
	}
	d.out = reuseBuffer(d.out, d.reply)
	return waits
}

// dispatch copies the request and from and hands the copy to a worker, now or when it has a turn. It
// drops the query of a client that has more than its share of the turns. It returns false if
// there is no place for the query.
func (u *udpReader) dispatch(rt *resolver.Routes, o resolver.Outcome, from *udpPeer) bool {
	s := u.s
	w := pendingQueries.Get().(*pendingQuery)
	if !s.acquire(&w.place, &u.request.Request) {
		pendingQueries.Put(w)
		return false
	}
	u.request.Detach(&w.place, &w.Request, w.in[:], w.out)
	w.to, w.rt, w.socket, w.outcome, w.queued = *from, rt, u.socket, o, false
	s.running.Add(1)
	switch s.turns.acquire(w, u.request.Arrival) {
	case turnTaken:
		s.startWorker(w)
	case turnRefused:
		u.shares.drops.routes = rt
		u.shares.drops.add(w.Client.Addr())
		w.discard(s)
	case turnQueued:
	}
	return true
}

// startWorker hands w, which has a turn, to a worker.
func (s *Server) startWorker(w *pendingQuery) {
	if !s.workers.dispatch(w) {
		s.workers.running.Go(func() {
			for ; w != nil; w = s.workers.waitForWork(s.ctx) {
				w.complete(s)
			}
		})
	}
}

// reuseBuffer returns the buffer for the next reply: msg's if it is not much larger, else
// buf, so that a rare long reply does not stay in memory.
func reuseBuffer(buf, msg []byte) []byte {
	if msg != nil && cap(msg) <= 8*replyBuffer {
		return msg[:0]
	}
	return buf
}

// pendingQuery is one UDP query that waits. It owns its buffers.
type pendingQuery struct {
	resolver.Request
	place   share.Place
	waiter  share.Waiter[*pendingQuery] // in the queue for a turn
	queued  bool                        // it has waited for its turn
	in      [maxUDPQuery]byte
	out     []byte
	to      udpPeer
	rt      *resolver.Routes
	socket  udpSocket
	outcome resolver.Outcome
}

// pendingQueries holds finished ones for reuse.
var pendingQueries = sync.Pool{New: func() any { return &pendingQuery{out: make([]byte, 0, replyBuffer)} }}

// complete passes w's turn on, answers w and sends the reply. The worker must not use w afterwards.
func (w *pendingQuery) complete(s *Server) {
	if w.queued {
		// A worker that another one has woken is the next to run on that one's P. Queries
		// whose upstreams have answered go first, else a chain of workers, each of which
		// wakes the next one, would keep the P from them.
		runtime.Gosched()
	}
	if next := s.turns.release(w.Place); next != nil {
		s.startWorker(next)
	}
	if msg := s.wait(w.rt, &w.Request, w.outcome, w.out); msg != nil {
		w.socket.send(&w.to, msg)
		w.out = reuseBuffer(w.out, msg)
	}
	w.discard(s)
}

// discard releases w's place and makes w available for another query.
func (w *pendingQuery) discard(s *Server) {
	w.rt, w.socket = nil, nil // do not keep them alive in the pool
	s.waiting.Release(&w.place)
	pendingQueries.Put(w)
	s.running.Done()
}
