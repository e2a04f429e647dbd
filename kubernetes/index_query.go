package kubernetes

import (
	"hash/maphash"
	"iter"
	"slices"
	"strings"
)

// nextOwners looks at the slices after last, nil for the beginning, until list is full. It
// returns the owners among them, the last slice it looked at, and whether there may be
// more. The view's lock is held for reading.
func (x *index) nextOwners(at addrKey, last *sliceRef, z *Zone, list []addrOwner, b *Budget) (some []addrOwner, end *sliceRef, more bool) {
	r, ok := x.endpoints[at]
	if !ok {
		return nil, last, false
	}
	some, looked := list[:0], 0
	for ref := range r.after(last, (*sliceRef).compare) {
		if more = looked == ownersPerLock || len(some) == len(list); more || !b.spend(lookupSteps) {
			break
		}
		looked, last = looked+1, ref
		s := ref.current
		svc := x.services[s.key]
		if svc.hasEndpoints() && (z == nil || z.exposesLocked(namespaceOf(s.key))) {
			some = append(some, addrOwner{s, svc})
		}
	}
	return some, last, more
}

// ownedByNodePod reports whether the address belongs to exactly one pod, that pod is on
// this node, and all slices of its namespace are in view.
func (x *index) ownedByNodePod(at addrKey) bool {
	p := x.nodePodAt(at)
	return p != nil && x.namespaces[p.ns].complete
}

// nodePodAt returns the pod of this node that alone has that address, nil if there is none.
func (x *index) nodePodAt(at addrKey) *pod {
	if p := x.onlyPodAt(at); p != nil && p.onNode && !p.hostNetwork {
		return p
	}
	return nil
}

// requireReverse records that the slices of the namespace are in use whose pod on this node has the address. It reports whether there is
// such a namespace and its slices are not in view: these are requested.
func (v *View) requireReverse(at addrKey) (requested bool) {
	v.mu.RLock()
	if p := v.index.nodePodAt(at); p != nil {
		ns := v.index.namespaces[p.ns]
		ns.reverseUsed.Store(v.scope.tick.Load())
		requested = !ns.complete && v.index.level == levelNode
	}
	v.mu.RUnlock()
	if requested {
		v.requestReconcile()
	}
	return requested
}

// awaitAddr records that the pod of that name awaits its address. w is its wait so far, nil
// for none.
func (x *index) awaitAddr(name string, w *addrWait) {
	if w == nil {
		w = new(addrWait)
	}
	x.addrWaits[name] = w
	if !w.over {
		x.pendingPods++
	}
}

// endAddrWait makes w, if it has not ended, not count any more.
func (x *index) endAddrWait(name string, w *addrWait) {
	if x.addrWaits[name] != w {
		return
	}
	x.epochs.BumpAny()
	x.clients.bump()
	w.over = true
	x.pendingPods--
}

// onlyPodAt returns the pod with that address, nil if there is none or several.
func (x *index) onlyPodAt(at addrKey) *pod { return x.podIPs[at].one }

func (x *index) serviceNames(*sliceSource) (list [][2]string) {
	for key, svc := range x.services {
		if svc.kind != orphan {
			list = append(list, [2]string{namespaceOf(key)[1:], key[1 : 1+key[0]]})
		}
	}
	return list
}

func (x *index) sliceNames(src *sliceSource) (list [][2]string) {
	for key, sl := range x.slices {
		if src.covers(sl) {
			ns, name, _ := strings.Cut(key, "/")
			list = append(list, [2]string{ns, name})
		}
	}
	return list
}

func (x *index) podNames(*sliceSource) (list [][2]string) {
	for key := range x.pods {
		ns, name, _ := strings.Cut(key, "/")
		list = append(list, [2]string{ns, name})
	}
	return list
}

func (x *index) namespaceNames(*sliceSource) (list [][2]string) {
	for label, ns := range x.namespaces {
		if ns.hasObject {
			list = append(list, [2]string{"", label[1:]})
		}
	}
	return list
}

// seenByOther reports whether a source other than from has reached version and satisfies
// ok.
func (x *index) seenByOther(version uint64, from *sliceSource, ok func(*sliceSource) bool) bool {
	return slices.ContainsFunc(x.sources, func(src *sliceSource) bool { return src != from && src.version >= version && ok(src) })
}

// forgetVersions makes all versions meaningless, until a source begins a list. The view's lock
// is held for writing.
func (x *index) forgetVersions() {
	for _, sl := range x.slices {
		sl.version = 0 // not read by queries
	}
	for _, src := range x.sources {
		src.version, src.outdated = 0, true
	}
}

// isStale reports whether sl, which from delivers, is outdated because from repeats what has been in view, or because another source is
// ahead: it has delivered a later version, or it covers sl and has seen its deletion. With
// a single source nothing is stale, even if the server's versions were set back.
func (x *index) isStale(sl *slice, from *sliceSource) bool {
	old := x.slices[sl.name]
	if from.repeats(sl.key, sl.version) && (old == nil || old.version > sl.version) {
		return true
	}
	if old == nil {
		return x.seenByOther(sl.version, from, func(src *sliceSource) bool { return src.complete && src.covers(sl) })
	}
	return old.version > sl.version && x.seenByOther(old.version, from, func(*sliceSource) bool { return true })
}

// isStaleDelete is isStale for the deletion of the slice of that name. Sources of single Services get deletions of others, too, which don't count.
func (x *index) isStaleDelete(name string, version uint64, from *sliceSource) bool {
	old := x.slices[name]
	if old != nil && from.names != nil && !from.covers(old) {
		return true
	}
	return old != nil && old.version >= version && (from.repeats(old.key, version) || x.seenByOther(old.version, from, func(*sliceSource) bool { return true }))
}

// isComplete reports whether all slices that s's names depend on are in the index. Those of
// levelWide are not sufficient for a Service without a selector, whose slices are made by hand
// or mirrored from Endpoints and may have any labels, nor for a Service none of whose slices
// has the headless label: these need all slices of the namespace.
func (x *index) isComplete(key string, s *service) bool {
	switch {
	case s.withheld > 0:
		return false
	case x.level == levelAll, s.ns.complete, x.nameSource(key) != nil:
		return true
	}
	if _, ok := x.restored[key]; ok {
		return true
	}
	return x.level == levelWide && s.kind == headless && s.selects && s.hasLabelledSlice()
}

// mayHaveSlice reports whether the slice is in view, if it exists and DNS can use anything of it, or may be.
func (x *index) mayHaveSlice(namespace, name string) bool {
	key, _ := namespaceKey(namespace)
	ns := x.namespaces[key]
	return x.level > levelNode || ns != nil && ns.complete || x.slices[objectKey(namespace, name)] != nil
}

// serviceGroup is the epoch group of answers made from the service of key alone.
func (x *index) serviceGroup(key []byte) uint64 { return maphash.Bytes(x.seed, key) }

// smallLists is the size up to which the lists of a Service are kept in any case: a part of
// what the Service takes without them.
const smallLists = 256

// fit removes the ports and external addresses of s, which is about to be put under that key,
// if its namespace would have more than [maxNamespaceServices] of them.
func (x *index) fit(key string, s *service, f *faults) {
	if s.listBytes() <= smallLists {
		return
	}
	used := s.listBytes() - x.services[key].listBytes()
	if ns := x.namespaces[namespaceOf(key)]; ns != nil {
		used += ns.serviceBytes
	}
	if used > maxNamespaceServices {
		f.add("ports and external addresses of the namespace's Services take more than %d MiB, DNS has none of this one", maxNamespaceServices>>20)
		s.ports, s.external4, s.external6 = "", "", ""
	}
}

// nameSource returns a complete source of the single Service of that key, nil if there is none.
func (x *index) nameSource(key string) *sliceSource {
	for _, src := range x.sources {
		if _, ok := src.names[key]; ok && src.complete {
			return src
		}
	}
	return nil
}

// hasRestored reports whether the slices of all Services in set are in view from a saved view.
func (x *index) hasRestored(set serviceSet) bool {
	for key := range set {
		if _, ok := x.restored[key]; !ok {
			return false
		}
	}
	return true
}

// namedNamespaces returns the number of namespaces in which slices of single Services are watched, and that have no source of their own.
func (x *index) namedNamespaces() int {
	found := map[string]struct{}{}
	for _, src := range x.sources {
		for key := range src.names {
			if ns := x.namespaces[namespaceOf(key)]; ns != nil && ns.sourceCount == 0 {
				found[ns.label] = struct{}{}
			}
		}
	}
	return len(found)
}

// common returns the Services of set whose names more than maxNamesakes Services have.
func (x *index) common(set serviceSet) serviceSet {
	n := make(map[string]int, len(set))
	for key := range set {
		n[serviceNameOf(key)] = 0
	}
	for key := range x.services {
		if _, ok := n[serviceNameOf(key)]; ok {
			n[serviceNameOf(key)]++
		}
	}
	common := serviceSet{}
	for key := range set {
		if n[serviceNameOf(key)] > maxNamesakes {
			common[key] = struct{}{}
		}
	}
	return common
}

// The owners of an address are kept in order. An answer that iterates over them takes the
// view's lock for a few at a time: tenants decide how long the lists are, and changes must
// not wait. So an answer may mix two states. Each record was true when it was written, and
// copies of the answer are invalid after any change.

// ownersPerLock is how many owners are looked at under one lock, for about a microsecond.
// Owners beyond the last one that the reply has room for are looked at in vain.
const ownersPerLock = 16

// addrOwner is a slice that contains an address, and its service.
type addrOwner struct {
	*slice
	svc *service
}

// addrOwners iterates over the slices that contain the address at, and thereby give it a
// name. zone limits them to the namespaces that it exposes; nil is all.
type addrOwners struct {
	view   *View
	at     addrKey
	zone   *Zone
	budget *Budget
}

// each yields the owners, grouped by service, until the budget is exhausted.
func (h addrOwners) each(yield func(addrOwner) bool) {
	var list [ownersPerLock]addrOwner
	var last *sliceRef
	for more := true; more; {
		h.view.mu.RLock()
		var some []addrOwner
		some, last, more = h.view.index.nextOwners(h.at, last, h.zone, list[:], h.budget)
		h.view.mu.RUnlock()
		for _, x := range some {
			if !yield(x) {
				return
			}
		}
	}
}

// selectingServices iterates over the services that one of the agent's addresses is an
// endpoint of.
type selectingServices struct {
	view   *View
	budget *Budget
}

// each yields each service once with its key, until the budget is exhausted.
func (l selectingServices) each(yield func(string, *service) bool) {
	var seen map[string]struct{} // except the last
	last := ""
	for i, a := range l.view.addrs {
		if l.view.IsClusterIP(a) {
			continue // no pod has it, but any tenant can write it into a slice
		}
		for h := range (addrOwners{l.view, addrKeyOf(packAddr(a)), nil, l.budget}).each {
			if _, dup := seen[h.key]; dup || h.key == last {
				continue
			}
			last = h.key
			if !l.view.trustsSlicesOf(h.key) {
				continue // any tenant can write the agent's address into a slice
			}
			if i+1 < len(l.view.addrs) {
				if seen == nil {
					seen = make(map[string]struct{})
				}
				seen[h.key] = struct{}{}
			}
			if !yield(h.key, h.svc) {
				return
			}
		}
	}
}

// externalServices iterates over the services that are externally reachable at an address,
// in namespaces that the zone exposes.
type externalServices struct {
	zone   *Zone
	at     addrKey
	budget *Budget
}

// each yields the services' keys until the budget is exhausted.
func (l externalServices) each(yield func(string) bool) {
	var list [ownersPerLock]string
	last := ""
	for more := true; more; {
		var some []string
		some, last, more = l.zone.nextExternalServices(l.at, last, list[:], l.budget)
		for _, key := range some {
			if !yield(key) {
				return
			}
		}
	}
}

// refSet is the values at one address. Nearly always it is one; several are kept in order,
// each once. The view's lock guards it.
type refSet[T comparable] struct {
	one  T             // the zero value if there are several
	many *blockList[T] // nil if there is one
}

// blockList is an ordered list in blocks, none of which is empty. A change moves one block:
// with 20,000 Services on one address and 100 addresses in a slice, moving the whole list
// would be 16 MB under the lock.
type blockList[T comparable] [][]T

// blockSize is the capacity of a block. A larger one moves more with each change, a smaller
// one makes the list of blocks longer.
const blockSize = 128

// addRefs adds x at addresses, see addRef.
func addRefs[T comparable](m map[addrKey]refSet[T], addrs iter.Seq[string], x T, compare func(a, b T) int) {
	for addr := range addrs {
		addRef(m, addrKeyOf(addr), x, compare)
	}
}

// dropRefs removes x from addresses, see dropRef.
func dropRefs[T comparable](m map[addrKey]refSet[T], addrs iter.Seq[string], x T, compare func(a, b T) int) {
	for addr := range addrs {
		dropRef(m, addrKeyOf(addr), x, compare)
	}
}

// addRef adds x at an address. It replaces a value that compares equal.
func addRef[T comparable](m map[addrKey]refSet[T], at addrKey, x T, compare func(a, b T) int) {
	r, ok := m[at]
	switch {
	case ok && r.many != nil:
		r.many.put(x, compare)
		return
	case !ok || r.one == x || compare(r.one, x) == 0:
		r.one = x
	default:
		pair := []T{r.one, x}
		if compare(r.one, x) > 0 {
			pair[0], pair[1] = x, r.one
		}
		r = refSet[T]{many: &blockList[T]{pair}}
	}
	m[at] = r
}

// dropRef removes x, but no other value that compares equal, from an address.
func dropRef[T comparable](m map[addrKey]refSet[T], at addrKey, x T, compare func(a, b T) int) {
	r, ok := m[at]
	switch {
	case !ok:
	case r.many == nil:
		if r.one == x {
			delete(m, at)
		}
	default:
		r.many.drop(x, compare)
		if b := *r.many; len(b) == 1 && len(b[0]) == 1 {
			m[at] = refSet[T]{one: b[0][0]}
		}
	}
}

// search returns the position of x, or where it belongs.
func (b blockList[T]) search(x T, compare func(a, b T) int) (block, i int, found bool) {
	block, found = slices.BinarySearchFunc(b, x, func(have []T, x T) int { return compare(have[0], x) })
	if found {
		return block, 0, true
	}
	block = max(0, block-1) // the last one that does not begin after x
	i, found = slices.BinarySearchFunc(b[block], x, compare)
	return block, i, found
}

func (b *blockList[T]) put(x T, compare func(a, b T) int) {
	at, i, found := b.search(x, compare)
	list := *b
	if found {
		list[at][i] = x
		return
	}
	block := slices.Insert(list[at], i, x)
	list[at] = block
	if len(block) <= blockSize {
		return
	}
	half := len(block) / 2
	rest := slices.Clone(block[half:])
	clear(block[half:]) // let the garbage collector have them
	list[at] = block[:half]
	*b = slices.Insert(list, at+1, rest)
}

func (b *blockList[T]) drop(x T, compare func(a, b T) int) {
	at, i, found := b.search(x, compare)
	list := *b
	if !found || list[at][i] != x {
		return
	}
	list[at] = slices.Delete(list[at], i, i+1)
	if len(list[at]) == 0 {
		*b = slices.Delete(list, at, at+1)
		return
	}
	for _, left := range [...]int{at, at - 1} {
		if left >= 0 && left+1 < len(list) && len(list[left])+len(list[left+1]) <= blockSize/2 {
			list[left] = append(list[left], list[left+1]...)
			*b = slices.Delete(list, left+1, left+2)
			return
		}
	}
}

// each yields the values in order.
func (r refSet[T]) each(yield func(T) bool) {
	if r.many == nil {
		yield(r.one)
		return
	}
	r.many.from(0, 0, yield)
}

// after yields the values after last in order, all of them if last is the zero value.
func (r refSet[T]) after(last T, compare func(a, b T) int) iter.Seq[T] {
	return func(yield func(T) bool) {
		var start T
		switch {
		case last == start:
			r.each(yield)
		case r.many != nil:
			at, i, found := r.many.search(last, compare)
			if found {
				i++
			}
			r.many.from(at, i, yield)
		case compare(r.one, last) > 0:
			yield(r.one)
		}
	}
}

// from yields the values from position i of a block on.
func (b blockList[T]) from(block, i int, yield func(T) bool) {
	for ; block < len(b); block, i = block+1, 0 {
		for _, x := range b[block][i:] {
			if !yield(x) {
				return
			}
		}
	}
}
