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
	"context"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

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
		t.stripes[i].index, t.stripes[i].samples = make([]uint16, indexSize(o.MaxClients)), newSampleBuffer()
	}
	t.names = newNames(t.started, t.stripes)
	t.windows = newWindows(t.started)
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
