package clients

import (
	"net/netip"
	"slices"
	"time"
)

// Kind says what a client is.
type Kind uint8

const (
	// PodClient is a pod of this node.
	PodClient Kind = iota
	// Host is the node itself, with the pods in its network namespace.
	Host
	// Unknown is an address of no known pod.
	Unknown
	// Other are all addresses for which the table has no room.
	Other
)

// String returns the name that reports and metrics use in place of a namespace; "" for a pod.
func (k Kind) String() string { return [...]string{"", "(host)", "(unknown)", "(other)"}[k] }

// Pod is a pod of this node. The zero value is none.
type Pod struct {
	Namespace, Name, UID string
	// Workload is what controls the pod.
	Workload Workload
}

// Workload is a controller of pods, such as Deployment web, or a pod without one.
type Workload struct{ Kind, Name string }

// owner is whom queries are counted for.
type owner struct {
	kind Kind
	pod  Pod // of a PodClient
	// addrs are the addresses of a pod, also the earlier ones, or the one that is unknown.
	addrs []netip.Addr
	// live is how many addresses it has now. ended is when the last one was taken away,
	// meaningless while there is one.
	live    int
	ended   time.Duration
	total   counters
	marks   [numWindows]marks
	latency latencies
	series  *series                  // nil: not counted yet
	logged  *[numReasons]loggedLimit // nil: it was never limited
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

// endedAddr is an address that a pod has lost.
type endedAddr struct {
	pod Pod
	at  time.Duration
	// claimed says that by the watch the pod still has the address.
	claimed bool
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
		t.noteEnd(key, c.owner.pod)
	}
	t.release(key)
	t.dropSlot(key)
}

// noteEnd records that the pod has lost the address.
func (t *Table) noteEnd(key addrKey, p Pod) {
	if len(t.ended) >= maxEnded {
		for oldest := range t.ended { // any: the watch is hardly late for so many
			delete(t.ended, oldest)
			break
		}
	}
	t.ended[key] = &endedAddr{pod: p, at: t.opts.Clock(), claimed: true}
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
	t.creditSeries(o, &n)
}
