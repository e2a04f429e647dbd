package kernelpath

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// The table is set-associative. The first half of the ways of each set is for cluster
// names, the second for cached answers, so that neither evicts the other.
const (
	ways      = len(programSet{}.Tag)
	halfWays  = ways / 2
	slotCount = ways << programBoundSETS_BITS
)

// table is the agent's side of the answers. It is safe for concurrent use.
type table struct {
	mu    sync.Mutex
	sets  []programSet  // memory shared with the program
	slots []programSlot // memory shared with the program
	seed  uint64
	// offset converts a time of package clock into the kernel's clock.
	offset   time.Duration
	meanTime time.Duration // the average time of an answer
	info     [slotCount]slotInfo
	fresh    programSlot // scratch space for the next answer
}

// slotInfo is what the agent knows about a slot.
type slotInfo struct {
	reporter HitReporter // nil if the slot is empty
	reported uint32
}

// put implements [Program.Put].
func (t *table) put(a *Answer) bool {
	key, ok := newKey(a.Listener, a.Query)
	if !ok || !t.mu.TryLock() {
		return false
	}
	defer t.mu.Unlock()
	tag := key.tag(t.seed)
	set := int(tag >> (64 - programBoundSETS_BITS))
	way, there := t.wayOf(set, tag, &key, a.Group.Number)
	if !there {
		way = t.chooseWay(set, !a.FromCache)
	}
	if there && t.hasCopy(&t.slots[set*ways+way], a) {
		return true
	}
	t.fresh.Key = key
	if !t.encode(a) {
		return false
	}
	t.write(set, way, tag, a.Source.HitReporter())
	return true
}

// hasCopy reports whether the slot, whose key is a's, is a copy of the answer that a is.
func (t *table) hasCopy(s *programSlot, a *Answer) bool {
	return s.Epoch == a.Mark.Value && s.EpochAt == a.Mark.Index && s.Expires == t.expiry(a) && s.Waste == flag(a.Waste) &&
		s.Group == a.Group.Number && s.GroupAt == a.Group.Mark.Index && s.hasMore(a.More)
}

// flag returns 1 for true.
func flag(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// noExpiry is the expiry of answers that only a change ends.
const noExpiry = 1<<64 - 1

// expiry returns from when on a is no longer given, on the kernel's clock.
func (t *table) expiry(a *Answer) uint64 {
	if a.Expires == 0 {
		return noExpiry
	}
	return uint64(a.Expires + t.offset)
}

// wayOf returns the way of a set that has the answer with that key and group; ok is false if there is none.
//
// A key has either an answer for all clients or answers for groups of clients: a new answer of the other kind
// means that the old ones are outdated. It gets the way of one, and wayOf drops the rest.
func (t *table) wayOf(set int, tag uint64, key *programKey, group uint32) (way int, ok bool) {
	for i := range ways {
		s := &t.slots[set*ways+i]
		if t.sets[set].Tag[i] != tag || s.Key != *key || s.Group != group && s.Group != 0 && group != 0 {
			continue
		}
		if ok {
			t.drop(set*ways + i)
			continue
		}
		way, ok = i, true
	}
	return way, ok
}

// chooseWay returns the way of a set that an answer with a new key goes to: an empty way or the least
// recently given one. Answers that were never given are replaced first, so that names that are asked for
// once do not evict names in use.
func (t *table) chooseWay(set int, cluster bool) int {
	first, oldest := halfWays, uint64(1<<64-1)
	if cluster {
		first = 0
	}
	best := first
	for way := first; way < first+halfWays; way++ {
		used := t.slots[set*ways+way].Used + 1
		if t.sets[set].Tag[way] == 0 {
			used = 0
		}
		if used < oldest {
			best, oldest = way, used
		}
	}
	return best
}

// drop removes the answer in a slot and reports its remaining hits.
func (t *table) drop(place int) {
	atomic.StoreUint64(&t.sets[place/ways].Tag[place%ways], 0)
	t.reportHits(place)
	t.info[place] = slotInfo{}
}

// write copies the fresh answer into a slot. The program ignores a slot that is being
// written, or that changed while it was read (Seq).
func (t *table) write(set, way int, tag uint64, owner HitReporter) {
	place := set*ways + way
	s := &t.slots[place]
	t.reportHits(place)
	t.info[place] = slotInfo{reporter: owner, reported: atomic.LoadUint32(&s.Hits)}
	atomic.AddUint32(&s.Seq, 1)
	// On arm64 without LSE, the addition may become visible after the writes below. No write
	// overtakes a load-acquire, which in turn does not overtake the addition's store-release.
	atomic.LoadUint32(&s.Seq)
	f := &t.fresh
	s.Used, s.Expires, s.Ends, s.Epoch, s.EpochAt, s.Life = 0, f.Expires, f.Ends, f.Epoch, f.EpochAt, f.Life
	s.Sum, s.TailLen, s.MaxSize, s.Head, s.Ttls, s.Odd = f.Sum, f.TailLen, f.MaxSize, f.Head, f.Ttls, f.Odd
	s.Serial, s.SerialAt = f.Serial, f.SerialAt
	s.Turns, s.TurnSize, s.TurnAt, s.TtlAt, s.Key, s.Tail = f.Turns, f.TurnSize, f.TurnAt, f.TtlAt, f.Key, f.Tail
	s.Waste, s.Group, s.GroupAt = f.Waste, f.Group, f.GroupAt
	s.More, s.MoreEpoch, s.MoreAt = f.More, f.MoreEpoch, f.MoreAt
	atomic.AddUint32(&s.Seq, 1)
	atomic.StoreUint64(&t.sets[set].Tag[way], tag)
}

// reportHits reports the new hits of a slot.
func (t *table) reportHits(place int) {
	h := &t.info[place]
	if h.reporter == nil {
		return
	}
	if n := atomic.LoadUint32(&t.slots[place].Hits); n != h.reported {
		h.reporter.ReportHits(uint64(n-h.reported), t.meanTime)
		h.reported = n
	}
}

// sweep implements [Program.Sweep].
func (t *table) sweep(took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.meanTime = took
	for place := range t.info {
		t.reportHits(place)
	}
}

// clear implements [Program.Clear].
func (t *table) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for place := range t.info {
		t.drop(place)
	}
}

// usage returns the number of slots with an answer.
func (t *table) usage() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.info {
		if t.info[i].reporter != nil {
			n++
		}
	}
	return n
}

// copies implements [Program.Copies]. epochs are the counters that copies depend on.
func (t *table) copies(name []byte, qtype uint16, listeners map[uint32]netip.AddrPort, epochs []atomic.Uint64) (list []CopyInfo) {
	var want programKey
	want.setName(name)
	now := kernelNow()
	t.mu.Lock()
	defer t.mu.Unlock()
	for place := range t.info {
		s := &t.slots[place]
		if t.info[place].reporter == nil || int(s.Key.NameLen) != len(name) || s.Key.Name != want.Name {
			continue
		}
		listener, ok := listeners[s.Key.Door]
		if found := s.Key.qtype(); ok && (qtype == 0 || found == qtype) {
			info := s.describe(now, epochs)
			info.Listener, info.Type = listener, found
			list = append(list, info)
		}
	}
	return list
}
