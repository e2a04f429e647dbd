package dnspolicy

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/outage"
)

const (
	// MaxEgressAddrs bounds the addresses in the sets of a policy. The owner of an allowed name's zone chooses them.
	MaxEgressAddrs = 4096
	// egressGrace is how long an address stays at least after the TTL of the answer is over: a client may connect some time after
	// it has looked up the name. An address stays for twice as long, so that answers in between need no write.
	egressGrace = time.Minute
	// maxEgressTTL bounds the TTLs that count.
	maxEgressTTL = 24 * time.Hour
	// egressWait is how long a reply waits for the packet filter, which another program may have locked: less than a client waits.
	egressWait = 2 * time.Second
	// egressCheck is the time between two checks that the sets are still there.
	egressCheck = 10 * time.Second
)

// PacketFilter has the sets. Its methods may block while another program changes the packet filter.
type PacketFilter interface {
	// Sync makes the sets of these policies that are missing, and the sets of their pods those in pods. prune says that pods has all
	// policies, and the sets of others are removed or, if another program's rules use them, emptied. renewed are the
	// policies whose sets were made since the last call, and so are empty.
	Sync(pods map[string][]netip.Addr, prune bool) (renewed []string, err error)
	// Add adds addresses, or gives them another timeout. [ErrNoSet]: nothing is added.
	Add(list []Element) error
}

// ErrNoSet says that a set of a [PacketFilter] is missing.
var ErrNoSet = errors.New("the packet filter has no such set")

// Element is an address that leaves the set of a policy, NAMESPACE/NAME, after the timeout.
type Element struct {
	Policy  string
	Addr    netip.Addr
	Timeout time.Duration
}

// Egress keeps two kinds of sets in the packet filter for each policy that asks for them: the addresses of the names that the policy
// allows, added before the answer leaves, and the addresses of the pods that it binds. It knows how long an address stays, so that most
// answers need no write. The kernel keeps the sets when the agent ends; the next one adds to them. It is safe for concurrent use. A nil Egress has no
// sets.
type Egress struct {
	filter  PacketFilter
	outages outage.Log
	changed chan struct{} // a value says that want has changed
	filling sync.Mutex    // held while the packet filter and what is known of it change

	mu    sync.Mutex
	sets  map[string]*Set
	want  map[string][]netip.Addr // the pods of each policy
	known bool                    // want has all policies
	next  *egressBatch            // nil: nothing is to be written
	// writing says that a goroutine writes the batches.
	writing bool

	writes, failed, full, size atomic.Uint64
}

// egressBatch are addresses that are written together.
type egressBatch struct {
	list []Missing
	err  error
	done chan struct{}
}

// Set is the addresses of one policy, both families together.
type Set struct {
	policy string
	egress *Egress
	mu     sync.RWMutex
	until  map[netip.Addr]time.Duration // by package clock
}

// Missing is an address that has to enter a set, until a time by package clock.
type Missing struct {
	Set   *Set
	addr  netip.Addr
	until time.Duration
}

// NewEgress returns an Egress that fills the sets of filter.
func NewEgress(filter PacketFilter, log *slog.Logger) *Egress {
	return &Egress{
		filter: filter, changed: make(chan struct{}, 1), sets: make(map[string]*Set),
		outages: outage.Log{Logger: log, Level: slog.LevelWarn, Messages: outage.Messages{
			Start: "filling the egress sets failed", Ongoing: "filling the egress sets still fails", End: "egress sets filled again",
		}},
	}
}

// Of returns the set of a policy.
func (e *Egress) Of(namespace, name string) *Set {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	policy := namespace + "/" + name
	if e.sets[policy] == nil {
		e.sets[policy] = &Set{policy: policy, egress: e, until: make(map[netip.Addr]time.Duration)}
	}
	return e.sets[policy]
}

// Want says which policies have sets, with the addresses of the pods that each binds. known says that these are all. It does not block. The
// caller must not change pods afterwards.
func (e *Egress) Want(pods map[string][]netip.Addr, known bool) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(pods)+len(e.want) == 0 && e.known == known {
		return
	}
	e.want, e.known = pods, known
	maps.DeleteFunc(e.sets, func(policy string, _ *Set) bool { _, ok := pods[policy]; return !ok })
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

// Run keeps the sets, until ctx ends.
func (e *Egress) Run(ctx context.Context) {
	defer e.outages.Stop()
	check := time.NewTicker(egressCheck)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.changed:
		case <-check.C:
			if e.mayRest() {
				continue
			}
		}
		e.filling.Lock()
		if err := e.sync(); err != nil {
			e.outages.Fail(err)
		} else {
			e.outages.Recover()
		}
		e.filling.Unlock()
	}
}

// mayRest reports whether there are no sets.
func (e *Egress) mayRest() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.want) == 0
}

// sync makes the sets what they should be, and forgets the addresses of those that were lost. filling is locked.
func (e *Egress) sync() error {
	e.mu.Lock()
	want, known := e.want, e.known
	e.mu.Unlock()
	renewed, err := e.filter.Sync(want, known)
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, policy := range renewed {
		if s := e.sets[policy]; s != nil {
			s.mu.Lock()
			clear(s.until)
			s.mu.Unlock()
		}
	}
	size := uint64(0)
	for _, s := range e.sets {
		s.mu.Lock()
		s.expire(clock.Now())
		size += uint64(len(s.until))
		s.mu.Unlock()
	}
	e.size.Store(size)
	return err
}

// Lacks reports whether an address of an answer with that TTL in seconds has to enter s, with [AddMissing]. It
// does not allocate. Addresses that lead to the node itself or to no single host, such as loopback and link-local ones, never enter.
func (s *Set) Lacks(addr netip.Addr, ttl uint32) (m Missing, lacks bool) {
	addr = addr.Unmap()
	if !addr.IsGlobalUnicast() {
		return Missing{}, false
	}
	until := clock.Now() + min(time.Duration(ttl)*time.Second, maxEgressTTL) + egressGrace
	return Missing{Set: s, addr: addr, until: until + egressGrace}, !s.has(addr, until)
}

// AddMissing adds addresses, at least one and all of sets of one [Egress], together with those of other replies, and returns when the
// packet filter has them. An error is about at least one of them.
func AddMissing(ctx context.Context, list []Missing) error { return list[0].Set.egress.add(ctx, list) }

func (e *Egress) add(ctx context.Context, list []Missing) error {
	ctx, cancel := context.WithTimeout(ctx, egressWait)
	defer cancel()
	e.mu.Lock()
	if e.next == nil {
		e.next = &egressBatch{done: make(chan struct{})}
	}
	b := e.next
	b.list = append(b.list, list...)
	if !e.writing {
		e.writing = true
		go e.write()
	}
	e.mu.Unlock()
	select {
	case <-b.done:
	case <-ctx.Done():
		e.failed.Add(1)
		return errEgressBusy
	}
	for _, m := range list {
		if m.Set.has(m.addr, m.until-egressGrace) {
			continue
		}
		if b.err != nil {
			e.failed.Add(1)
			return b.err
		}
		e.full.Add(1)
		return errEgressFull
	}
	return nil
}

var (
	errEgressBusy = errors.New("egress set: the packet filter is busy")
	errEgressFull = errors.New("egress set: it is full")
)

// write writes batches until there are none.
func (e *Egress) write() {
	for {
		e.mu.Lock()
		b := e.next
		e.next, e.writing = nil, b != nil
		e.mu.Unlock()
		if b == nil {
			return
		}
		e.filling.Lock()
		e.writeBatch(b)
		e.filling.Unlock()
		close(b.done)
	}
}

// writeBatch writes b. If that fails, it writes the sets one by one, so that one of them does not affect the others. filling is
// locked.
func (e *Egress) writeBatch(b *egressBatch) {
	latest := make(map[Missing]time.Duration) // of each address, without its time
	for _, m := range b.list {
		key := Missing{Set: m.Set, addr: m.addr}
		if until, ok := latest[key]; ok {
			latest[key] = max(until, m.until)
		} else if m.Set.hasRoom(m.addr) {
			latest[key] = m.until
		}
	}
	bySet := make(map[*Set][]Missing)
	var all []Missing
	for m, until := range latest {
		m.until = until
		bySet[m.Set] = append(bySet[m.Set], m)
		all = append(all, m)
	}
	b.err = e.put(all)
	if b.err != nil && len(bySet) > 1 {
		for _, list := range bySet {
			if err := e.put(list); err != nil {
				b.err = err
			}
		}
	}
	if b.err != nil {
		e.outages.Fail(b.err)
	} else {
		e.outages.Recover()
	}
}

// put puts addresses into the packet filter. It makes sets that are missing.
func (e *Egress) put(list []Missing) error {
	if len(list) == 0 {
		return nil
	}
	now := clock.Now()
	elements := make([]Element, 0, len(list))
	for _, m := range list {
		elements = append(elements, Element{m.Set.policy, m.addr, m.until - now})
	}
	err := e.filter.Add(elements)
	if errors.Is(err, ErrNoSet) {
		if err = e.sync(); err == nil {
			err = e.filter.Add(elements)
		}
	}
	if err != nil {
		return err
	}
	e.writes.Add(1)
	for _, m := range list {
		m.Set.mu.Lock()
		m.Set.until[m.addr] = m.until
		m.Set.mu.Unlock()
	}
	return nil
}

// has reports whether s has addr until that time.
func (s *Set) has(addr netip.Addr, until time.Duration) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	known, ok := s.until[addr]
	return ok && known >= until
}

// hasRoom reports whether addr may enter s.
func (s *Set) hasRoom(addr netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.until[addr]; ok || len(s.until) < MaxEgressAddrs {
		return true
	}
	s.expire(clock.Now())
	return len(s.until) < MaxEgressAddrs
}

// expire forgets addresses that have left. s is locked.
func (s *Set) expire(now time.Duration) {
	maps.DeleteFunc(s.until, func(_ netip.Addr, until time.Duration) bool { return until < now })
}

// EgressStats are counters of an [Egress].
type EgressStats struct {
	// Addresses are those in the sets at the last check.
	Addresses uint64
	// Writes are the transactions. Failed are replies whose addresses did not enter because of an error, Full because the
	// set had no room.
	Writes, Failed, Full uint64
}

// Stats returns the counters of e, of which a nil Egress has none.
func (e *Egress) Stats() (s EgressStats) {
	if e == nil {
		return s
	}
	return EgressStats{e.size.Load(), e.writes.Load(), e.failed.Load(), e.full.Load()}
}
