package server

import (
	"net/netip"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/clock"
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

// sharedStarts is the most waiting queries of a batch with which the reader forwards queries itself while several clients
// have some. With more, workers forward them: the reader keeps up with a flood, hits do not wait, and the clients take turns.
const sharedStarts = 4

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
	// sendLater sends the reply in w and discards w, now or when flush is called, perhaps that of an earlier
	// call. flush is nil if the caller need not call it. It does not block, and works after close, too.
	sendLater(w *pendingQuery) (flush func())
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
	request  resolver.Request
	reused   reusedReplies
	delays   delaySampler
	shares   socketShares
	progress *progress
	starting []*pendingQuery // queries of the batch that have a turn
	// dispatched is how many queries of the batch wait, with or without a turn.
	dispatched int
}

// newUDPReader returns the reader of l's socket with that index.
func newUDPReader(l *listener, index int) *udpReader {
	u := &udpReader{
		s: l.s, l: l, socket: l.udp[index], batch: newBatch(),
		request:  resolver.Request{Proto: resolver.UDP, Stripe: index, Turns: l.s.largeTurns},
		reused:   newReusedReplies(l.s, index),
		delays:   delaySampler{delays: l.s.delays},
		shares:   socketShares{pods: l.s.limits.PodRanges, drops: dropCounter{stripe: index}},
		progress: &l.progress[index],
	}
	if l.s.fastPath != nil {
		u.request.Sources = new(resolver.ReplySources)
	}
	return u
}

// run answers packets until the socket is closed or suspended.
func (u *udpReader) run() {
	b, r := u.batch, &u.request
	for u.socket.readBatch(b) {
		u.progress.tick()
		cfg := u.l.config.Load()
		r.Arrival = clock.Now()
		u.delays.sample(u.socket, b.n, r.Arrival)
		u.reused.begin(cfg, r.Arrival)
		if u.shares.begin(b.n, r.Arrival, u.socket) {
			u.answerShares(cfg)
		} else {
			for i := range b.packets[:b.n] {
				u.answer(cfg, &b.packets[i])
			}
		}
		u.shares.drops.count()
		u.reused.end(cfg.Routes, r.Arrival)
		u.socket.writeBatch(b)
		u.progress.tick()
		if u.startQueries() && u.s.waiting.InUse() <= yieldThreshold {
			// The workers are queued on this goroutine's P, which it would take along into the kernel. Another thread would steal
			// them, but only after a while.
			runtime.Gosched()
		}
	}
	u.reused.close()
}

// answerShares answers the packets of each client up to its share, and drops the others.
func (u *udpReader) answerShares(cfg *activeConfig) {
	u.shares.drops.routes = cfg.Routes
	for i := range u.batch.packets[:u.batch.n] {
		d := &u.batch.packets[i]
		if !u.shares.admit(d.from.client.Addr()) {
			d.reply = nil
			continue
		}
		u.answer(cfg, d)
	}
}

// answer answers one packet, or makes it a query that waits.
func (u *udpReader) answer(cfg *activeConfig, d *packet) {
	s, r := u.s, &u.request
	r.Client = d.from.client
	r.Query.Packet = d.in[:d.n]
	if s.overLimit(cfg.Routes, r) {
		d.reply = s.limits.Client.Refuse(d.out[:0], r.Query.Packet, resolver.UDP)
		d.out = reuseBuffer(d.out, d.reply)
		return
	}
	found, wanted := u.reused.find(r, d)
	if found {
		d.out = reuseBuffer(d.out, d.reply)
		return
	}
	var o resolver.Outcome
	d.reply, o = s.serve(cfg.Routes, r, d.out)
	r.Arrival += r.Latency // when the next query's turn begins
	switch {
	case o == resolver.Answered:
		if wanted {
			u.reused.offer(r, d.reply)
		}
	case !u.dispatch(cfg.Routes, o, &d.from):
		d.reply = r.Reject()
	}
	d.out = reuseBuffer(d.out, d.reply)
}

// dispatch copies the request and from. The copy is started when the replies of the batch are sent, or when it has a turn. It
// drops the query of a client that has more than its share of the turns. It returns false if
// there is no place for the query.
func (u *udpReader) dispatch(rt *resolver.Routes, o resolver.Outcome, from *udpPeer) bool {
	s := u.s
	w := newPendingQuery()
	if !s.acquire(&w.place, &u.request) {
		pendingQueries.Put(w)
		return false
	}
	u.request.Detach(&w.place, &w.Request, w.in[:], w.out)
	w.server, w.to, w.rt, w.socket, w.outcome = s, *from, rt, u.socket, o
	w.state = hasTurn
	s.running.Add(1)
	u.dispatched++
	switch s.turns.acquire(w, u.request.Arrival) {
	case turnTaken:
		u.starting = append(u.starting, w)
	case turnRefused:
		u.shares.drops.routes = rt
		u.shares.drops.add(w.Client.Addr())
		w.discard()
	case turnQueued:
	}
	return true
}

// startQueries starts the queries of the batch that have a turn, and those to which they pass it on: those that only have to be
// forwarded at once, and the others in workers. It reports whether a worker was started.
func (u *udpReader) startQueries() (workers bool) {
	s, most := u.s, batchSize
	if u.dispatched > sharedStarts && !s.turns.alone(u.request.Arrival) {
		most = 0
	}
	u.dispatched = 0
	for i := 0; i < len(u.starting); i++ {
		w := u.starting[i]
		u.starting[i] = nil
		if w.outcome != resolver.Forward || !w.StartsAtOnce() || i >= most {
			w.startWorker()
			workers = true
			continue
		}
		if next := s.turns.release(w.Place); next != nil {
			u.starting = append(u.starting, next)
		}
		if !w.startForward() {
			w.startWorker()
			workers = true
		}
	}
	u.starting = u.starting[:0]
	return workers
}

// reuseBuffer returns the buffer for the next reply: msg's if it is not much larger, else
// buf, so that a rare long reply does not stay in memory.
func reuseBuffer(buf, msg []byte) []byte {
	if msg != nil && cap(msg) <= 8*replyBuffer {
		return msg[:0]
	}
	return buf
}

// dropCounter counts packets and queries that a reader drops because their clients have more than their
// share. It belongs to one goroutine.
type dropCounter struct {
	routes *resolver.Routes // where they are counted
	stripe int              // of the counters
	last   netip.Addr       // the client of the last ones; packets of one client often come together
	n      uint64           // their number; they are not counted in routes yet
}

// add notes that one of client is dropped.
func (d *dropCounter) add(client netip.Addr) {
	if client != d.last {
		d.count()
		d.last = client
	}
	d.n++
}

// count counts what is dropped for the clients. The reader calls it after each batch.
func (d *dropCounter) count() {
	if d.n > 0 {
		d.routes.CountDropped(d.stripe, d.last, d.n)
		d.n = 0
	}
}
