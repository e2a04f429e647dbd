// Package clients counts queries by client, and says which pod, workload and namespace a
// client is.
//
// A [Table] has counters for up to 512 client addresses. Each reader of queries counts in a
// stripe of its own, under a lock that only readings contend for, so a query costs one hash,
// one lock and some additions. The other addresses share one set of counters, called (other).
//
// The table keeps for each address its owner now: a pod, the node itself, or unknown. A
// reading moves the counts of the stripes to the owners (settles them), and so does each
// change of an owner, before it. So a count belongs to the owner at the time of the query,
// and an address that a new pod has taken over never counts for the old one. Between the end
// of the old pod ([Table.EndAddr]) and the watch's news of the new one ([Table.SetPod]) the
// owner is unknown.
//
// Owners have totals, rates over three windows, and a histogram of the last latencies
// ([Table.Report]). Namespaces and workloads have totals that outlive their pods
// ([Table.Series]), for metrics. The names that are asked for most, fail, are slow, or only
// come from search paths, are found in the last ten seconds, minute and hour ([Table.Names]).
// They belong to the client that had the address when it asked, too: see identity.
package clients

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/addrhash"
	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// maxClients is the default of [Options.MaxClients].
	maxClients = 512
	// maxStripes bounds the memory of the counters, about 200 bytes for each client and stripe.
	maxStripes = 16
	// maxPodAddrs bounds the addresses of pods, also of those that ask nothing. A node has 110
	// pods by default, with one or two addresses each.
	maxPodAddrs = 1024
	// maxEnded bounds the addresses that are kept from ended pods which the watch still shows.
	maxEnded = 512
	// maxOwners bounds the owners, of which those of ended pods are kept for a minute.
	maxOwners = 2048
	// maxIdle is how long a client without queries keeps its counters.
	maxIdle = 10 * time.Minute
	// slowQuery is the default of [Options.Slow].
	slowQuery = 100 * time.Millisecond
)

// Options are the settings of a Table. The zero value is valid.
type Options struct {
	// Clock is the clock; nil is package clock.
	Clock func() time.Duration
	// MaxClients is the number of addresses with counters of their own; 0 is 512.
	MaxClients int
	// Stripes is the number of sets of counters; 0 is one for each CPU, at most 16.
	Stripes int
	// Level is the level of the series of namespaces that [Table.SetLevel] does not name.
	Level Level
	// Slow is the least latency of a slow query; 0 is 100 ms.
	Slow time.Duration
	// Host reports whether an address is one of the node's own. It is called from time to time
	// for each client that is no pod, never from [Table.Count]. nil: none is.
	Host func(netip.Addr) bool
	// Log gets a line about each limited client, once a minute; nil: nothing is logged.
	Log *slog.Logger
}

// Query is what the table counts of a query and its reply.
type Query struct {
	Rcode wire.Rcode
	// NoReply says that the client got no reply; Rcode is meaningless.
	NoReply bool
	// Upstream says that an upstream was asked, and Shed that the query was refused because too
	// many waited; else the answer is a hit.
	Upstream, Shed bool
	// Waste says that the name does not exist and can only come from a search path.
	Waste bool
	// Denied says that a policy denies the name, which is no waste.
	Denied bool
	// AAAA says that the query is for IPv6 addresses.
	AAAA bool
	// Stream says that the query came over a connection. Truncated says that the reply has TC set, Capped that the
	// client would have taken a larger one.
	Stream, Truncated, Capped bool
	// Cause is why the query failed or took long; meaningless for others.
	Cause Cause
	// Latency is the time from the query's arrival to its reply, and Now the time of the reply by
	// [Options.Clock].
	Latency, Now time.Duration
	// Name is the name in lower case and wire form. Count does not keep it. Without a name the query
	// is in no report about names.
	Name []byte
}

// failed reports whether the client got SERVFAIL.
func (q *Query) failed() bool { return !q.NoReply && q.Rcode == wire.ServFail }

// Table counts queries by client. [New] makes it. It is safe for concurrent use.
type Table struct {
	opts    Options
	seed    [2]uint64 // of hash
	started time.Duration
	stripes []stripe
	// full says that each slot is taken, so that a new client is counted as (other).
	full atomic.Bool

	mu sync.Mutex // before the lock of a stripe
	// addrs has each address that has a slot or a pod.
	addrs map[addrKey]*client
	// free are the numbers of slots that are not taken.
	free []uint16
	// podAddrs is the number of addresses that have a pod.
	podAddrs int
	// pods and others have the owners, those that are pods and the rest, until a minute after
	// they have lost their last address.
	pods   map[Pod]*owner
	others map[*owner]struct{}
	host   *owner // all of the node's own addresses
	rest   *owner // (other)
	// ended has the addresses that EndAddr has taken from their pods.
	ended map[addrKey]*endedAddr
	names *names
	// identities are by their numbers; lastIdentity is the highest one.
	identities   map[uint32]*identity
	lastIdentity uint32
	// kernelSample is the weight of a query that SampleKernel adds; 0 while it is not called.
	kernelSample atomic.Uint32
	windows      [numWindows]window
	series       seriesSet
	levels       map[string]Level // by namespace; without those at Options.Level
}

// addrKey is an address, IPv4 in its IPv6-mapped form.
type addrKey [16]byte

func (k addrKey) addr() netip.Addr { return netip.AddrFrom16(k).Unmap() }

// client is one address.
type client struct {
	key   addrKey
	slot  uint16 // its number; noSlot for none
	owner *owner // nil: not known yet whether it is the node's own
	// identity is the number of its identity; 0 without a slot.
	identity uint32
	// active is when a reading last found queries, or when the slot was taken.
	active time.Duration
}

// noSlot is the slot of an address that has asked nothing.
const noSlot = ^uint16(0)

// New makes a table.
func New(o Options) *Table {
	if o.Clock == nil {
		o.Clock = clock.Now
	}
	if o.MaxClients == 0 {
		o.MaxClients = maxClients
	}
	if o.Stripes == 0 {
		o.Stripes = min(runtime.NumCPU(), maxStripes)
	}
	if o.Slow == 0 {
		o.Slow = slowQuery
	}
	t := &Table{
		opts: o, seed: [2]uint64{rand.Uint64(), rand.Uint64()}, started: o.Clock(), stripes: make([]stripe, o.Stripes),
		addrs: make(map[addrKey]*client), pods: make(map[Pod]*owner), others: make(map[*owner]struct{}),
		ended: make(map[addrKey]*endedAddr), identities: make(map[uint32]*identity),
		host: &owner{kind: Host}, rest: &owner{kind: Other},
	}
	t.others[t.host], t.others[t.rest] = struct{}{}, struct{}{}
	t.free = make([]uint16, o.MaxClients)
	for i := range t.free {
		t.free[i] = uint16(o.MaxClients - 1 - i)
	}
	for i := range t.stripes {
		t.stripes[i].index = make([]uint16, 1<<bits.Len(uint(2*o.MaxClients-1)))
		t.stripes[i].samples = sampleBuffer{list: make([]sample, 0, sampleCount), names: make([]byte, 0, sampleNameBytes)}
	}
	t.names = newNames(t.started, t.stripes)
	for i := range t.windows {
		t.windows[i] = window{t.started, t.started}
	}
	t.series.all, t.levels = make(map[seriesKey]*series), make(map[string]Level)
	return t
}

// Count counts q, which addr has asked. stripe chooses the counters; any number will do, and
// callers with different numbers don't wait for each other. An IPv4 address and its
// IPv6-mapped form are one client, and zones are ignored. It allocates only for the first query of a
// client. A nil Table counts nothing.
func (t *Table) Count(stripe int, addr netip.Addr, q Query) {
	if t == nil {
		return
	}
	s := &t.stripes[uint(stripe)%uint(len(t.stripes))]
	s.mu.Lock()
	rest := t.count(s, addr, &q)
	s.mu.Unlock()
	if rest.any() {
		t.countRest(s, &rest, &q)
	}
}

// Hit is a query that a copy of a reply has answered.
type Hit struct {
	Client netip.Addr
	Query  Query
}

// CountHits is [Table.Count] for each of hits. It takes the lock of the counters once for nearly all of them.
func (t *Table) CountHits(stripe int, hits []Hit) {
	if t == nil || len(hits) == 0 {
		return
	}
	s := &t.stripes[uint(stripe)%uint(len(t.stripes))]
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range hits {
		if rest := t.count(s, hits[i].Client, &hits[i].Query); rest.any() {
			s.mu.Unlock()
			t.countRest(s, &rest, &hits[i].Query)
			s.mu.Lock()
		}
	}
}

// unfinished is what is left to do for a query when the lock of its stripe is released: a new client is to be
// counted, or a sample that did not fit into the buffer of the stripe.
type unfinished struct {
	key               addrKey
	hash              uint64
	id                uint32 // of the client
	isNew, overflow   bool
	isSampled, isSlow bool
	weight            uint64
}

// any reports whether something is left.
func (u *unfinished) any() bool { return u.isNew || u.overflow }

// count counts q, which addr has asked, in s, which is locked.
func (t *Table) count(s *stripe, addr netip.Addr, q *Query) (rest unfinished) {
	rest.key, rest.isSlow = addrKey(addr.As16()), q.Latency >= t.opts.Slow
	rest.hash = t.hash(&rest.key)
	rest.weight, rest.isSampled = s.choose(q, rest.isSlow)
	sl := s.find(&rest.key, rest.hash)
	if sl == nil {
		rest.isNew = true
		return rest
	}
	sl.count(q, t.opts.Slow)
	if rest.id = sl.identity; rest.isSampled {
		rest.overflow = !s.samples.put(rest.id, q, rest.weight, rest.isSlow)
	}
	return rest
}

// countRest does what count has left.
func (t *Table) countRest(s *stripe, rest *unfinished, q *Query) {
	if rest.overflow {
		t.names.addNow(s, rest.id, q, rest.weight, rest.isSlow)
		return
	}
	if id := t.countNew(s, rest.key, rest.hash, q); rest.isSampled {
		t.names.addSample(s, id, q, rest.weight, rest.isSlow)
	}
}

// countNew counts q of an address that has no slot in s, and returns the client's identity.
func (t *Table) countNew(s *stripe, key addrKey, h uint64, q *Query) uint32 {
	if t.full.Load() {
		s.mu.Lock()
		defer s.mu.Unlock()
		sl := s.findOrOther(&key, h) // it may have taken the last slot just now
		sl.count(q, t.opts.Slow)
		return sl.identity
	}
	return t.countTaken(s, key, h, func(sl *slot) { sl.count(q, t.opts.Slow) })
}

// countTaken calls count for the slot of the address in s, after taking one if it has none, or for
// (other) if there is none left. It returns the client's identity.
func (t *Table) countTaken(s *stripe, key addrKey, h uint64, count func(*slot)) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.takeSlot(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	sl := s.findOrOther(&key, h)
	count(sl)
	return sl.identity
}

// Run sweeps the table until ctx ends. A nil Table returns at once.
func (t *Table) Run(ctx context.Context) {
	if t == nil {
		return
	}
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			t.Sweep()
		}
	}
}

// eachOwner yields all owners.
func (t *Table) eachOwner(yield func(*owner) bool) {
	for _, o := range t.pods {
		if !yield(o) {
			return
		}
	}
	for o := range t.others {
		if !yield(o) {
			return
		}
	}
}

// SetPod says that addr belongs to p, a pod of this node; the zero Pod is none. A pod whose
// address has ended gets it back only a minute later, if it still has it then: the watch may be late.
func (t *Table) SetPod(addr netip.Addr, p Pod) {
	key := addrKey(addr.As16())
	t.mu.Lock()
	defer t.mu.Unlock()
	ended := t.ended[key]
	if p == (Pod{}) {
		if ended != nil {
			ended.claimed = false
		}
		t.release(key)
		return
	}
	c := t.addrs[key]
	switch {
	case ended != nil && ended.pod.UID == p.UID:
		ended.claimed = true
		return
	case c != nil && c.owner != nil && c.owner.kind == PodClient:
		if c.owner.pod == p {
			return
		}
		t.release(key)
	case t.podAddrs >= maxPodAddrs:
		return
	}
	delete(t.ended, key)
	t.assign(key, t.ownerOf(p))
}

// EndAddr says that the pod at addr has ended, or has lost its interface. Later queries from
// addr are unknown, until [Table.SetPod] names another pod.
func (t *Table) EndAddr(addr netip.Addr) {
	key := addrKey(addr.As16())
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.addrs[key]; c != nil && c.owner != nil && c.owner.kind == PodClient {
		for oldest := range t.ended { // any: the watch is hardly late for so many
			if len(t.ended) < maxEnded {
				break
			}
			delete(t.ended, oldest)
		}
		t.ended[key] = &endedAddr{pod: c.owner.pod, at: t.opts.Clock(), claimed: true}
	}
	t.release(key)
	t.dropSlot(key)
}

// restoreEnded gives addresses that have ended a while ago back to pods that still have them: their
// interface was replaced, or another pod has used the address.
func (t *Table) restoreEnded(now time.Duration) {
	for key, e := range t.ended {
		if now-e.at < keepEnded {
			continue
		}
		delete(t.ended, key)
		if e.claimed && t.podAddrs < maxPodAddrs {
			t.assign(key, t.ownerOf(e.pod))
		}
	}
}

// ownerOf returns the owner for p.
func (t *Table) ownerOf(p Pod) *owner {
	o := t.pods[p]
	if o == nil {
		if len(t.pods)+len(t.others) >= maxOwners {
			t.forget(0)
		}
		o = &owner{kind: PodClient, pod: p}
		t.pods[p] = o
	}
	return o
}

// assign makes o, a pod, the owner of the address, whose counts so far are settled first.
func (t *Table) assign(key addrKey, o *owner) {
	c := t.addrs[key]
	if c == nil {
		c = &client{key: key, slot: noSlot}
		t.addrs[key] = c
	}
	t.settle(c)
	t.detach(c)
	t.setOwner(c, o)
	o.live++
	if addr := key.addr(); !slices.Contains(o.addrs, addr) {
		o.addrs = append(o.addrs, addr)
	}
	t.podAddrs++
	if c.slot == noSlot && len(t.free) == 0 {
		t.evict()
	}
	t.takeSlot(key)
}

// release makes the pod that owns the address its owner no longer. Without a pod it does
// nothing.
func (t *Table) release(key addrKey) {
	c := t.addrs[key]
	if c == nil || c.owner == nil || c.owner.kind != PodClient {
		return
	}
	t.settle(c)
	t.detach(c)
	t.podAddrs--
	t.dropSlot(key)
}

// detach leaves c, which is settled, without an owner.
func (t *Table) detach(c *client) {
	o := c.owner
	c.owner = nil
	if o == nil {
		return
	}
	t.renewIdentity(c)
	if o.live--; o.live == 0 {
		o.ended = t.opts.Clock()
		o.series.touch(o.ended)
	}
}

// takeSlot returns the client of the address, with a slot in each stripe; nil if there is no
// slot left.
func (t *Table) takeSlot(key addrKey) *client {
	c := t.addrs[key]
	if c != nil && c.slot != noSlot {
		return c
	}
	if len(t.free) == 0 {
		return nil
	}
	if c == nil {
		c = &client{key: key}
		t.addrs[key] = c
	}
	c.slot, t.free = t.free[len(t.free)-1], t.free[:len(t.free)-1]
	c.active = t.opts.Clock()
	t.newIdentity(c)
	h := t.hash(&key)
	for i := range t.stripes {
		s := &t.stripes[i]
		s.mu.Lock()
		s.take(c.slot, c, h)
		s.mu.Unlock()
	}
	t.full.Store(len(t.free) == 0) // now that each stripe has the slot
	return c
}

// dropSlot frees the slot of the address, after its counts are settled. The address is
// forgotten unless it has a pod.
func (t *Table) dropSlot(key addrKey) {
	c := t.addrs[key]
	if c == nil {
		return
	}
	if c.slot != noSlot {
		for i := range t.stripes {
			s := &t.stripes[i]
			s.mu.Lock()
			t.collect(c, &s.slots[c.slot]) // what came since settle
			s.drop(c.slot, t.hash)
			s.mu.Unlock()
		}
		t.free = append(t.free, c.slot)
		c.slot = noSlot
		t.endIdentity(c)
		t.full.Store(false)
	}
	if c.owner == nil || c.owner.kind != PodClient {
		t.detach(c)
		delete(t.addrs, key)
	}
}

// evict frees the slot that was idle for longest among those of no pod.
func (t *Table) evict() {
	var oldest *client
	for _, c := range t.addrs {
		if c.slot == noSlot || c.owner != nil && c.owner.kind == PodClient {
			continue
		}
		if oldest == nil || c.active < oldest.active {
			oldest = c
		}
	}
	if oldest != nil {
		t.settle(oldest)
		t.dropSlot(oldest.key)
	}
}

// settle adds the counts of c's slot to its owner. An address whose owner is not known yet
// is unknown from now on.
func (t *Table) settle(c *client) {
	if c.slot == noSlot {
		return
	}
	for i := range t.stripes {
		s := &t.stripes[i]
		s.mu.Lock()
		t.collect(c, &s.slots[c.slot])
		s.mu.Unlock()
	}
}

// collect moves the counts of s, whose stripe is locked, to c's owner.
func (t *Table) collect(c *client, s *slot) {
	if s.empty() {
		return
	}
	if c.owner == nil {
		t.setUnknown(c)
	}
	c.active = t.opts.Clock()
	t.credit(c.owner, s)
}

// setUnknown makes an owner for c, an address of no known pod.
func (t *Table) setUnknown(c *client) {
	t.setOwner(c, &owner{kind: Unknown, addrs: []netip.Addr{c.key.addr()}, live: 1})
	t.others[c.owner] = struct{}{}
}

// credit moves the counts of s to o and o's series.
func (t *Table) credit(o *owner, s *slot) {
	n, latency := s.read()
	o.total.add(&n)
	for i, n := range latency {
		o.latency.current[i] += uint64(n)
	}
	// An owner keeps a series of its own until the series ends. One that was counted as (other) gets a series when there
	// is room.
	if x := o.series; x == nil || x.ended || x.key.kind == Other {
		o.series = t.series.get(t.seriesKeyOf(o), t.opts.Clock())
	}
	o.series.total.add(&n)
}

// newIdentity gives c, which has a slot, an identity of a known or not yet known owner.
func (t *Table) newIdentity(c *client) {
	t.endIdentity(c)
	if len(t.identities) >= maxIdentities {
		t.dropOldestIdentity()
	}
	t.lastIdentity++
	c.identity = t.lastIdentity
	t.identities[c.identity] = &identity{key: c.key, kind: Unknown, live: true}
	if c.owner != nil {
		t.setOwner(c, c.owner)
	}
}

// setOwner makes o the owner of c, which has none.
func (t *Table) setOwner(c *client, o *owner) {
	c.owner = o
	if x := t.identities[c.identity]; x != nil && !x.known {
		x.known, x.kind, x.pod = true, o.kind, o.pod
	}
}

// renewIdentity gives c, which has lost its owner, a new identity if the owner was known.
func (t *Table) renewIdentity(c *client) {
	if x := t.identities[c.identity]; x == nil || !x.known {
		return
	}
	t.newIdentity(c)
	for i := range t.stripes {
		s := &t.stripes[i]
		s.mu.Lock()
		s.slots[c.slot].identity = c.identity
		s.mu.Unlock()
	}
}

// endIdentity ends c's identity, if it has one.
func (t *Table) endIdentity(c *client) {
	if x := t.identities[c.identity]; x != nil {
		x.live, x.ended = false, t.opts.Clock()
	}
	c.identity = 0
}

// dropOldestIdentity drops the identity that ended first. There are fewer slots than identities.
func (t *Table) dropOldestIdentity() {
	var oldest uint32
	for n, x := range t.identities {
		if !x.live && (oldest == 0 || x.ended < t.identities[oldest].ended) {
			oldest = n
		}
	}
	delete(t.identities, oldest)
}

// CountKernel counts answered queries of addr that the kernel has answered, nxdomain of them
// with NXDOMAIN and the others with NOERROR, since the last call. wasted is the number of answers in nxdomain
// that are search waste. A nil Table counts nothing.
func (t *Table) CountKernel(addr netip.Addr, answered, nxdomain, wasted uint64) {
	if t == nil || answered == 0 {
		return
	}
	key := addrKey(addr.As16())
	h := t.hash(&key)
	t.countTaken(&t.stripes[0], key, h, func(sl *slot) {
		sl.add(noError, answered-nxdomain)
		sl.add(nxDomain, nxdomain)
		sl.add(hits, answered)
		sl.add(kernel, answered)
		sl.add(waste, wasted)
	})
}

// SetKernelSample says that one in n of the answers that [Table.CountKernel] counts is passed to
// [Table.SampleKernel], chosen at random. A nil Table ignores it.
func (t *Table) SetKernelSample(n int) {
	if t != nil {
		t.kernelSample.Store(uint32(n))
	}
}

// SampleKernel adds an answer of the kernel to the tables of names, with the number of answers that it stands for as
// its weight. name and wasted are as in [Query]. A nil Table ignores it.
func (t *Table) SampleKernel(addr netip.Addr, name []byte, wasted bool) {
	if t == nil || len(name) == 0 {
		return
	}
	t.names.addSample(&t.stripes[0], t.identityOf(addr), &Query{Name: name, Waste: wasted, Now: t.opts.Clock()}, uint64(t.kernelSample.Load()), false)
}

// identityOf returns the number of the address's identity; 0 if there is no slot left.
func (t *Table) identityOf(addr netip.Addr) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.takeSlot(addr.As16()); c != nil {
		return c.identity
	}
	return 0
}

// CountBypass counts packets of addr to another DNS server for [TopBypass]. server is any text that names it. A nil Table counts nothing.
func (t *Table) CountBypass(addr netip.Addr, server string, packets uint64) {
	if t != nil {
		t.names.addBypass(t.opts.Clock(), t.identityOf(addr), server, packets)
	}
}

// keepEnded is how long owners without an address, and series without a pod, are kept.
const keepEnded = time.Minute

// Sweep settles all counts, rotates the windows, logs which clients are limited, and frees what is not used any
// more. [Table.Run] calls it every five seconds.
func (t *Table) Sweep() {
	for _, line := range t.sweep() {
		line.log(t.opts.Log)
	}
}

// sweep does what [Table.Sweep] does, except for writing the lines, which it returns.
func (t *Table) sweep() []limitLine {
	t.classify()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settleAll()
	now := t.opts.Clock()
	t.rotate(now)
	lines := t.limitLines(now)
	t.restoreEnded(now)
	t.freeIdle(now)
	t.forget(keepEnded)
	t.endSeries(now)
	maps.DeleteFunc(t.identities, func(_ uint32, x *identity) bool { return !x.live && now-x.ended >= keepIdentity }) // no window covers them
	t.names.advance(now)
	return lines
}

// classify decides for each client that is no pod whether it is the node itself. [Options.Host]
// is called without the lock.
func (t *Table) classify() {
	host := make(map[addrKey]bool)
	t.mu.Lock()
	for key, c := range t.addrs {
		if c.owner == nil || c.owner.kind != PodClient {
			host[key] = false
		}
	}
	t.mu.Unlock()
	if t.opts.Host != nil {
		for key := range host {
			host[key] = t.opts.Host(key.addr())
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, isHost := range host {
		if c := t.addrs[key]; c != nil {
			t.setHost(c, isHost)
		}
	}
}

// setHost makes the node, or unknown, the owner of c if it is no pod.
func (t *Table) setHost(c *client, isHost bool) {
	switch {
	case c.owner == nil && !isHost:
		t.setUnknown(c)
	case c.owner == nil:
		t.setOwner(c, t.host)
		t.host.live++
	case c.owner.kind == PodClient || isHost == (c.owner == t.host):
	default:
		t.settle(c)
		t.detach(c)
		t.setHost(c, isHost)
	}
}

// settleAll settles all counts, except for clients that are not classified yet.
func (t *Table) settleAll() {
	for _, c := range t.addrs {
		if c.owner != nil {
			t.settle(c)
		}
	}
	for i := range t.stripes {
		s := &t.stripes[i]
		s.mu.Lock()
		if !s.other.empty() {
			t.credit(t.rest, &s.other)
		}
		s.mu.Unlock()
	}
}

// freeIdle frees the slots of clients that are no pods and have been idle; if no slot is left
// also those of pods.
func (t *Table) freeIdle(now time.Duration) {
	full := len(t.free) == 0
	for key, c := range t.addrs {
		isPod := c.owner != nil && c.owner.kind == PodClient
		if c.slot != noSlot && now-c.active >= maxIdle && (full || !isPod) {
			t.dropSlot(key)
		}
	}
}

// forget drops the owners that have had no address for so long.
func (t *Table) forget(after time.Duration) {
	now := t.opts.Clock()
	for p, o := range t.pods {
		if o.live == 0 && now-o.ended >= after {
			delete(t.pods, p)
		}
	}
	for o := range t.others {
		if o.kind == Unknown && o.live == 0 && now-o.ended >= after {
			delete(t.others, o)
		}
	}
}

// hash returns the hash of an address.
func (t *Table) hash(key *addrKey) uint64 { return addrhash.Sum(&t.seed, (*[16]byte)(key)) }

// rotate begins a new half of each window whose half is over.
func (t *Table) rotate(now time.Duration) {
	for w := range t.windows {
		if now-t.windows[w].current < Window(w).Length()/2 {
			continue
		}
		t.windows[w] = window{t.windows[w].current, now}
		for o := range t.eachOwner {
			o.marks[w] = marks{o.marks[w].current, o.total.low()}
			if Window(w) == Minute {
				o.latency = latencies{previous: o.latency.current}
			}
		}
	}
}

// Limit counts n queries of addr, or connections, that r has limited. stripe and addr are as in [Table.Count],
// which does not count them: a caller that has resolved the query calls both. It allocates only for the first query
// of a client. A nil Table counts nothing.
func (t *Table) Limit(stripe int, addr netip.Addr, r Reason, n uint64) {
	if t == nil || n == 0 {
		return
	}
	key := addrKey(addr.As16())
	h := t.hash(&key)
	s := &t.stripes[uint(stripe)%uint(len(t.stripes))]
	s.mu.Lock()
	sl := s.find(&key, h)
	if sl == nil && t.full.Load() {
		sl = s.findOrOther(&key, h)
	}
	if sl != nil {
		sl.add(limited+int(r), n)
	}
	s.mu.Unlock()
	if sl == nil {
		t.countTaken(s, key, h, func(sl *slot) { sl.add(limited+int(r), n) })
	}
}

// limitLines returns the lines that are due, and records them as written.
func (t *Table) limitLines(now time.Duration) (lines []limitLine) {
	if t.opts.Log == nil {
		return nil
	}
	for o := range t.eachOwner {
		for r := range numReasons {
			var last loggedLimit
			if o.logged != nil {
				last = o.logged[r]
			}
			count := o.total[limited+int(r)] - last.count
			if count > 0 && (!last.written || now-last.at >= limitLogInterval) {
				lines = append(lines, limitLine{owner: o, reason: r, count: count})
			}
		}
	}
	slices.SortFunc(lines, func(a, b limitLine) int { return cmp.Compare(b.count, a.count) })
	lines = lines[:min(len(lines), maxLimitLines)]
	for i := range lines {
		l := &lines[i]
		l.client, l.namespace = l.owner.addrList(), cmp.Or(l.owner.kind.String(), l.owner.pod.Namespace)
		if l.owner.logged == nil {
			l.owner.logged = new([numReasons]loggedLimit)
		}
		l.owner.logged[l.reason] = loggedLimit{written: true, at: now, count: l.owner.total[limited+int(l.reason)]}
	}
	return lines
}
