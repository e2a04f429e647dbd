package dnspolicy

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nodens-dns/nodens/internal/epoch"
)

// Table has the classes of the clients of one agent. Only its owner calls [Table.Set]; all other methods are safe for
// concurrent use.
type Table struct {
	// Closed says that clients whose policies are not known get no answers until they are. Otherwise no policy binds them.
	// It is set before the table is used.
	Closed bool
	// Host reports whether an address is one of the node's own, which no policy binds. It is set before the table is used, and
	// only asked for if Closed is set; nil: only loopback addresses are.
	Host func(netip.Addr) bool
	// Mark returns the mark of all classes: while it matches, these are what they were, if it was read before them. It is set
	// before the table is used; nil: there is none.
	Mark func() epoch.Mark

	state atomic.Pointer[state]
}

// state is what readers see. It is not changed.
type state struct {
	known   bool                  // which policies and pods there are
	classes map[netip.Addr]*Class // by the addresses of pods; nil for those that no policy binds
	changed chan struct{}         // closed when there is another state
}

// unknown is the class of clients whose policies are not known.
var unknown = &Class{ID: 1, Unknown: true}

// FirstID is the least ID of a class that policies make.
const FirstID = 2

// NewTable returns a table that knows no policies yet.
func NewTable() *Table {
	t := new(Table)
	t.state.Store(&state{changed: make(chan struct{})})
	return t
}

// ClassOf returns the class of the client at addr: nil if no policy binds it. It takes no lock and does not allocate. A nil Table
// binds nobody.
func (t *Table) ClassOf(addr netip.Addr) *Class {
	if t == nil {
		return nil
	}
	s := t.state.Load()
	if !t.Closed && len(s.classes) == 0 {
		return nil
	}
	addr = addr.Unmap().WithZone("")
	c, ok := s.classes[addr]
	if ok || !t.Closed || t.isHost(addr) {
		return c
	}
	return unknown
}

// ID returns the ID of the class of the client at addr, 0 if no policy binds it.
func (t *Table) ID(addr netip.Addr) uint32 {
	if c := t.ClassOf(addr); c != nil {
		return c.ID
	}
	return 0
}

func (t *Table) isHost(addr netip.Addr) bool {
	return addr.IsLoopback() || t.Host != nil && t.Host(addr)
}

// Set replaces the classes by the addresses of the node's pods, with nil for pods that no policy binds. The caller must not
// change classes afterwards. known says that all policies and pods are known. If that is a change, Set calls bump, which moves
// the counter of [Table.Mark], before and after it, and returns true.
func (t *Table) Set(classes map[netip.Addr]*Class, known bool, bump func()) (changed bool) {
	old := t.state.Load()
	if old.known == known && maps.Equal(old.classes, classes) {
		return false
	}
	// Readers take no lock. What one has found out before the new state is visible ends with the second bump.
	bump()
	t.state.Store(&state{known: known, classes: classes, changed: make(chan struct{})})
	bump()
	close(old.changed)
	return true
}

// All returns the classes by the addresses of the node's pods, nil for pods that no policy binds. The caller must not change them.
func (t *Table) All() map[netip.Addr]*Class { return t.state.Load().classes }

// Known reports whether all policies and pods are known. A nil Table has nothing to learn.
func (t *Table) Known() bool { return t == nil || t.state.Load().known }

// Await waits until it is known which policies bind the client at addr, and returns its class; that of unknown clients if ctx ends
// before.
func (t *Table) Await(ctx context.Context, addr netip.Addr) *Class {
	for {
		changed := t.state.Load().changed // before the class
		c := t.ClassOf(addr)
		if c == nil || !c.Unknown {
			return c
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return c
		}
	}
}

// Counts are the queries that a policy denied.
type Counts struct{ denied, audited atomic.Uint64 }

// Load returns the queries that the policy denied, and those that it would have denied.
func (c *Counts) Load() (denied, audited uint64) { return c.denied.Load(), c.audited.Load() }

// maxCounted is how many policies have counts of their own. Others share some, so that tenants can't make any number of series.
const maxCounted = 1024

// Counters are the counts of policies by their namespaces and names. The zero value is ready for use, and safe for concurrent
// use.
type Counters struct {
	mu     sync.Mutex
	counts map[[2]string]*Counts
}

// OtherPolicies is the name, without a namespace, under which policies without counts of their own are counted.
const OtherPolicies = "(other)"

// Of returns the counts of a policy. A nil Counters has none.
func (c *Counters) Of(namespace, name string) *Counts {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = make(map[[2]string]*Counts)
	}
	key := [2]string{namespace, name}
	if c.counts[key] == nil && len(c.counts) >= maxCounted {
		key = [2]string{"", OtherPolicies}
	}
	if c.counts[key] == nil {
		c.counts[key] = new(Counts)
	}
	return c.counts[key]
}

// Forget removes the counts of a policy that is gone.
func (c *Counters) Forget(namespace, name string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.counts, [2]string{namespace, name})
}

// Each calls f for each policy, in order: with the number of queries that it denied (mode "enforce"), and of those that it would have
// denied ("audit").
func (c *Counters) Each(f func(namespace, name, mode string, n uint64)) {
	c.mu.Lock()
	all := maps.Clone(c.counts)
	c.mu.Unlock()
	for _, key := range slices.SortedFunc(maps.Keys(all), func(a, b [2]string) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) }) {
		f(key[0], key[1], "enforce", all[key].denied.Load())
		if n := all[key].audited.Load(); n > 0 {
			f(key[0], key[1], "audit", n)
		}
	}
}
