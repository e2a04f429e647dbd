package kubernetes

import (
	"context"
	"slices"
	"sync"
	"time"
)

// sliceSource is a follower of slices: of one namespace, or of the cluster.
type sliceSource struct {
	view     *View
	ns       *namespace // nil is the cluster
	labelled bool       // only those with the label of headless services
	cancel   context.CancelFunc
	// complete says that all it covers is in view, closed that what it still brings is
	// not wanted, at is the latest version it has brought something of;
	// under the view's lock.
	complete, closed bool
	version          uint64
}

// covers reports whether sl is one of the slices that src brings. A nil source, that
// of manifests, brings all.
func (src *sliceSource) covers(sl *slice) bool {
	switch {
	case src == nil:
		return true
	case src.ns != nil:
		return namespaceOf(sl.key) == src.ns.label
	}
	return !src.labelled || sl.labelled
}

// seenByOther reports whether another source than from has seen version, and is one that
// ok.
func (x *index) seenByOther(version uint64, from *sliceSource, ok func(*sliceSource) bool) bool {
	return slices.ContainsFunc(x.sources, func(src *sliceSource) bool { return src != from && src.version >= version && ok(src) })
}

// isStale reports whether sl, which from brings, is no news, because another source is
// further on: it has brought a later version, or, where it would have brought sl and
// it isn't there, seen it go. Without another source whatever is brought is news,
// also from a server whose versions were set back.
func (x *index) isStale(sl *slice, from *sliceSource) bool {
	old := x.slices[sl.name]
	if old == nil {
		return x.seenByOther(sl.version, from, func(src *sliceSource) bool { return src.complete && src.covers(sl) })
	}
	return old.version > sl.version && x.seenByOther(old.version, from, func(*sliceSource) bool { return true })
}

// isStaleDelete is late for the news that the slice of that name is gone since version.
func (x *index) isStaleDelete(name string, version uint64, from *sliceSource) bool {
	old := x.slices[name]
	return old != nil && old.version >= version && x.seenByOther(old.version, from, func(*sliceSource) bool { return true })
}

// markComplete notes that all that src covers is in view, as of that version.
func (src *sliceSource) markComplete(version uint64) {
	v := src.view
	v.mu.Lock()
	src.version = max(src.version, version)
	news := !src.complete && !src.closed
	src.complete = true
	if news && src.ns != nil {
		src.ns.complete = true
		v.index.recompute()
	}
	v.mu.Unlock()
	if news {
		v.scope.broadcast()
		v.requestReconcile()
	}
}

// sliceManager decides which sources of slices a view has: as few as there can be for what
// its node asks for. Going from one level to the other it keeps what is there until
// all that comes in its place is in view, so that no answer is missing in between;
// two sources that bring the same slice do no harm, since a slice is only put in
// place of an older one.
type sliceManager struct {
	view *View
	// reflect runs a follower for src until ctx ends.
	reflect func(ctx context.Context, src *sliceSource)

	// sources are those there are: by the namespace's label in wire form, or as
	// wideSource and allSource, which no such label is.
	sources    map[string]*sliceSource
	reconciled bool // all that was planned was in view once
	reflectors sync.WaitGroup
}

const (
	wideSource = "wide" // the cluster's slices with the label
	allSource  = "all"  // all of the cluster's
)

// minReconcileInterval is how often the keeper looks around at most. Clients that ask for what
// can't be had, because the API server is away, wake it with every query. Twice as
// often would take a percent of a core for nothing, half as often would be seen in how
// long the first query to a namespace waits.
const minReconcileInterval = 5 * time.Millisecond

// run keeps the sources until ctx ends.
func (k *sliceManager) run(ctx context.Context) {
	tick := time.NewTicker(max(k.view.scope.idleTimeout/idleTicks, time.Millisecond))
	defer tick.Stop()
	for ctx.Err() == nil {
		looked := time.Now()
		k.reconcile(ctx)
		select {
		case <-tick.C:
			k.view.scope.tick.Add(1)
			k.view.expireWaiters()
		case <-k.view.scope.reconcileRequests:
			sleep(ctx, minReconcileInterval-time.Since(looked))
		case <-ctx.Done():
		}
	}
	k.reflectors.Wait()
}

// reconcile brings the sources in line with what is in use.
func (k *sliceManager) reconcile(ctx context.Context) {
	// That is only known when these are.
	known := k.view.listed[services].Load() && k.view.listed[pods].Load()
	desired := k.view.desiredSources()
	k.startSources(ctx, desired)
	k.publishLevel()
	if !k.complete(desired) {
		return
	}
	if !k.reconciled {
		k.reconciled = true
		k.dropRestored()
	}
	k.stopSources(desired)
	if known {
		k.view.setListed(endpointSlices)
	}
}

// desiredSources lists the sources that what is in use asks for. A level is left for a lower
// one only when half as much is in use as brought it about, so that nothing goes to
// and fro.
func (v *View) desiredSources() []string {
	sc := v.scope
	used, gaps, at := v.namespacesInUse()
	most := func(l level) int {
		if at >= l {
			return sc.maxNamespaces / 2
		}
		return sc.maxNamespaces
	}
	wide := sc.cluster || len(used) > most(levelWide)
	switch {
	case sc.cluster && sc.all, sc.usedRecently(sc.reverseUsed.Load()), wide && len(gaps) > most(levelAll):
		return []string{allSource}
	case wide:
		return append(gaps, wideSource)
	}
	return used
}

// namespacesInUse lists the namespaces in use, and those whose slices with the label are not
// enough for what is asked of them, as labels in wire form.
func (v *View) namespacesInUse() (used, gaps []string, at level) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for label, ns := range v.index.namespaces {
		recent := ns.exists() && v.scope.usedRecently(ns.lastUsed.Load())
		if !recent {
			ns.needsUnlabelled.Store(false)
		}
		if recent || ns.nodePods > 0 && ns.headlessCount > 0 {
			used = append(used, label)
		}
		if ns.selectorless > 0 || recent && ns.needsAllSlices() {
			gaps = append(gaps, label)
		}
	}
	return used, gaps, v.index.level
}

// needsAllSlices reports whether the slices with the label are not all that is asked for.
func (ns *namespace) needsAllSlices() bool { return ns.unlabelled > 0 || ns.needsUnlabelled.Load() }

// startSources starts what is missing of plan.
func (k *sliceManager) startSources(ctx context.Context, desired []string) {
	for _, key := range desired {
		if k.sources[key] != nil {
			continue
		}
		if k.sources == nil {
			k.sources = make(map[string]*sliceSource)
		}
		src := &sliceSource{view: k.view, labelled: key == wideSource}
		var follow context.Context
		follow, src.cancel = context.WithCancel(ctx)
		k.view.mu.Lock()
		k.view.index.sources = append(k.view.index.sources, src)
		if key != wideSource && key != allSource {
			src.ns = k.view.index.ensureNamespace(key)
			src.ns.sourceCount++
			src.complete = src.ns.complete // since a saved view
		}
		k.view.mu.Unlock()
		k.sources[key] = src
		k.reflectors.Go(func() { k.reflect(follow, src) })
	}
}

// complete reports whether all that plan covers is in view.
func (k *sliceManager) complete(desired []string) bool {
	k.view.mu.RLock()
	defer k.view.mu.RUnlock()
	return !slices.ContainsFunc(desired, func(key string) bool { return !k.sources[key].complete })
}

// publishLevel tells queries what is in view.
func (k *sliceManager) publishLevel() {
	switch {
	case k.sources[allSource] != nil && k.complete([]string{allSource}):
		k.view.setLevel(levelAll)
	case k.sources[wideSource] != nil && k.complete([]string{wideSource}):
		k.view.setLevel(levelWide)
	default:
		k.view.setLevel(k.view.scope.restored)
	}
}

// dropRestored ends what a saved view has stood in for: from now on what no source brings
// is not known.
func (k *sliceManager) dropRestored() {
	k.view.scope.restored = levelNode
	k.publishLevel()
	k.view.change(func(x *index) bool {
		x.epochs.BumpAny()
		for label, ns := range x.namespaces {
			ns.complete = ns.complete && k.sources[label] != nil
		}
		x.recompute()
		return false
	})
	k.dropUncovered()
}

// stopSources ends the sources that plan does without, and drops what only they covered.
func (k *sliceManager) stopSources(desired []string) {
	var ended []*sliceSource
	for key, src := range k.sources {
		if !slices.Contains(desired, key) {
			ended = append(ended, src)
			delete(k.sources, key)
		}
	}
	if len(ended) == 0 {
		return
	}
	k.publishLevel()
	k.view.change(func(x *index) bool {
		for _, src := range ended {
			x.closeSource(src)
		}
		x.recompute()
		return false
	})
	k.dropUncovered()
	for _, src := range ended {
		src.cancel()
	}
}

// closeSource makes src one that nobody listens to.
func (x *index) closeSource(src *sliceSource) {
	x.epochs.BumpAny() // reverse names hang on what is whole
	src.closed = true
	x.sources = slices.DeleteFunc(x.sources, func(have *sliceSource) bool { return have == src })
	if src.ns != nil {
		src.ns.complete = false
		src.ns.sourceCount--
		x.removeIfUnused(src.ns)
	}
}

// dropUncovered forgets the slices that no source brings.
func (k *sliceManager) dropUncovered() {
	k.view.change(func(x *index) bool {
		for name, sl := range x.slices {
			if !k.covers(sl) {
				x.dropSlice(name)
			}
		}
		return false
	})
}

// covers reports whether there is a source that brings sl.
func (k *sliceManager) covers(sl *slice) bool {
	wide := k.sources[wideSource]
	return k.sources[allSource] != nil || wide != nil && wide.covers(sl) || k.sources[namespaceOf(sl.key)] != nil
}
