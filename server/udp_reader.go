package server

import (
	"net/netip"
	"runtime"
	"slices"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/udp"
)

// sharedStarts is how many queries the reader forwards at most before it looks for packets again, while several clients have
// some: in a flood, hits wait no longer than it takes to send so many.
const sharedStarts = 4

// yieldThreshold is up to how many busy workers a reader yields its P to those that it has started. With more,
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
	starting []*pendingQuery // queries that have a turn, in the order in which they got it
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
		if b.N == 0 {
			u.yield(u.startQueries())
			continue
		}
		u.progress.tick() // only with packets: the end of the batch is below
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
	for _, w := range u.starting {
		w.startWorker()
	}
	u.starting = nil
	u.reused.close()
}

// yield lets workers run that this goroutine has started, or woken by a reply which it has read. They are queued on its P, which
// it would take along into the kernel; another thread would steal them, but only after a while.
func (u *udpReader) yield(started bool) {
	if u.batch.Woken || started && u.s.workers.busy.Load() <= yieldThreshold {
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

// startQueries starts the next queries that have a turn, and those to which they pass it on. Those that only have to be forwarded at
// once it starts itself, a few for each batch while several clients have some, one if more packets wait, and the others in workers. It reports
// whether a worker was started.
func (u *udpReader) startQueries() (workers bool) {
	s, left := u.s, udp.BatchSize
	if len(u.starting) > 0 && !s.turns.alone(u.request.Arrival) {
		if left = sharedStarts; u.batch.N == udp.BatchSize {
			left = 1 // more packets wait, with hits among them
		}
	}
	i := 0
	for ; i < len(u.starting) && left > 0; i++ {
		w := u.starting[i]
		u.starting[i] = nil
		if w.outcome != resolver.Forward || !w.StartsAtOnce() {
			w.startWorker()
			workers = true
			continue
		}
		left--
		if next := s.turns.release(w.Place); next != nil {
			u.starting = append(u.starting, next)
		}
		w.parked.ReadBy = u.socket.Upstreams()
		if !w.startForward() {
			w.startWorker()
			workers = true
		}
	}
	u.starting = slices.Delete(u.starting, 0, i)
	u.batch.NoWait = len(u.starting) > 0
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
