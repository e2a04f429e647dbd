package server

import (
	"runtime/debug"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/replycache"
	"github.com/nodens-dns/nodens/server/resolver"
)

// epochTables are the counters that copies of replies depend on.
type epochTables struct{ cluster, cached *epoch.Table }

// epochs are the counters of all copies at the beginning of a query. If they have moved when
// its reply is copied, the data behind the reply may have changed.
type epochs struct{ cluster, cached uint64 }

func (t *epochTables) now() epochs {
	return epochs{cluster: t.cluster.Any(), cached: t.cached.Any()}
}

// watch returns the watch of a mark of one of the tables.
func (t *epochTables) watch(m epoch.Mark) epoch.Watch {
	if t.cluster.Has(m) {
		return t.cluster.Watch(m)
	}
	return t.cached.Watch(m)
}

// moved reports whether the data behind the copy c may have changed since then.
func (t *epochTables) moved(c *resolver.Copy, since epochs) bool {
	now := t.now()
	return c.FromCluster && now.cluster != since.cluster || c.FromCache && now.cached != since.cached
}

// ReplyCaches are what the replies depend on that readers keep.
type ReplyCaches struct {
	// Cluster and Cached are the tables of the view of the cluster and of the caches. They have no indexes in common.
	Cluster, Cached *epoch.Table
	// Clock is the clock of the caches; nil is package clock.
	Clock func() time.Duration
}

// CacheReplies makes each reader of a UDP socket keep the replies that it sends most often, see package
// replycache. Call it before any other method, and not with [Server.UseFastPath]: there the kernel sees the
// hits first, and has to learn answers from all other queries.
func (s *Server) CacheReplies(c ReplyCaches) {
	s.replyCaches = &replyCaches{tables: epochTables{cluster: c.Cluster, cached: c.Cached}, clock: c.Clock}
}

// replyCaches is ReplyCaches as the readers use it.
type replyCaches struct {
	tables epochTables
	clock  func() time.Duration
}

// now returns the time on the clock of the caches; arrival is by package clock.
func (c *replyCaches) now(arrival time.Duration) time.Duration {
	if c.clock != nil {
		return c.clock()
	}
	return arrival
}

// readerReplies are the replies that a reader keeps. Only the reader uses them.
type readerReplies struct {
	s      *Server
	stripe int
	cache  *replycache.Cache[*keptReply]
	config *activeConfig // what the replies are of
	paused bool          // for this batch
	// hits are the batch's hits, and latency is the time that each of them took.
	hits    []clients.Hit
	latency time.Duration
	// epochs are from before the query path was run. The others are scratch space.
	epochs  epochs
	copy    resolver.Copy
	answer  replycache.Answer
	watches []epoch.Watch
}

// newReaderReplies returns the replies of the reader with that stripe, nil if it is to keep none.
func newReaderReplies(s *Server, stripe int) *readerReplies {
	if s.replyCaches == nil {
		return nil
	}
	return &readerReplies{
		s: s, stripe: stripe, cache: newReplyCache(s),
		hits: make([]clients.Hit, 0, batchSize),
	}
}

// maxKeptReplies is about how many replies all readers of an address keep. They take about 3 MiB.
const maxKeptReplies = 8192

// newReplyCache returns the cache of one reader.
func newReplyCache(s *Server) *replycache.Cache[*keptReply] {
	return replycache.New[*keptReply](maxKeptReplies / s.limits.Readers)
}

// keptReply is the owner of a reply.
type keptReply struct {
	*resolver.Copied
	replies *readerReplies
	atOnce  bool // each hit is a use that has to be known at once
}

// CountHits implements [replycache.Owner].
func (k *keptReply) CountHits(n uint64) {
	k.Copied.CountHits(k.replies.stripe, n, k.replies.latency)
	if k.atOnce {
		k.Copied.Use(n, clock.Now())
	}
}

// Use implements [replycache.Owner].
func (k *keptReply) Use(n uint64, now time.Duration) {
	if !k.atOnce {
		k.Copied.Use(n, now)
	}
}

// begin begins a batch that is answered with cfg. While queries are watched (`nodens tail`), the path
// answers all of them.
func (p *readerReplies) begin(cfg *activeConfig, now time.Duration) {
	if p == nil {
		return
	}
	defer p.recoverPanic()
	if p.config != cfg {
		p.cache.Clear(p.s.replyCaches.now(now))
		p.config = cfg
	}
	p.paused = cfg.Routes.Tail.Attached() || cfg.Routes.StartWaiting
}

// get makes d's reply the one that is kept for its query, r. If there is none, again reports whether the path's
// reply may be worth keeping.
func (p *readerReplies) get(r *resolver.Request, d *packet) (found, again bool) {
	if p == nil || p.paused {
		return false, false
	}
	defer p.recoverPanic()
	reply, e, worth := p.cache.Get(r.Query.Packet, r.OverIPv6(), p.s.replyCaches.now(r.Arrival), d.out[:0])
	if e == nil {
		if worth {
			p.epochs = p.s.replyCaches.tables.now()
		}
		return false, worth
	}
	hit := clients.Hit{Client: r.Client.Addr(), Query: e.Owner.ClientQuery()}
	d.reply, p.hits = reply, append(p.hits, hit)
	return true, false
}

// keep keeps msg, the path's reply to r, if it is as good for the next client that asks the same. get has reported
// that it may be worth it.
func (p *readerReplies) keep(r *resolver.Request, msg []byte) {
	defer p.recoverPanic()
	var ok bool
	if p.copy, ok = r.Copy(); !ok || msg == nil || p.copy.Logged || p.s.replyCaches.tables.moved(&p.copy, p.epochs) {
		return
	}
	if !p.copy.Clients.IsAll() {
		return
	}
	p.watches = append(p.watches[:0], p.s.replyCaches.tables.watch(p.copy.Mark))
	for _, m := range p.copy.More {
		p.watches = append(p.watches, p.s.replyCaches.tables.watch(m))
	}
	p.answer = replycache.Answer{
		Query: &r.Query, V6: r.OverIPv6(), Reply: msg, Watches: p.watches,
		Expires: p.copy.Expires, Ends: p.copy.Ends, CountsDown: p.copy.CountsDown, Life: p.copy.Life, Shuffled: p.copy.Shuffled,
		Changes: p.epochs.cached,
	}
	owner := &keptReply{Copied: r.Copied(&p.copy, len(msg)), replies: p}
	owner.atOnce = owner.NeedsEachUse()
	p.cache.Put(&p.answer, owner, p.s.replyCaches.now(r.Arrival))
}

// end ends the batch, whose queries that are still to be counted began at since, and counts the hits.
func (p *readerReplies) end(routes *resolver.Routes, since time.Duration) {
	if p == nil || len(p.hits) == 0 {
		return
	}
	defer p.recoverPanic()
	now := clock.Now()
	p.latency = (now - since) / time.Duration(len(p.hits))
	for i := range p.hits {
		p.hits[i].Query.Latency, p.hits[i].Query.Now = p.latency, now
	}
	routes.Clients.CountHits(p.stripe, p.hits)
	p.cache.EndBatch(p.s.replyCaches.now(now), p.s.replyCaches.tables.cached.Any())
	p.hits = p.hits[:0]
}

// close reports which replies were in use.
func (p *readerReplies) close() {
	if p != nil {
		p.cache.Clear(p.s.replyCaches.now(clock.Now()))
	}
}

// recoverPanic is deferred by the methods, because a panic must not end the reader. It counts and logs the panic,
// and the path goes on without the replies that were kept.
func (p *readerReplies) recoverPanic() {
	v := recover()
	if v == nil {
		return
	}
	p.s.panics.Add(1)
	p.s.log.Error("keeping a reply panicked", "panic", v, "stack", string(debug.Stack()))
	p.cache, p.hits = newReplyCache(p.s), p.hits[:0]
}
