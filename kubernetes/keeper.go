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

	wide, all *source            // of the cluster; nil if it isn't followed in this way
	local     map[string]*source // by the namespace's label
	settled   bool               // all that was planned was in view once
	running   sync.WaitGroup
}

// plan is what is to be followed.
type plan struct {
	level level
	local []string // labels of namespaces
}

// settlePace is how often the keeper looks around at most. Clients that ask for what
// can't be had, because the API server is away, wake it with every query. Twice as
// often would take a percent of a core for nothing, half as often would be seen in how
// long the first query to a namespace waits.
const settlePace = 5 * time.Millisecond

// run keeps the sources until ctx ends.
func (k *keeper) run(ctx context.Context) {
	k.local = make(map[string]*source)
	tick := time.NewTicker(max(k.view.scope.idle/idleEpochs, time.Millisecond))
	defer tick.Stop()
	for ctx.Err() == nil {
		looked := time.Now()
		k.settle(ctx)
		select {
		case <-tick.C:
			k.view.scope.epoch.Add(1)
		case <-k.view.scope.stirred:
			sleep(ctx, settlePace-time.Since(looked))
		case <-ctx.Done():
		}
	}
	k.running.Wait()
}

// settle brings the sources in line with the plan.
func (k *keeper) settle(ctx context.Context) {
	// What is in use is only known when these are.
	known := k.view.listed[services].Load() && k.view.listed[pods].Load()
	p := k.view.plan()
	k.open(ctx, p)
	k.publish()
	if !k.ready(p) {
		return
	}
	if !k.settled {
		k.settled = true
		k.relieve()
	}
	k.close(p)
	if known {
		k.view.setListed(endpointSlices)
	}
}

// relieve ends what a saved view has stood in for: from now on what no source brings
// is not known.
func (k *keeper) relieve() {
	k.view.scope.restored = levelNode
	k.publish()
	k.view.change(func(x *index) bool {
		for label, ns := range x.namespaces {
			ns.whole = ns.whole && k.local[label] != nil
		}
		x.review()
		return false
	})
	k.drop()
}

// plan looks at what is in use. A level is left for a lower one only when half as
// much is in use as brought it about, so that nothing goes to and fro.
func (v *View) plan() plan {
	sc := v.scope
	var used, gaps []string
	v.mu.RLock()
	at := v.index.level
	for label, ns := range v.index.namespaces {
		if !ns.exists() {
			continue
		}
		recent := sc.recent(ns.used.Load())
		if recent || ns.pods > 0 && ns.headless > 0 {
			used = append(used, label)
		}
		if !recent {
			ns.gap.Store(false)
		}
		if ns.bare > 0 || recent && (ns.untold > 0 || ns.gap.Load()) {
			gaps = append(gaps, label)
		}
	}
	v.mu.RUnlock()
	most := func(l level) int {
		if at >= l {
			return sc.max / 2
		}
		return sc.max
	}
	wide := sc.cluster || len(used) > most(levelWide)
	switch {
	case sc.cluster && sc.all, sc.recent(sc.reverse.Load()), wide && len(gaps) > most(levelAll):
		return plan{level: levelAll}
	case wide:
		return plan{level: levelWide, local: gaps}
	}
	return plan{level: levelNode, local: used}
}

// open starts what is missing.
func (k *keeper) open(ctx context.Context, p plan) {
	switch {
	case p.level == levelAll && k.all == nil:
		k.all = k.start(ctx, &source{})
	case p.level == levelWide && k.wide == nil:
		k.wide = k.start(ctx, &source{labelled: true})
	}
	for _, label := range p.local {
		if k.local[label] != nil {
			continue
		}
		src := &source{}
		k.view.mu.Lock()
		src.ns = k.view.index.at(label)
		src.ns.sources++
		src.whole = src.ns.whole // since a saved view
		k.view.mu.Unlock()
		k.local[label] = k.start(ctx, src)
	}
}

func (k *keeper) start(ctx context.Context, src *source) *source {
	ctx, src.cancel = context.WithCancel(ctx)
	src.view = k.view
	k.view.mu.Lock()
	k.view.index.sources = append(k.view.index.sources, src)
	k.view.mu.Unlock()
	k.running.Go(func() { k.follow(ctx, src) })
	return src
}

// publish tells queries what is in view.
func (k *keeper) publish() {
	l := k.view.scope.restored
	k.view.mu.RLock()
	switch {
	case k.all != nil && k.all.whole:
		l = levelAll
	case k.wide != nil && k.wide.whole:
		l = levelWide
	}
	k.view.mu.RUnlock()
	k.view.setLevel(l)
}

// ready reports whether all of p is in view.
func (k *keeper) ready(p plan) bool {
	k.view.mu.RLock()
	defer k.view.mu.RUnlock()
	for _, label := range p.local {
		if !k.local[label].whole {
			return false
		}
	}
	switch p.level {
	case levelAll:
		return k.all.whole
	case levelWide:
		return k.wide.whole
	}
	return true
}

// close ends the sources that p does without, and drops what only they covered.
func (k *keeper) close(p plan) {
	var ended []*source
	if k.all != nil && p.level != levelAll {
		ended, k.all = append(ended, k.all), nil
	}
	if k.wide != nil && p.level != levelWide {
		ended, k.wide = append(ended, k.wide), nil
	}
	for label, src := range k.local {
		if !slices.Contains(p.local, label) {
			ended = append(ended, src)
			delete(k.local, label)
		}
	}
	if len(ended) == 0 {
		return
	}
	k.publish()
	k.view.change(func(x *index) bool {
		for _, src := range ended {
			src.closed = true
			x.sources = slices.DeleteFunc(x.sources, func(have *source) bool { return have == src })
			if src.ns != nil {
				src.ns.whole = false
			}
		}
		x.review()
		return false
	})
	k.drop()
	k.view.change(func(x *index) bool {
		for _, src := range ended {
			if src.ns != nil {
				src.ns.sources--
				x.forget(src.ns)
			}
		}
		return false
	})
	for _, src := range ended {
		src.cancel()
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

// covers reports whether a source that is left brings sl.
func (k *keeper) covers(sl *slice) bool {
	return k.all != nil || k.wide != nil && k.wide.covers(sl) || k.local[namespaceOf(sl.key)] != nil
}
