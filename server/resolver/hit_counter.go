package resolver

import (
	"bytes"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
)

// HitCounter counts the queries that were answered with a reused reply. It is immutable and safe for
// concurrent use.
type HitCounter struct {
	zone      *Zone
	name      []byte // the client's, in lower case and wire form
	qtype     uint16
	size      int // of the reply, in bytes
	rcode     wire.Rcode
	source    source
	v6, do    bool
	waste     bool
	viaSearch bool
	verdict   verdictKey
	own       replyPart   // of the client's question
	more      []replyPart // of other names on its search path
}

// replyPart is where an answer came from that a reused reply is made of.
type replyPart struct {
	zone   *Zone
	query  []byte
	source source
	denial bool // a negative answer in the cache
}

// HitCounter returns the counter for r's reply, which has size bytes and is reused as t says.
func (r *Request) HitCounter(t *Reusable, size int) *HitCounter {
	h := &HitCounter{
		zone: r.zone, name: bytes.Clone(r.Query.Name()), qtype: r.Query.Type, size: size, rcode: r.reply.Rcode(), source: r.source,
		v6: r.OverIPv6(), do: r.Query.DO, waste: r.waste, viaSearch: r.viaSearch,
		verdict: verdictKey{r.rule, r.verdicts & anyVerdict},
		own:     replyPart{zone: r.zone, query: bytes.Clone(r.Query.Packet), source: r.source, denial: t.denial},
	}
	if r.searched {
		h.own.source, h.own.denial = r.Sources.list[0].source, r.Sources.list[0].denial
		h.more = r.Sources.others(r)
	}
	return h
}

// ReportHits counts n queries that were answered with the reply as if the path had answered
// each with latency, and keeps in use what the reply was made of.
func (h *HitCounter) ReportHits(n uint64, latency time.Duration) {
	h.CountHits(0, n, latency)
	h.Use(n, clock.Now())
}

// CountHits counts n queries that were answered with the reply as if the path had answered each with
// latency. stripe is as in [Request.Stripe].
func (h *HitCounter) CountHits(stripe int, n uint64, latency time.Duration) {
	h.zone.Stats.countReused(h, stripe, n, latency)
	h.own.countHits(stripe, n)
	for i := range h.more {
		h.more[i].countHits(stripe, n)
	}
}

// Use keeps in use what the reply was made of: the reply was sent n times since the last call, the last time at now.
func (h *HitCounter) Use(n uint64, now time.Duration) {
	h.own.use(n, now)
	for i := range h.more {
		h.more[i].use(n, now)
	}
}

// countHits counts n hits of the answer in the cache.
func (s *replyPart) countHits(stripe int, n uint64) {
	if s.source == fromCache {
		s.zone.Cache.CountHits(stripe, n, s.denial)
	}
}

// use keeps the answer in use, which was given n times.
func (s *replyPart) use(n uint64, now time.Duration) {
	var q wire.Query
	if q.Parse(s.query) != wire.Serve {
		return
	}
	switch s.source {
	case fromCluster:
		s.zone.Cluster.Touch(&q)
	case fromCache:
		s.zone.Cache.Use(&q, n, now)
	}
}

// NeedsEachUse reports whether the reply is from a cache that needs to know of each use at once.
func (h *HitCounter) NeedsEachUse() bool { return h.source == fromCache && h.zone.Cache.NeedsEachUse() }

// ClientQuery returns what is counted for a client that was sent the reply, without the times.
func (h *HitCounter) ClientQuery() clients.Query {
	return clients.Query{Rcode: h.rcode, Name: h.name, Waste: h.waste, AAAA: h.qtype == wire.TypeAAAA}
}
