package server

import (
	"context"
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/fastpath"
	"github.com/nodens-dns/nodens/upstream"
)

// request is one query and the reply to it. It is reused for query after query, and only
// one goroutine uses it at a time.
type request struct {
	// What the socket and the parser leave. No step changes it, but for the query's UDP
	// size, which limitSize sets from advertised.
	query      wire.Query
	advertised uint16 // the UDP payload size in the client's OPT record
	client     netip.AddrPort
	proto      proto
	arrival    time.Duration // by package clock
	stripe     int           // chooses among the counters of [Stats]; any number will do
	epochs     epochs
	place      share.Client // whose place the request holds while it waits
	hops       uint8        // aliases followed from the client's name to this one
	direct     bool         // this is the client's query, and its reply is sent
	onPath     bool         // this is a subquery for a name on the client's search path

	// ctx permits waiting until it ends. While it is nil the request may not wait.
	ctx context.Context
	// now is the time by which cached answers are fresh or expired: the arrival, but later
	// where the request has waited.
	now time.Duration
	// budget bounds the work on answers of the cluster; nil is no bound.
	budget *kubernetes.Budget
	// lookups are the look-ups in caches that are counted when the request is finished.
	lookups *lookups

	reply wire.Reply
	result
	latency time.Duration // from the arrival until the reply is complete

	// What budget and lookups of the client's query point to; its subqueries share both.
	ownBudget  kubernetes.Budget
	ownLookups lookups

	copy       fastpath.Answer // of the reply, for the fast path
	copyDenial bool            // the copied answer is a negative one in the cache
}

// result is what one run of the path finds out, besides the reply. The next run begins
// with the zero value.
type result struct {
	routes    *Routes
	zone      *Zone
	source    source
	pool      *upstream.Pool // to forward the query to
	verdicts  verdicts
	rule      wire.Name // the zone of the ACL rule that matched, "" for none
	ordered   bool      // the order of the answers must stay
	viaSearch bool      // the reply is to another name on the client's search path
	err       error     // to be logged: why the reply is an error, or incomplete
}

// begin makes r, whose query has been parsed, ready for a run of the path on rt at now. The
// reply is written to buf.
func (r *request) begin(rt *Routes, now time.Duration, buf []byte) {
	r.result, r.now = result{routes: rt}, now
	r.query.UDPSize = r.advertised
	r.reply.Start(buf, &r.query)
	r.budget, r.lookups = nil, &r.ownLookups
	if !r.mayWait() {
		r.ownBudget.Refill()
		r.budget = &r.ownBudget
	}
	r.ownLookups.reset()
}

// clear drops all that r refers to, except buffers for its next use.
func (r *request) clear() {
	r.ownLookups.reset()
	*r = request{ownLookups: r.ownLookups}
}

// mayWait reports whether steps may wait, take as long as they need, and log errors.
func (r *request) mayWait() bool { return r.ctx != nil }

// fail makes the reply an error without records.
func (r *request) fail(rcode wire.Rcode) outcome {
	r.reply.Fail(rcode)
	return answered
}

// expect tells the reply how long it may get, once the query says what its client takes:
// what is cut off from a client's reply need not be written.
func (r *request) expect() {
	if r.direct && r.proto == udp {
		r.reply.SetLimit(r.query.Limit())
	}
}

// limitSize bounds the query's UDP payload size by what the zone allows.
func (r *request) limitSize() { r.query.UDPSize = min(r.advertised, r.zone.maxSize()) }

// detach makes w a copy of r that may wait, until ctx ends, and shares nothing with r: its
// packet and reply are in buffers of w. Where r came to [forward] the copy continues from
// there; else w is what parsing left.
func (r *request) detach(ctx context.Context, w *request, packet, reply []byte) {
	*w = *r
	w.ctx, w.budget, w.lookups = ctx, nil, &w.ownLookups
	w.ownLookups = lookups{}
	w.query.Packet = append(packet[:0], r.query.Packet...)
	w.reply.MoveTo(reply, &w.query)
}

// derive makes sub a request on behalf of r's client, for a query that is still to be
// parsed. It shares r's permission to wait, budget and look-ups.
func (r *request) derive(sub *request) {
	sub.client, sub.proto, sub.stripe, sub.place = r.client, r.proto, r.stripe, r.place
	sub.arrival, sub.now, sub.hops, sub.direct = r.arrival, r.now, r.hops, false
	sub.onPath = r.onPath
	if r.mayWait() {
		sub.now = clock.Now() // r may have waited
	}
	sub.ctx, sub.budget, sub.lookups = r.ctx, r.budget, r.lookups
	sub.result = result{routes: r.routes}
}

// parse makes sub, which r has derived, the request for name and qtype. packet and reply are
// its buffers. It is false for what is no query.
func (r *request) parse(sub *request, name []byte, qtype uint16, packet, reply []byte) bool {
	if sub.query.Parse(wire.AppendQuery(packet[:0], r.query.ID, name, qtype, &r.query, wire.MinUDP)) != wire.Serve {
		return false
	}
	sub.advertised = sub.query.UDPSize
	sub.reply.Start(reply[:0], &sub.query)
	return true
}

// lookups are results of look-ups in caches that are not counted yet: a run that ends in
// wouldWait leaves no trace. The zero value is ready.
type lookups struct {
	list  []lookup
	names []byte
}

// lookup is one look-up.
type lookup struct {
	result cache.Result
	zone   *Zone
	qtype  uint16
	name   []byte // in wire form, part of names
}

func (l *lookups) reset() {
	clear(l.list)
	l.list, l.names = l.list[:0], l.names[:0]
}

// add notes the look-up of r's question.
func (l *lookups) add(r *request, result cache.Result) {
	at := len(l.names)
	l.names = append(l.names, r.query.Name()...)
	l.list = append(l.list, lookup{result: result, zone: r.zone, qtype: r.query.Type, name: l.names[at:]})
}

// countLookups counts the look-ups that led to r's reply, and has answers refreshed that
// are about to expire, or have.
func (r *request) countLookups() {
	for i := range r.ownLookups.list {
		l := &r.ownLookups.list[i]
		if l.result.Count() {
			l.zone.refresh(r, l)
		}
	}
	r.ownLookups.reset()
}

// proto is how a query came.
type proto uint8

const (
	udp proto = iota
	tcp
	transports = 2
)

func (t proto) String() string {
	if t == tcp {
		return "tcp"
	}
	return "udp"
}
