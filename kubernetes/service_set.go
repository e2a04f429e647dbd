package kubernetes

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nodens-dns/nodens/kubernetes/reflector"
)

// serviceSet is a set of Services by their serviceKey. It is immutable once a source has it.
type serviceSet map[string]struct{}

const (
	// namesPrefix begins the keys of sources of single Services. It is no label in wire form, whose first byte is 63 at most.
	namesPrefix = "names/"
	// maxSelectorBytes bounds the names in the label selector of a source. Load balancers in front of API servers accept
	// requests of 8 KiB.
	maxSelectorBytes = 4 << 10
	// maxNameSources bounds the sources of single Services. One is left for Services that come into use between merges.
	maxNameSources = 4
	// mergeDelay is the time from the last Service that has come into use until sources are merged.
	mergeDelay = 10 * time.Second
	// maxNamesakes is how many Services of one name a source of single Services may get the slices of. An event that is sent in vain costs the API server some
	// 50 µs; a watch of the namespace alone costs it 70 KiB.
	maxNamesakes = 16
)

// servicesOf returns the Services that have a floor.
func servicesOf(floor map[string]uint64) serviceSet {
	set := make(serviceSet, len(floor))
	for key := range floor {
		set[key] = struct{}{}
	}
	return set
}

// names returns the names of the Services, each once: they are the values of the label selector.
func (s serviceSet) names() []string {
	var list []string
	for key := range s {
		list = append(list, serviceNameOf(key))
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// serviceNameOf returns the name of the Service with that key.
func serviceNameOf(key string) string { return key[1 : 1+key[0]] }

// selectorBytes is what the names take in a URL, each with an escaped comma.
func (s serviceSet) selectorBytes() (n int) {
	for _, name := range s.names() {
		n += len(name) + len("%2C")
	}
	return n
}

// pack divides s into sets that fit into a label selector. Services of one name are together.
func (s serviceSet) pack() (list []serviceSet) {
	var last string
	used := 0
	for _, key := range slices.Sorted(maps.Keys(s)) { // a key begins with the name
		name := serviceNameOf(key)
		if size := len(name) + len("%2C"); name != last {
			if used += size; len(list) == 0 || used > maxSelectorBytes {
				list, used = append(list, serviceSet{}), size
			}
			last = name
		}
		list[len(list)-1][key] = struct{}{}
	}
	return list
}

// nameSources are the sources of single Services that a sliceManager wants. Services that come into use get a source together. After a while the
// sources are merged, because each takes the API server as much memory whatever it asks for.
type nameSources struct {
	sets   map[string]serviceSet // by the source's key
	number int                   // of the last key
	tick   uint32                // of the last plan
	due    time.Time             // when the sources will be merged; the zero Time for not
}

// plan makes n the sources for the Services in use. tick is the present one.
func (n *nameSources) plan(used serviceSet, tick uint32) {
	kept, fresh, unused := n.compare(used)
	groups := fresh.pack()
	now := n.tick != 0 && n.tick != tick || len(used) == 0 || n.isDue()
	if now && (unused || len(n.sets) > 1) || n.wouldExceed(len(groups)) {
		n.merge(kept)
	}
	n.tick = tick
	for _, set := range groups {
		n.add(set)
	}
	if len(groups) > 0 {
		n.due = time.Now().Add(mergeDelay)
	}
}

// isDue reports whether it is time to merge sources.
func (n *nameSources) isDue() bool { return !n.due.IsZero() && !time.Now().Before(n.due) }

// wouldExceed reports whether there are too many sources for as many more, if any.
func (n *nameSources) wouldExceed(more int) bool {
	return more > 0 && len(n.sets)+more > maxNameSources
}

// mergeIn returns the time until the sources will be merged, 0 for not.
func (n *nameSources) mergeIn() time.Duration {
	if n.due.IsZero() || len(n.sets) < 2 {
		return 0
	}
	return max(time.Until(n.due), time.Millisecond)
}

// compare returns which of the Services in use have a source and which have none, and whether a source has others.
func (n *nameSources) compare(used serviceSet) (kept, fresh serviceSet, unused bool) {
	kept, fresh = serviceSet{}, maps.Clone(used)
	for _, set := range n.sets {
		for key := range set {
			if _, ok := used[key]; ok {
				kept[key] = struct{}{}
			} else {
				unused = true
			}
			delete(fresh, key)
		}
	}
	return kept, fresh, unused
}

// merge replaces the sources by as few as possible, for the Services kept.
func (n *nameSources) merge(kept serviceSet) {
	n.due = time.Time{}
	old := n.sets
	n.sets = nil
next:
	for _, set := range kept.pack() {
		for key, same := range old {
			if maps.Equal(same, set) {
				n.put(key, set)
				continue next
			}
		}
		n.add(set)
	}
}

// add adds a source.
func (n *nameSources) add(set serviceSet) {
	n.number++
	n.put(namesPrefix+strconv.Itoa(n.number), set)
}

func (n *nameSources) put(key string, set serviceSet) {
	if n.sets == nil {
		n.sets = make(map[string]serviceSet)
	}
	n.sets[key] = set
}

// restore adds a source of a saved view.
func (n *nameSources) restore(key string, floor map[string]uint64) {
	n.put(key, servicesOf(floor))
	if number, err := strconv.Atoi(key[len(namesPrefix):]); err == nil {
		n.number = max(n.number, number)
	}
}

// resume lets a new source of single Services go on from where the sources are that have these now, if they have all of them. Their versions differ: it goes on
// from the lowest. Of each Service it gets again what has been in view, up to the version in floor. The view's lock is held.
func (src *sliceSource) resume() {
	var from reflector.Position
	floor := make(map[string]uint64, len(src.names))
	for key := range src.names {
		p, version := src.view.progress(key)
		if p.Version == 0 {
			return
		}
		if from.Version == 0 || p.Version < from.Version {
			from = p
		}
		floor[key] = version
	}
	src.complete, src.version, src.saved, src.savedZone, src.floor = true, from.Version, from, src.view.zoneOf(endpointSlices), floor
}

// progress returns how far the furthest complete source of the single Service of that key has got, the zero Position if none can be gone on from, and up to
// which version its slices have been in view. The view's lock is held.
func (v *View) progress(key string) (p reflector.Position, version uint64) {
	for _, src := range v.index.sources {
		_, ok := src.names[key]
		if !ok || !src.complete || src.outdated || src.follower.reflector == nil || src.follower.zone != v.zoneOf(endpointSlices) {
			continue
		}
		if at := src.follower.reflector.Position(); at.Version > p.Version {
			p = at
		}
		version = max(version, p.Version, src.floor[key])
	}
	return p, version
}

// repeats reports whether src gets again what had been in view before, of a Service at a version.
func (src *sliceSource) repeats(key string, version uint64) bool {
	return !src.outdated && version <= src.floor[key]
}

// noteUse records a use of the slices of a Service in the present tick.
func (sc *scope) noteUse(u *serviceUse) {
	u.tick.Store(sc.tick.Load())
	sc.moreMu.Lock()
	defer sc.moreMu.Unlock()
	sc.asked[u] = struct{}{}
}

// servicesAsked returns the Services in x whose slices queries have needed recently. The view's lock is held.
func (sc *scope) servicesAsked(x *index) serviceSet {
	sc.moreMu.Lock()
	defer sc.moreMu.Unlock()
	set := serviceSet{}
	for u := range sc.asked {
		s := x.services[u.key]
		switch {
		case s == nil || s.used != u || !sc.usedRecently(u.tick.Load()):
			delete(sc.asked, u)
		case s.kind != orphan && s.kind != externalName:
			set[u.key] = struct{}{}
		}
	}
	return set
}

// commonServices returns the Services of used whose names too many Services in x have. It counts again when other Services are in use, and with each tick.
// Only the sliceManager calls it. The view's lock is held.
func (sc *scope) commonServices(x *index, used serviceSet) serviceSet {
	if tick := sc.tick.Load(); tick != sc.counted || !maps.Equal(used, sc.countedFor) {
		sc.counted, sc.countedFor, sc.common = tick, maps.Clone(used), x.common(used)
	}
	return sc.common
}
