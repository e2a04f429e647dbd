package server

import (
	"net/netip"
	"runtime"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/udp"
)

// sharedStarts is the most waiting queries of a batch with which the reader forwards queries itself while several clients
// have some. With more, workers forward them: the reader keeps up with a flood, hits do not wait, and the clients take turns.
const sharedStarts = 4

// yieldThreshold is up to how many waiting queries a reader yields its P to them. With more,
// other threads are awake and take work from every run queue, so the reader can go on with
// the hits.
const yieldThreshold = 8

// udpReader answers the packets of one socket. It belongs to one goroutine and reuses its
// batch and request for all queries.
type udpReader struct {
	s        *Server
	l        *listener
	socket   udp.Socket
	batch    *udp.Batch
	request  resolver.Request
	reused   reusedReplies
	delays   udp.DelaySampler
	shares   udp.Shares
	drops    dropCounter
	progress *progress
	starting []*pendingQuery // queries of the batch that have a turn
	// dispatched is how many queries of the batch wait, with or without a turn.
	dispatched int
}

// newUDPReader returns the reader of l's socket with that index.
func newUDPReader(l *listener, index int) *udpReader {
	u := &udpReader{
		s: l.s, l: l, socket: l.udp[index], batch: udp.NewBatch(),
		request:  resolver.Request{Proto: resolver.UDP, Stripe: index, Turns: l.s.largeTurns},
		reused:   newReusedReplies(l.s, index),
		delays:   udp.DelaySampler{Delays: l.s.delays},
		shares:   udp.Shares{Pods: l.s.limits.PodRanges},
		drops:    dropCounter{stripe: index},
		progress: &l.progress[index],
	}
	if l.s.kernelPath != nil {
		u.request.Sources = new(resolver.ReplySources)
	}
	return u
}

// run answers packets until the socket is closed or suspended.
func (u *udpReader) run() {
	b, r := u.batch, &u.request
	for u.socket.ReadBatch(b) {
		u.progress.tick()
		if b.N == 0 {
			u.yield(b.Fired)
			continue
		}
		cfg := u.l.config.Load()
		r.Arrival = clock.Now()
		u.delays.Sample(u.socket, b.N, r.Arrival)
		u.reused.begin(cfg, r.Arrival)
		if u.shares.Begin(b.N, r.Arrival, u.socket) {
			u.answerShares(cfg)
		} else {
			for i := range b.Packets[:b.N] {
				u.answer(cfg, &b.Packets[i])
			}
		}
		u.drops.count()
		u.reused.end(cfg.Routes, r.Arrival)
		u.socket.WriteBatch(b)
		u.progress.tick()
		u.yield(u.startQueries())
	}
	u.reused.close()
}

// yield lets workers run that this goroutine has started, or that wait for a reply which it has read. They are queued on its P, which
// it would take along into the kernel; another thread would steal them, but only after a while. A query that is not expected
// among the upstreams' replies is with a worker.
func (u *udpReader) yield(started bool) {
	waiting := u.s.waiting // asked only where it may matter: it has a lock
	if started && waiting.InUse() <= yieldThreshold || u.batch.Replied && waiting.InUse() > u.socket.Upstreams().Expected() {
		runtime.Gosched()
	}
}

// answerShares answers the packets of each client up to its share, and drops the others.
func (u *udpReader) answerShares(cfg *activeConfig) {
	u.drops.routes = cfg.Routes
	for i := range u.batch.Packets[:u.batch.N] {
		d := &u.batch.Packets[i]
		if client := d.From.Client.Addr(); !u.shares.Admit(client) {
			u.drops.add(client)
			d.Reply = nil
			continue
		}
		u.answer(cfg, d)
	}
}

// answer answers one packet, or makes it a query that waits.
func (u *udpReader) answer(cfg *activeConfig, d *udp.Packet) {
	s, r := u.s, &u.request
	r.Client = d.From.Client
	r.Query.Packet = d.In[:d.N]
	if s.overLimit(cfg.Routes, r) {
		d.Reply = s.limits.Client.Refuse(d.Out[:0], r.Query.Packet, resolver.UDP)
		d.Out = udp.ReuseBuffer(d.Out, d.Reply)
		return
	}
	found, wanted := u.reused.find(r, d)
	if found {
		d.Out = udp.ReuseBuffer(d.Out, d.Reply)
		return
	}
	if wanted {
		u.reused.beginPath()
	}
	var o resolver.Outcome
	d.Reply, o = s.serve(cfg.Routes, r, d.Out)
	r.Arrival += r.Latency // when the next query's turn begins
	switch {
	case o == resolver.Answered:
		if wanted {
			u.reused.offer(r, d.Reply)
		}
	case !u.dispatch(cfg.Routes, o, &d.From):
		d.Reply = r.Reject()
	}
	d.Out = udp.ReuseBuffer(d.Out, d.Reply)
}

// dispatch copies the request and from. The copy is started when the replies of the batch are sent, or when it has a turn. It
// drops the query of a client that has more than its share of the turns. It returns false if
// there is no place for the query.
func (u *udpReader) dispatch(rt *resolver.Routes, o resolver.Outcome, from *udp.Peer) bool {
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
		u.drops.routes = rt
		u.drops.add(w.Client.Addr())
		w.discard()
	case turnQueued:
	}
	return true
}

// startQueries starts the queries of the batch that have a turn, and those to which they pass it on: those that only have to be
// forwarded at once, and the others in workers. It reports whether a worker was started.
func (u *udpReader) startQueries() (workers bool) {
	s, most := u.s, udp.BatchSize
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
		w.parked.ReadBy = u.socket.Upstreams()
		if !w.startForward() {
			w.startWorker()
			workers = true
		}
	}
	u.starting = u.starting[:0]
	return workers
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
