package kubernetes

import (
	"context"
	"slices"
	"sync"
	"time"
)

// source is a follower of slices: of one namespace, or of the cluster.
type source struct {
	view     *View
	ns       *namespace // nil is the cluster
	labelled bool       // only those with the label of headless services
	cancel   context.CancelFunc
	// whole says that all it covers is in view, closed that what it still brings is
	// not wanted, at is the latest version it has brought something of;
	// under the view's lock.
	whole, closed bool
	at            uint64
}

// covers reports whether sl is one of the slices that src brings. A nil source, that
// of manifests, brings all.
func (src *source) covers(sl *slice) bool {
	switch {
	case src == nil:
		return true
	case src.ns != nil:
		return namespaceOf(sl.key) == src.ns.label
	}
	return !src.labelled || sl.labelled
}

// ahead reports whether another source than from has seen version, and is one that
// ok.
func (x *index) ahead(version uint64, from *source, ok func(*source) bool) bool {
	return slices.ContainsFunc(x.sources, func(src *source) bool { return src != from && src.at >= version && ok(src) })
}

// late reports whether sl, which from brings, is no news, because another source is
// further on: it has brought a later version, or, where it would have brought sl and
// it isn't there, seen it go. Without another source whatever is brought is news,
// also from a server whose versions were set back.
func (x *index) late(sl *slice, from *source) bool {
	old := x.slices[sl.name]
	if old == nil {
		return x.ahead(sl.version, from, func(src *source) bool { return src.whole && src.covers(sl) })
	}
	return old.version > sl.version && x.ahead(old.version, from, func(*source) bool { return true })
}

// outlived is late for the news that the slice of that name is gone since version.
func (x *index) outlived(name string, version uint64, from *source) bool {
	old := x.slices[name]
	return old != nil && old.version >= version && x.ahead(old.version, from, func(*source) bool { return true })
}

// complete notes that all that src covers is in view, as of that version.
func (src *source) complete(version uint64) {
	v := src.view
	v.mu.Lock()
	src.at = max(src.at, version)
	news := !src.whole && !src.closed
	src.whole = true
	if news && src.ns != nil {
		src.ns.whole = true
		v.index.review()
	}
	v.mu.Unlock()
	if news {
		v.scope.tell()
		v.stir()
	}
}

// keeper decides which sources of slices a view has: as few as there can be for what
// its node asks for. Going from one level to the other it keeps what is there until
// all that comes in its place is in view, so that no answer is missing in between;
// two sources that bring the same slice do no harm, since a slice is only put in
// place of an older one.
type keeper struct {
	view *View
	// follow runs a follower for src until ctx ends.
	follow func(ctx context.Context, src *source)

	// sources are those there are: by the namespace's label in wire form, or as
	// wideSource and allSource, which no such label is.
	sources map[string]*source
	settled bool // all that was planned was in view once
	running sync.WaitGroup
}

const (
	wideSource = "wide" // the cluster's slices with the label
	allSource  = "all"  // all of the cluster's
)

// settlePace is how often the keeper looks around at most. Clients that ask for what
// can't be had, because the API server is away, wake it with every query. Twice as
// often would take a percent of a core for nothing, half as often would be seen in how
// long the first query to a namespace waits.
const settlePace = 5 * time.Millisecond

// run keeps the sources until ctx ends.
func (k *keeper) run(ctx context.Context) {
	tick := time.NewTicker(max(k.view.scope.idle/idleEpochs, time.Millisecond))
	defer tick.Stop()
	for ctx.Err() == nil {
		looked := time.Now()
		k.settle(ctx)
		select {
		case <-tick.C:
			k.view.scope.epoch.Add(1)
			k.view.recall()
		case <-k.view.scope.stirred:
			sleep(ctx, settlePace-time.Since(looked))
		case <-ctx.Done():
		}
	}
	k.running.Wait()
}

// settle brings the sources in line with what is in use.
func (k *keeper) settle(ctx context.Context) {
	// That is only known when these are.
	known := k.view.listed[services].Load() && k.view.listed[pods].Load()
	plan := k.view.plan()
	k.open(ctx, plan)
	k.publish()
	if !k.whole(plan) {
		return
	}
	if !k.settled {
		k.settled = true
		k.relieve()
	}
	k.close(plan)
	if known {
		k.view.setListed(endpointSlices)
	}
}

// plan lists the sources that what is in use asks for. A level is left for a lower
// one only when half as much is in use as brought it about, so that nothing goes to
// and fro.
func (v *View) plan() []string {
	sc := v.scope
	used, gaps, at := v.census()
	most := func(l level) int {
		if at >= l {
			return sc.max / 2
		}
		return sc.max
	}
	wide := sc.cluster || len(used) > most(levelWide)
	switch {
	case sc.cluster && sc.all, sc.recent(sc.reverse.Load()), wide && len(gaps) > most(levelAll):
		return []string{allSource}
	case wide:
		return append(gaps, wideSource)
	}
	return used
}

// census lists the namespaces in use, and those whose slices with the label are not
// enough for what is asked of them, as labels in wire form.
func (v *View) census() (used, gaps []string, at level) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for label, ns := range v.index.namespaces {
		recent := ns.exists() && v.scope.recent(ns.used.Load())
		if !recent {
			ns.gap.Store(false)
		}
		if recent || ns.pods > 0 && ns.headless > 0 {
			used = append(used, label)
		}
		if ns.bare > 0 || recent && ns.lacking() {
			gaps = append(gaps, label)
		}
	}
	return used, gaps, v.index.level
}

// lacking reports whether the slices with the label are not all that is asked for.
func (ns *namespace) lacking() bool { return ns.untold > 0 || ns.gap.Load() }

// open starts what is missing of plan.
func (k *keeper) open(ctx context.Context, plan []string) {
	for _, key := range plan {
		if k.sources[key] != nil {
			continue
		}
		if k.sources == nil {
			k.sources = make(map[string]*source)
		}
		src := &source{view: k.view, labelled: key == wideSource}
		var follow context.Context
		follow, src.cancel = context.WithCancel(ctx)
		k.view.mu.Lock()
		k.view.index.sources = append(k.view.index.sources, src)
		if key != wideSource && key != allSource {
			src.ns = k.view.index.at(key)
			src.ns.sources++
			src.whole = src.ns.whole // since a saved view
		}
		k.view.mu.Unlock()
		k.sources[key] = src
		k.running.Go(func() { k.follow(follow, src) })
	}
}

// whole reports whether all that plan covers is in view.
func (k *keeper) whole(plan []string) bool {
	k.view.mu.RLock()
	defer k.view.mu.RUnlock()
	return !slices.ContainsFunc(plan, func(key string) bool { return !k.sources[key].whole })
}

// publish tells queries what is in view.
func (k *keeper) publish() {
	switch {
	case k.sources[allSource] != nil && k.whole([]string{allSource}):
		k.view.setLevel(levelAll)
	case k.sources[wideSource] != nil && k.whole([]string{wideSource}):
		k.view.setLevel(levelWide)
	default:
		k.view.setLevel(k.view.scope.restored)
	}
}

// relieve ends what a saved view has stood in for: from now on what no source brings
// is not known.
func (k *keeper) relieve() {
	k.view.scope.restored = levelNode
	k.publish()
	k.view.change(func(x *index) bool {
		x.epochs.BumpAny()
		for label, ns := range x.namespaces {
			ns.whole = ns.whole && k.sources[label] != nil
		}
		x.review()
		return false
	})
	k.drop()
}

// close ends the sources that plan does without, and drops what only they covered.
func (k *keeper) close(plan []string) {
	var ended []*source
	for key, src := range k.sources {
		if !slices.Contains(plan, key) {
			ended = append(ended, src)
			delete(k.sources, key)
		}
	}
	if len(ended) == 0 {
		return
	}
	k.publish()
	k.view.change(func(x *index) bool {
		for _, src := range ended {
			x.closeSource(src)
		}
		x.review()
		return false
	})
	k.drop()
	for _, src := range ended {
		src.cancel()
	}
}

// closeSource makes src one that nobody listens to.
func (x *index) closeSource(src *source) {
	x.epochs.BumpAny() // reverse names hang on what is whole
	src.closed = true
	x.sources = slices.DeleteFunc(x.sources, func(have *source) bool { return have == src })
	if src.ns != nil {
		src.ns.whole = false
		src.ns.sources--
		x.forget(src.ns)
	}
}

// drop forgets the slices that no source brings.
func (k *keeper) drop() {
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
func (k *keeper) covers(sl *slice) bool {
	wide := k.sources[wideSource]
	return k.sources[allSource] != nil || wide != nil && wide.covers(sl) || k.sources[namespaceOf(sl.key)] != nil
}
