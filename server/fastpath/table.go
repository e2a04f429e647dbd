package fastpath

import (
	"sync"
	"sync/atomic"
	"time"
)

// The table is sets of ways. The first half of a set's ways is for the cluster's names, the
// other for the cache's, so that neither pushes the other out.
const (
	ways      = len(programSet{}.Tag)
	halfWays  = ways / 2
	slotCount = ways << programBoundSETS_BITS
)

// table is the agent's side of the answers.
type table struct {
	mu    sync.Mutex
	sets  []programSet  // shared with the program
	slots []programSlot // shared with the program
	seed  uint64
	// offset is what turns a time of package clock into the kernel's.
	offset   time.Duration
	meanTime time.Duration // what an answer takes
	info     [slotCount]slotInfo
	fresh    programSlot // where an answer is made before it is written
}

// slotInfo is what the agent knows of a place.
type slotInfo struct {
	reporter HitReporter // nil: the place is empty
	reported uint32
}

// put is [Program.Put].
func (t *table) put(a *Answer) bool {
	key, ok := newKey(a.Listener, a.Query)
	if !ok || !t.mu.TryLock() {
		return false
	}
	defer t.mu.Unlock()
	tag := key.tag(t.seed)
	set := int(tag >> (64 - programBoundSETS_BITS))
	way, there := t.chooseWay(set, tag, &key, a.Cluster)
	if s := &t.slots[set*ways+way]; there && s.Epoch == a.Mark.Value && s.EpochAt == a.Mark.Index && s.Expires == t.expiry(a) {
		return true
	}
	t.fresh.Key = key
	if !t.encode(a) {
		return false
	}
	t.write(set, way, tag, a.Source.HitReporter())
	return true
}

// expiry is from when on a is not given, on the kernel's clock.
func (t *table) expiry(a *Answer) uint64 {
	if a.Expires == 0 {
		return 1<<64 - 1
	}
	return uint64(a.Expires + t.offset)
}

// chooseWay is the way of a set that an answer goes to: the one that has its key, which is there
// then, an empty one, or the one that was not given for longest. Answers that were never given
// go first, so that names that are asked for once don't push out those that are in use.
func (t *table) chooseWay(set int, tag uint64, key *programKey, cluster bool) (way int, there bool) {
	first, oldest := halfWays, uint64(1<<64-1)
	if cluster {
		first = 0
	}
	best := first
	for way := range ways {
		s := &t.slots[set*ways+way]
		if t.sets[set].Tag[way] == tag && s.Key == *key {
			return way, true
		}
		if way < first || way >= first+halfWays {
			continue
		}
		used := s.Used + 1
		if t.sets[set].Tag[way] == 0 {
			used = 0
		}
		if used < oldest {
			best, oldest = way, used
		}
	}
	return best, false
}

// write puts the fresh answer into a place. The program takes none that it finds half
// written, nor one that changed while it read it.
func (t *table) write(set, way int, tag uint64, owner HitReporter) {
	place := set*ways + way
	s := &t.slots[place]
	t.reportHits(place)
	t.info[place] = slotInfo{reporter: owner, reported: atomic.LoadUint32(&s.Hits)}
	atomic.AddUint32(&s.Seq, 1)
	f := &t.fresh
	s.Used, s.Expires, s.Ends, s.Epoch, s.EpochAt, s.Life = 0, f.Expires, f.Ends, f.Epoch, f.EpochAt, f.Life
	s.Sum, s.TailLen, s.MaxSize, s.Head, s.Ttls, s.Odd = f.Sum, f.TailLen, f.MaxSize, f.Head, f.Ttls, f.Odd
	s.Serial, s.SerialAt = f.Serial, f.SerialAt
	s.Turns, s.TurnSize, s.TurnAt, s.TtlAt, s.Key, s.Tail = f.Turns, f.TurnSize, f.TurnAt, f.TtlAt, f.Key, f.Tail
	atomic.AddUint32(&s.Seq, 1)
	atomic.StoreUint64(&t.sets[set].Tag[way], tag)
}

// reportHits has the owner of a place know of its hits.
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

// sweep is [Program.Sweep].
func (t *table) sweep(took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.meanTime = took
	for place := range t.info {
		t.reportHits(place)
	}
}

// clear is [Program.Clear].
func (t *table) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for place := range t.info {
		atomic.StoreUint64(&t.sets[place/ways].Tag[place%ways], 0)
		t.reportHits(place)
		t.info[place] = slotInfo{}
	}
}
