package server

import (
	"runtime/debug"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/reply"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/udp"
)

// ReplyCaches are what the replies depend on that readers keep.
type ReplyCaches struct {
	// Cluster and Cached are the tables of the view of the cluster and of the caches. They have no indexes in common.
	Cluster, Cached *epoch.Table
	// Clock is the clock of the caches; nil is package clock.
	Clock func() time.Duration
}

// replyCaches is ReplyCaches as the readers use it.
type replyCaches struct {
	tables reply.Tables
	clock  func() time.Duration
}

// now returns the time on the clock of the caches; arrival is by package clock.
func (c *replyCaches) now(arrival time.Duration) time.Duration {
	if c.clock != nil {
		return c.clock()
	}
	return arrival
}

// keptReplies is the [replySink] of a reader that keeps the replies itself.
type keptReplies struct {
	s      *Server
	stripe int
	cache  *reply.Cache[*keptReply]
	config *activeConfig // what the replies are of
	paused bool          // for this batch
	// policies are those of config.
	policies *dnspolicy.Table
	// hits are the batch's hits, and latency is the time that each of them took.
	hits    []clients.Hit
	latency time.Duration
}

// maxKeptReplies is about how many replies all readers of an address keep. They take about 3 MiB.
const maxKeptReplies = 8192

// newReplyCache returns the cache of one reader.
func newReplyCache(s *Server) *reply.Cache[*keptReply] {
	return reply.New[*keptReply](maxKeptReplies/s.limits.Readers, &s.replyCaches.tables)
}

// keptReply is the owner of a reply.
type keptReply struct {
	*resolver.HitCounter
	replies *keptReplies
	atOnce  bool // each hit is a use that has to be known at once
}

// CountHits implements [reply.Owner].
func (k *keptReply) CountHits(n uint64) {
	k.HitCounter.CountHits(k.replies.stripe, n, k.replies.latency)
	if k.atOnce {
		k.HitCounter.Use(n, clock.Now())
	}
}

// Use implements [reply.Owner].
func (k *keptReply) Use(n uint64, now time.Duration) {
	if !k.atOnce {
		k.HitCounter.Use(n, now)
	}
}

// begin implements replySink. While queries are watched (`nodens tail`), the path answers all of them.
func (p *keptReplies) begin(cfg *activeConfig, now time.Duration) {
	defer p.recoverPanic()
	if p.config != cfg {
		p.cache.Clear(p.s.replyCaches.now(now))
		p.config, p.policies = cfg, cfg.Routes.Policies()
	}
	p.paused = cfg.Routes.Tail.Attached() || cfg.Routes.StartWaiting
}

// find implements replySink.
func (p *keptReplies) find(r *resolver.Request, d *udp.Packet) (found, wanted bool) {
	if p.paused {
		return false, false
	}
	defer p.recoverPanic()
	whom := reply.For{IPv6: r.OverIPv6(), Class: p.policies.ID(r.Client.Addr())}
	msg, e, wanted := p.cache.Get(r.Query.Packet, whom, p.s.replyCaches.now(r.Arrival), d.Out[:0])
	if e == nil {
		return false, wanted
	}
	d.Reply, p.hits = msg, append(p.hits, clients.Hit{Client: r.Client.Addr(), Query: e.Owner.ClientQuery()})
	return true, false
}

// keep implements replySink. A reply is kept if it is as good for the next client that asks the same and is bound by the same
// policies.
func (p *keptReplies) keep(r *resolver.Request, t *resolver.Reusable, a *reply.Answer) {
	if t.Logged || !t.Clients.IsAll() && !t.ByPolicy {
		return
	}
	whom := reply.For{IPv6: r.OverIPv6()}
	if c := t.Clients.Policy; c != nil {
		whom.Class = c.ID
	}
	owner := &keptReply{HitCounter: r.HitCounter(t, len(a.Reply)), replies: p}
	owner.atOnce = owner.NeedsEachUse()
	p.cache.Put(a, whom, owner, p.s.replyCaches.now(r.Arrival))
}

// end implements replySink.
func (p *keptReplies) end(routes *resolver.Routes, since time.Duration) {
	if len(p.hits) == 0 {
		return
	}
	defer p.recoverPanic()
	now := clock.Now()
	p.latency = (now - since) / time.Duration(len(p.hits))
	for i := range p.hits {
		p.hits[i].Query.Latency, p.hits[i].Query.Now = p.latency, now
	}
	routes.Clients.CountHits(p.stripe, p.hits)
	p.cache.EndBatch(p.s.replyCaches.now(now))
	p.hits = p.hits[:0]
}

// recoverPanic is deferred by the other methods.
func (p *keptReplies) recoverPanic() {
	if v := recover(); v != nil {
		p.panicked(v)
	}
}

// panicked implements replySink.
func (p *keptReplies) panicked(v any) {
	p.s.panics.Add(1)
	p.s.log.Error("keeping a reply panicked", "panic", v, "stack", string(debug.Stack()))
	p.cache, p.hits = newReplyCache(p.s), p.hits[:0]
}

// close implements replySink.
func (p *keptReplies) close() { p.cache.Clear(p.s.replyCaches.now(clock.Now())) }
