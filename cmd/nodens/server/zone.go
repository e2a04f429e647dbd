package server

import (
	"context"
	"log/slog"
	"math"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/cmd/nodens/server/hosts"
	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/upstream"
)

// Zone is what answers the names of one zone on one listening address: the steps
// of the path, nil where the server block does not have them. The steps may be
// shared between zones; the counters are the zone's own.
type Zone struct {
	Name  wire.Name
	Hosts *hosts.Table
	// External are the names under which the cluster's Services are reached from
	// outside.
	External External
	Cluster  Cluster
	// Search finishes the search paths of clients.
	Search *Search
	Cache  *cache.Cache
	// Forward are the pools to forward to; the first that takes a name gets it.
	Forward []*upstream.Pool
	// ClusterDNS reports whether p, one of Forward, leads to the cluster's own DNS,
	// which knows what a view does not hold. It is called for every query that needs
	// to know, by all readers at once. nil: none does.
	ClusterDNS func(p *upstream.Pool) bool
	Loop       *Loop
	// Bufsize caps the payload size of EDNS clients, in bytes; 0 is no cap.
	Bufsize uint16
	// Shuffle puts the addresses of answers in random order.
	Shuffle bool
	// Ordered says that the answers of Cluster come in an order of their own, which
	// Shuffle leaves as it is.
	Ordered bool
	// Errors logs failed queries, Log those it takes; nil logs none.
	Errors *slog.Logger
	Log    *QueryLog
	// Stats are the zone's counters; they outlive the Zone, so that a reload
	// does not start them from zero. Not nil.
	Stats *Stats

	failed limiter
}

// Cluster is what the path needs of [kubernetes.Zone], which says what each of its
// methods does.
type Cluster interface {
	view
	// Answer leaves the reply as it is with every outcome that isn't an answer.
	Answer(q *wire.Query, r *wire.Reply) (kubernetes.Outcome, wire.Name)
	// Home is false for a client that is nobody's pod, or not for certain.
	Home(client netip.Addr) (namespace []byte, ok bool)
	// Origins are never none, and never change.
	Origins() []wire.Name
}

// External is what the path needs of [kubernetes.External].
type External interface {
	view
	// Answer leaves the reply as it is with every outcome that isn't an answer.
	Answer(q *wire.Query, r *wire.Reply) (kubernetes.Outcome, wire.Name)
}

// view is what an answer hangs on that isn't there yet.
type view interface {
	// Await blocks until the answer to q can be made, or gives ctx's error.
	Await(ctx context.Context, q *wire.Query) error
}

func (z *Zone) maxSize() uint16 {
	if z.Bufsize == 0 {
		return math.MaxUint16
	}
	return z.Bufsize
}

func (z *Zone) caches(q *wire.Query) bool { return z.Cache != nil && z.Cache.Covers(q.Name()) }

// finish does what is done to every complete reply before it leaves, counts it
// and gives its bytes, at most limit.
func (z *Zone) finish(x *exchange, limit int, err error) []byte {
	if z.Shuffle && !x.ordered && x.r.Rcode() == wire.NoError {
		x.r.Shuffle()
	}
	msg := x.r.Finish(limit)
	x.took = clock.Now() - x.start
	z.Stats.count(x, len(msg))
	if err != nil && z.Errors != nil {
		z.logFailure(x, err)
	}
	if z.Log.takes(&x.q, x.r.Rcode(), x.r.Count(wire.Answer)) {
		z.Log.write(x, len(msg))
	}
	return msg
}

// failuresPerSecond bounds the log lines of a zone whose upstreams are gone: ten
// show what is wrong, and the log of a busy node stays readable.
const failuresPerSecond = 10

func (z *Zone) logFailure(x *exchange, err error) {
	ok, missed := z.failed.allow(x.start, failuresPerSecond)
	if !ok {
		return
	}
	z.Errors.Error("query failed", "qname", wire.Name(x.q.Name()).String(), "qtype", wire.TypeName(x.q.Type),
		"client", x.client, "err", err, "unlogged", missed)
}

// limiter lets a number of events through each second. It is safe for concurrent
// use; at the turn of a second it may let a few more through.
type limiter struct {
	second, n, missed atomic.Int64
}

// allow reports whether the event at now may pass, and how many before it did
// not.
func (l *limiter) allow(now time.Duration, perSecond int64) (ok bool, missed int64) {
	if s := int64(now / time.Second); l.second.Swap(s) != s {
		l.n.Store(0)
	}
	if l.n.Add(1) > perSecond {
		l.missed.Add(1)
		return false, 0
	}
	return true, l.missed.Swap(0)
}

// QueryLog is where a zone's queries are logged.
type QueryLog struct {
	Logger *slog.Logger
	// Names are the names whose queries, and those below them, are logged;
	// empty is all.
	Names []wire.Name
	// Success, Denial and Error say which classes of replies are logged.
	Success, Denial, Error bool
}

// takes reports whether a query with this outcome is logged. A nil QueryLog
// takes none.
func (l *QueryLog) takes(q *wire.Query, rcode wire.Rcode, answers int) bool {
	if l == nil {
		return false
	}
	wanted := l.Error
	switch {
	case rcode == wire.NoError && answers > 0:
		wanted = l.Success
	case rcode == wire.NoError, rcode == wire.NXDomain:
		wanted = l.Denial
	}
	if !wanted {
		return false
	}
	for _, n := range l.Names {
		if wire.Under(q.Name(), n) {
			return true
		}
	}
	return len(l.Names) == 0
}

// write logs one query with the fields of CoreDNS's common log format.
func (l *QueryLog) write(x *exchange, size int) {
	l.Logger.Info("query", "client", x.client, "id", x.q.ID, "qname", wire.Name(x.q.Name()).String(),
		"qtype", wire.TypeName(x.q.Type), "proto", x.via.String(), "size", len(x.q.Packet), "do", x.q.DO,
		"bufsize", x.q.Limit(), "rcode", x.r.Rcode().String(), "rsize", size, "duration", x.took)
}

// exchange is one query on its way and the reply made for it. It is reused for
// query after query.
type exchange struct {
	q      wire.Query
	r      wire.Reply
	zone   *Zone
	client netip.AddrPort
	start  time.Duration // when it was read, by package clock
	took   time.Duration // until the reply was whole
	lane   int           // says which of the counters it uses; any number will do
	via    transport
	source source
	target wire.Name      // of the alias that is to be chased
	pool   *upstream.Pool // that is to be asked
	// missing is the view that has to get what the answer hangs on.
	missing view
	hops    uint8 // aliases followed to get here
	ordered bool  // the answers' order is not to be changed
	found   bool  // the reply is to another name on the client's search path
}

// detach makes w a copy of x that shares nothing with it, in w's own buffers for
// packet and reply.
func (x *exchange) detach(w *exchange, packet, reply []byte) {
	*w = *x
	w.q.Packet = append(packet[:0], x.q.Packet...)
	w.r.Detach(reply, &w.q)
}

// transport is how a query came.
type transport uint8

const (
	udp transport = iota
	tcp
	transports = 2
)

func (t transport) String() string {
	if t == tcp {
		return "tcp"
	}
	return "udp"
}
