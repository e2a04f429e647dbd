package resolver

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/authority"
	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/rewrite"
	"github.com/nodens-dns/nodens/upstream"
)

// Request is one query and the reply to it. It is reused for query after query, and only
// one goroutine uses it at a time.
type Request struct {
	// What the socket and the parser leave. No step changes it, but for the query's UDP
	// size, which limitSize sets from advertised.
	Query      wire.Query
	advertised uint16 // the UDP payload size in the client's OPT record
	clientSize uint16 // the payload size of the client's query, also in subqueries
	Client     netip.AddrPort
	Proto      Proto
	Arrival    time.Duration // by package clock
	Stripe     int           // chooses among the counters of [Stats]; any number will do
	// Idle is for how long the connection may be silent, which a client is told that asks (RFC 7828); 0: nothing is told.
	Idle time.Duration
	// Encrypted says that the query came over TLS, HTTPS, QUIC or gRPC: the reply is padded.
	Encrypted bool
	// Streams says that the reply may be followed by further messages: those of a zone transfer.
	Streams bool
	Place   share.Client // whose place the request holds while it waits
	// Turns are for large answers: those that keep a core busy for longer than other queries should wait. They are made in
	// turn; nil: at once.
	Turns *share.Turns
	// Room bounds the large replies that wait for their clients; nil: they don't. A request that has taken room keeps its
	// place, and the owner calls [Request.ReleaseRoom] when the reply is written.
	Room    *share.Room
	hasRoom bool
	// Made is called when a large answer is made or can't be, which may be long before the request is finished; nil: nothing is
	// to be done.
	Made func()
	// outgoingBuf has the messages of a zone transfer but the first.
	outgoingBuf []byte
	// judged is the last name in a reply that was looked up in response policy zones.
	judged     []byte
	large      bool  // the answer is large
	hops       uint8 // aliases followed from the client's name to this one
	direct     bool  // this is the client's query, and its reply is sent
	onPath     bool  // this is a subquery for a name on the client's search path
	probe      bool  // only the rcode of the reply counts: aliases are not followed, names in it not judged
	madeByRule bool  // this is a question that a rewrite rule asks in place of the client's
	metered    bool  // counted for the client's limit
	// tappedAt is when the query arrived, as its CLIENT_QUERY says; zero: none was sent.
	tappedAt time.Time

	// ctx permits waiting until it ends. While it is nil the request may not wait.
	ctx context.Context
	// now is the time by which cached answers are fresh or expired: the arrival, but later
	// where the request has waited.
	now time.Duration
	// budget bounds the work on answers of the cluster that is not done in turn; nil is no bound.
	budget *kubernetes.Budget
	// lookups are the look-ups in caches that are counted when the request is finished.
	lookups *lookups
	// Sources collects what replies along the client's search path are made of, so that they can be copied
	// ([Request.Reusable]); nil: they can't. It is not shared.
	Sources *ReplySources
	// trace makes the run a dry one and notes what the steps decide; nil except in [Routes.Explain].
	trace *trace

	reply wire.Reply
	result
	forwarding forwarding
	Latency    time.Duration // from the arrival until the reply is complete

	// What budget and lookups of the client's query point to; its subqueries share both.
	ownBudget  kubernetes.Budget
	ownLookups lookups
}

// result is what one run of the path finds out, besides the reply. The next run begins
// with the zero value.
type result struct {
	routes   *Routes
	zone     *Zone
	source   source
	pool     *upstream.Pool // to forward the query to
	verdicts verdicts
	rule     wire.Name        // the zone of the ACL rule that matched, "" for none
	policy   *dnspolicy.Class // of the client
	denial   dnspolicy.Denial // by policy
	// rpz is the rule that the reply is made by, or would be if it were not in audit mode; nil for none.
	rpz *authority.PolicyRule
	// exempt says that rules of response policy zones do not apply: one says so, or has made the question.
	exempt bool
	// policyMark is the mark of policy.
	policyMark epoch.Mark
	followed   bool             // an alias in the reply was followed
	ordered    bool             // the order of the answers must stay
	rewritten  bool             // a rewrite rule matches the client's query
	searched   bool             // the client's search path was followed
	viaSearch  bool             // the reply is to another name on the client's search path
	clients    ClientGroup      // the clients that the search path depends on
	hosts      epoch.Mark       // of the zone's hosts table when it was asked
	admitted   bool             // the reply has addresses of a set of a policy
	shed       bool             // there was no place to wait in, or it was lost
	unanswered bool             // no directive has answered
	overLimit  bool             // of the client, see [ClientLimit]
	unsent     bool             // no reply is sent because of it
	waste      bool             // the client's query is counted as search waste
	outgoing   authority.Stream // the zone transfer that begins with the reply; nil for none
	signer     authority.Signer // signs the reply; nil: it is not signed
	err        error            // to be logged: why the reply is an error, or incomplete
}

// Parse reads the packet in r.Query.Packet, which stays the caller's. The verdict says what
// to do with it; only what is to be served can begin.
func (r *Request) Parse() wire.ParseResult {
	r.result, r.Latency, r.hops, r.direct, r.metered, r.tappedAt, r.large = result{}, 0, 0, true, false, time.Time{}, false
	verdict := r.Query.Parse(r.Query.Packet)
	r.advertised = r.Query.UDPSize
	return verdict
}

// Permit says that r may wait, until ctx ends. It is called before Begin. If ctx ends with
// [share.ErrEvicted], r ends at once, with an expired answer or an error that wraps it.
func (r *Request) Permit(ctx context.Context) { r.ctx = ctx }

// Forbid withdraws the permission to wait.
func (r *Request) Forbid() { r.ctx = nil }

// Err is why the reply is an error or incomplete; nil if the query was answered.
func (r *Request) Err() error { return r.err }

// Large reports whether the outcome is [WouldWait] because the answer is large.
func (r *Request) Large() bool { return r.large }

// HasRoom reports whether the reply has taken room.
func (r *Request) HasRoom() bool { return r.hasRoom }

// TakeRoom waits for room for the reply, until ctx ends. r has a place until it has given the room back.
func (r *Request) TakeRoom(ctx context.Context) error {
	if r.Room == nil || r.hasRoom {
		return nil
	}
	err := r.Room.Take(ctx, r.Place)
	r.hasRoom = err == nil
	return err
}

// ReleaseRoom gives back the room that r has taken, if it has.
func (r *Request) ReleaseRoom() {
	if r.hasRoom {
		r.hasRoom = false
		r.Room.Release(r.Place)
	}
}

// OverIPv6 reports whether the client came over IPv6.
func (r *Request) OverIPv6() bool { return r.Client.Addr().Is6() && !r.Client.Addr().Is4In6() }

// Dropped reports whether an ACL or the client's limit says that the query gets no reply.
func (r *Request) Dropped() bool { return r.verdicts&dropped != 0 || r.unsent }

// Begin makes r, whose query has been parsed, ready for a run of the path on rt at now. The
// reply is written to buf.
func (r *Request) Begin(rt *Routes, now time.Duration, buf []byte) {
	r.result, r.now = result{routes: rt}, now
	r.Query.UDPSize = r.advertised
	r.reply.Start(buf, &r.Query)
	r.budget, r.lookups = &r.ownBudget, &r.ownLookups
	r.ownBudget.Refill()
	if r.trace != nil {
		r.ownBudget.SetDryRun()
	}
	r.ownLookups.reset()
}

// Clear drops all that r refers to, except buffers for its next use.
func (r *Request) Clear() {
	r.ownLookups.reset()
	*r = Request{ownLookups: r.ownLookups}
}

// mayWait reports whether steps may wait, take as long as they need, and log errors.
func (r *Request) mayWait() bool { return r.ctx != nil }

// mayTakeLong reports whether steps may take as long as they need, except for waiting: with permission
// to wait, and in a dry run.
func (r *Request) mayTakeLong() bool { return r.ctx != nil || r.trace != nil }

// fail makes the reply an error without records.
func (r *Request) fail(rcode wire.Rcode) Outcome {
	r.reply.Fail(rcode)
	return Answered
}

// limitSize bounds the query's UDP payload size by what the zone allows the client.
func (r *Request) limitSize() {
	r.Query.UDPSize = min(r.advertised, r.zone.maxSize(r))
	if r.direct {
		r.clientSize = r.Query.UDPSize
	}
}

// Detach makes w a copy of r that may wait, until ctx ends, and shares nothing with r: its
// packet and reply are in buffers of w. Where r came to [Forward] the copy continues from
// there; else w is what parsing left.
func (r *Request) Detach(ctx context.Context, w *Request, packet, reply []byte) {
	*w = *r
	w.ctx, w.budget, w.lookups, w.Sources, w.judged = ctx, nil, &w.ownLookups, nil, nil
	w.ownLookups = lookups{}
	w.Query.Packet = append(packet[:0], r.Query.Packet...)
	w.reply.MoveTo(reply, &w.Query)
}

// derive makes sub a request on behalf of r's client, for a query that is still to be
// parsed. It shares r's permission to wait, budget and look-ups.
func (r *Request) derive(sub *Request) {
	sub.Client, sub.Proto, sub.Stripe, sub.Place = r.Client, r.Proto, r.Stripe, r.Place
	sub.Arrival, sub.now, sub.hops, sub.direct, sub.clientSize = r.Arrival, r.now, r.hops, false, r.clientSize
	sub.onPath, sub.probe, sub.Turns, sub.Room, sub.Made, sub.large, sub.hasRoom = r.onPath, r.probe, r.Turns, nil, r.Made, false, false
	if r.mayWait() {
		sub.now = clock.Now() // r may have waited
	}
	sub.ctx, sub.budget, sub.lookups, sub.trace = r.ctx, r.budget, r.lookups, r.trace
	sub.madeByRule = false
	sub.result = result{routes: r.routes, policy: r.policy, policyMark: r.policyMark}
}

// parse makes sub, which r has derived, the request for name and qtype. packet and reply are
// its buffers. It is false for what is no query.
func (r *Request) parse(sub *Request, name []byte, qtype uint16, packet, reply []byte) bool {
	if sub.Query.Parse(wire.AppendQuery(packet[:0], r.Query.ID, name, qtype, &r.Query, wire.MinUDP)) != wire.Serve {
		return false
	}
	sub.advertised = sub.Query.UDPSize
	sub.reply.Start(reply[:0], &sub.Query)
	return true
}

// lookups are results of look-ups in caches that are not counted yet: a run that ends in
// wouldWait leaves no trace. The zero value is ready.
type lookups struct {
	list  []lookup
	names []byte
	waits
	// exchange is where the last exchange records who was asked; nil: nowhere. The exchange may go on
	// after the request is finished.
	exchange *atomic.Pointer[upstream.Asked]
	// recording is what the query has waited for, for its spans; nil: it has not waited, or there are none.
	recording *recording
}

// lookup is one look-up.
type lookup struct {
	result cache.Result
	zone   *Zone
	// name and qtype are the question of a subquery; name is nil for the client's own.
	name    []byte // in wire form, part of names
	qtype   uint16
	options []byte // see [wire.Query.Options]; part of names
}

func (l *lookups) reset() {
	clear(l.list)
	l.list, l.names = l.list[:0], l.names[:0]
	l.waits, l.exchange, l.recording = waits{}, nil, nil
}

// add notes the look-up of r's question.
func (l *lookups) add(r *Request, result cache.Result) {
	n := lookup{result: result, zone: r.zone}
	if !r.direct { // its buffers are used again
		at := len(l.names)
		l.names = append(l.names, r.Query.Name()...)
		n.name, n.qtype = l.names[at:], r.Query.Type
		l.names = append(l.names, r.Query.Options...)
		n.options = l.names[at+len(n.name):]
	}
	l.list = append(l.list, n)
}

// countLookups counts the look-ups that led to r's reply, and has answers refreshed that have
// expired or are about to.
func (r *Request) countLookups() {
	for i := range r.ownLookups.list {
		l := &r.ownLookups.list[i]
		if !l.result.Count() {
			continue
		}
		q := &r.Query
		if l.name != nil {
			q = new(wire.Query)
			if q.Parse(wire.AppendQuery(nil, r.Query.ID, l.name, l.qtype, &r.Query, wire.MinUDP)) != wire.Serve {
				continue
			}
			q.Options = l.options
		}
		l.zone.refresh(q, r.Proto)
	}
}

// Proto is how a query came.
type Proto uint8

const (
	UDP        Proto = iota
	TCP              // also below TLS and HTTPS
	QUIC             // replies have any size, as over TCP; logs and metrics say udp, as CoreDNS does
	transports = 2   // that are counted
)

func (t Proto) String() string {
	if t == TCP {
		return "tcp"
	}
	return "udp"
}

// counted is the protocol that queries over t are counted as.
func (t Proto) counted() Proto {
	if t == QUIC {
		return UDP
	}
	return t
}

// subquery is a request on behalf of another one, with its own buffers. Subqueries are reused.
type subquery struct {
	Request
	change rewrite.Change // of a query that is asked in another form
	env    viewEnv        // of the query that change is of
	name   [wire.MaxName]byte
	packet [packetBuffer]byte
	out    [replyBuffer]byte
}

// packetBuffer is the size of the longest query that is made here: header, the longest name,
// type and class, and an OPT record of 11 bytes.
const packetBuffer = wire.HeaderLen + wire.MaxName + 4 + 11

// replyBuffer is the size that reply buffers start with. Nearly all replies are smaller than
// 1,232 bytes, what fits into one packet everywhere (DNS flag day 2020).
const replyBuffer = 2048

var subqueries = sync.Pool{New: func() any { return new(subquery) }}

// newSubquery returns a subquery, which the caller releases.
func newSubquery() *subquery { return subqueries.Get().(*subquery) }

// release returns s to the pool.
func (s *subquery) release() {
	s.result = result{} // zones and pools may be gone before the next time
	s.env, s.Query.Options = viewEnv{}, nil
	s.ctx, s.budget, s.lookups, s.trace = nil, nil, nil, nil
	subqueries.Put(s)
}
