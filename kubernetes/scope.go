package kubernetes

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/kubernetes/reflector"
)

// level is how much of the cluster's EndpointSlices is in view.
type level uint32

const (
	// levelNode is the slices of the Services in use, with as few sources as possible, and all slices of namespaces whose pods' reverse
	// names are queried, with a source for each.
	levelNode level = iota
	// levelWide is the slices of [wideSources], and all slices of namespaces where these are not
	// sufficient.
	levelWide
	// levelAll is all slices.
	levelAll
)

func (l level) String() string { return [...]string{"node", "wide", "all"}[l] }

// scope holds what a view's sliceManager goes by: the settings, and what queries need.
// Queries only set marks, which cost nothing if they are set already.
type scope struct {
	cluster bool // start at levelWide
	all     bool // use levelAll instead of levelWide
	// maxNamespaces is how many namespaces may be in use at levelNode, idleTimeout the time until unused data is
	// dropped, in nanoseconds. [View.SetLimits] changes both.
	maxNamespaces, idleTimeout atomic.Int64
	// restored is the level of a saved view, valid until sources have replaced it.
	restored level
	// level is the index's level, for readers without its lock.
	level atomic.Uint32
	// tick counts the checks for idle namespaces, from 1.
	tick atomic.Uint32
	// reverseUsed is the last tick in which a query needed the slices of the whole cluster
	// and had no other server to ask; 0 is never.
	reverseUsed atomic.Uint32
	// allPodsNeeded is closed when a query needs the pods of the whole cluster and has no
	// other server to ask.
	allPodsNeeded chan struct{}
	allPodsOnce   sync.Once
	// reconcileRequests wakes the sliceManager.
	reconcileRequests chan struct{}

	moreMu   sync.Mutex
	moreData chan struct{}            // closed when more data has come into view
	asked    map[*serviceUse]struct{} // the Services whose slices queries have needed, and some that they needed long ago

	// countedFor are the Services in use when names were last counted, in the tick counted, and common those of them whose names too many
	// Services have.
	counted            uint32
	countedFor, common serviceSet
}

// idleTicks is the number of ticks in scope_idle: unused data is dropped at most a
// sixteenth of that late.
const idleTicks = 16

// The defaults of scope_max and scope_idle for a configuration that comes from no Corefile.
const (
	defaultScopeMax  = 32
	defaultScopeIdle = time.Hour
)

func newScope(cfg *config.Kubernetes) *scope {
	sc := &scope{
		cluster: cfg.Scope == config.ScopeCluster, all: cfg.AllEndpoints,
		reconcileRequests: make(chan struct{}, 1), allPodsNeeded: make(chan struct{}), moreData: make(chan struct{}),
		asked: make(map[*serviceUse]struct{}),
	}
	sc.setLimits(cfg.ScopeIdle, cfg.ScopeMax)
	sc.tick.Store(1)
	return sc
}

// setLimits sets idleTimeout and maxNamespaces; 0 stands for the default.
func (sc *scope) setLimits(idle time.Duration, most int) {
	if most <= 0 {
		most = defaultScopeMax
	}
	if idle <= 0 {
		idle = defaultScopeIdle
	}
	sc.maxNamespaces.Store(int64(most))
	sc.idleTimeout.Store(int64(idle))
}

// tickInterval is the time between two ticks.
func (sc *scope) tickInterval() time.Duration {
	return max(time.Duration(sc.idleTimeout.Load())/idleTicks, time.Millisecond)
}

// usedRecently reports whether the tick is not longer ago than scope_idle.
func (sc *scope) usedRecently(epoch uint32) bool {
	return epoch > 0 && sc.tick.Load()-epoch <= idleTicks
}

// more returns a channel that is closed when more data has come into view.
func (sc *scope) more() <-chan struct{} {
	sc.moreMu.Lock()
	defer sc.moreMu.Unlock()
	return sc.moreData
}

// broadcast closes the channel that more returned.
func (sc *scope) broadcast() {
	sc.moreMu.Lock()
	defer sc.moreMu.Unlock()
	close(sc.moreData)
	sc.moreData = make(chan struct{})
}

// sliceSource is a source of EndpointSlices: a reflector of one namespace or of the
// cluster.
type sliceSource struct {
	view   *View
	ns     *namespace // nil is the whole cluster
	names  serviceSet // only slices of these Services; nil is all
	key    string     // in [sliceManager]
	only   sliceClass // only slices of this class; anySlice is all
	cancel context.CancelFunc
	// complete says that all of its slices are in view; closed that further events are
	// ignored; outdated that the server's versions were set back since its last list began, so
	// that its own mean nothing. version is the latest resourceVersion it has delivered. The
	// view's lock guards them.
	complete, closed, outdated bool
	version                    uint64
	follower                   follower
	// saved is where the reflector will go on, with records made for savedZone: a position of the saved view or of another source.
	saved     reflector.Position
	savedZone string
	floor     map[string]uint64 // see [sliceSource.resume]
}

// covers reports whether src delivers sl. A nil src, the source of manifests, delivers all
// slices.
func (src *sliceSource) covers(sl *slice) bool {
	switch {
	case src == nil:
		return true
	case src.ns != nil:
		return namespaceOf(sl.key) == src.ns.label
	case src.names != nil:
		_, ok := src.names[sl.key]
		return ok
	}
	return src.only == anySlice || src.only == sl.class
}

// reach records that src has delivered something of that version. The view's lock is held.
func (src *sliceSource) reach(version uint64) {
	if !src.outdated {
		src.version = max(src.version, version)
	}
}

// markComplete records that all slices of src are in view, as of version.
func (src *sliceSource) markComplete(version uint64) {
	v := src.view
	v.mu.Lock()
	src.reach(version)
	news := !src.complete && !src.closed
	src.complete = true
	if news && src.ns != nil {
		src.ns.complete = true
	}
	if news && (src.ns != nil || src.names != nil) {
		v.index.recompute()
	}
	v.mu.Unlock()
	if news {
		v.scope.broadcast()
		v.requestReconcile()
	}
}

// sliceManager decides which sources of EndpointSlices a view has: as few as the queries
// and pods of its node need. When the set of sources changes, the old ones stay until the
// new ones are complete, so that no answer is missing in between. Two sources may deliver
// the same slice: a slice only replaces an older version.
type sliceManager struct {
	view *View
	// reflect runs a reflector for src until ctx ends.
	reflect func(ctx context.Context, src *sliceSource)

	// sources are the current ones by the namespace's label in wire form, by the key in names, or by one of the
	// constants below, which are no such labels.
	sources    map[string]*sliceSource
	names      nameSources
	reconciled bool // all desired sources were complete once, and it was known what is in use
	reflectors sync.WaitGroup
}

const (
	headlessSource = "headless" // the cluster's slices with the headless label
	foreignSource  = "foreign"  // the cluster's slices that neither have it nor are the slice controller's
	allSource      = "all"      // all slices of the cluster
)

// wideSources are the sources of levelWide. They leave out the slice controller's slices of
// Services with a cluster IP, most of a cluster's. The slice controller labels its slices of
// headless Services. Others, who may add slices to any Service, need not.
var wideSources = []string{headlessSource, foreignSource}

// classOf is the class of the slices of the source of that key.
var classOf = map[string]sliceClass{headlessSource: headlessSlice, foreignSource: foreignSlice}

// minReconcileInterval is the shortest time between two reconciliations. Queries that can't
// be answered, because the API server is away, each request one.
const minReconcileInterval = 5 * time.Millisecond

// run manages the sources until ctx ends.
func (k *sliceManager) run(ctx context.Context) {
	interval := k.view.scope.tickInterval()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		if now := k.view.scope.tickInterval(); now != interval {
			interval = now
			tick.Reset(interval)
		}
		looked := time.Now()
		k.reconcile(ctx)
		var again <-chan time.Time
		if !k.view.listed[endpointSlices].Load() {
			again = time.After(rejectionCheck)
		} else if wait := k.names.mergeIn(); wait > 0 {
			again = time.After(wait)
		}
		select {
		case <-again:
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

// rejectionCheck is the interval at which the manager looks whether the API server refuses to list pods, before the first
// lists are complete.
const rejectionCheck = time.Second

// reconcile starts and stops sources according to what is in use.
func (k *sliceManager) reconcile(ctx context.Context) {
	// What is in use is only known when these are listed.
	known := k.view.listed[services].Load() && k.view.knowsPods()
	desired := k.desiredSources(known)
	k.stopSources(desired, func(src *sliceSource) bool { return src.names != nil && !src.complete })
	k.startSources(ctx, desired)
	k.publishLevel()
	if !k.complete(desired) {
		return
	}
	if known && !k.reconciled {
		k.reconciled = true
		k.dropRestored()
	}
	k.stopSources(desired, func(*sliceSource) bool { return true })
	if known {
		k.view.setListed(endpointSlices)
	}
}

// needsAllSlices reports whether slices without the headless label are needed, too.
func (ns *namespace) needsAllSlices() bool { return ns.unlabelled > 0 || ns.needsUnlabelled.Load() }

// startSources starts the desired sources that don't exist.
func (k *sliceManager) startSources(ctx context.Context, desired []string) {
	var started []func()
	for _, key := range desired {
		if k.sources[key] != nil {
			continue
		}
		if k.sources == nil {
			k.sources = make(map[string]*sliceSource)
		}
		class, wide := classOf[key]
		src := &sliceSource{view: k.view, key: key, only: class, names: k.names.sets[key]}
		var follow context.Context
		follow, src.cancel = context.WithCancel(ctx)
		k.view.mu.Lock()
		k.view.index.sources = append(k.view.index.sources, src)
		switch {
		case src.names != nil:
			src.complete = k.view.index.hasRestored(src.names)
			src.resume()
		case !wide && key != allSource:
			src.ns = k.view.index.ensureNamespace(key)
			src.ns.sourceCount++
			src.complete = src.ns.complete // from a saved view
		}
		if p, ok := k.view.saved[sourceKey{endpointSlices, key}]; ok {
			src.complete, src.version, src.saved, src.savedZone, src.floor = true, p.Version, p, k.view.savedZone, k.view.savedSources[key]
		}
		k.view.mu.Unlock()
		k.sources[key] = src
		started = append(started, func() { k.reflect(follow, src) })
	}
	for _, reflect := range started { // when the versions of all are known, which tell what is outdated
		k.reflectors.Go(reflect)
	}
}

// complete reports whether all desired sources exist and are complete.
func (k *sliceManager) complete(desired []string) bool {
	k.view.mu.RLock()
	defer k.view.mu.RUnlock()
	return !slices.ContainsFunc(desired, func(key string) bool { return k.sources[key] == nil || !k.sources[key].complete })
}

// publishLevel sets the level that queries go by.
func (k *sliceManager) publishLevel() {
	switch {
	case k.complete([]string{allSource}):
		k.view.setLevel(levelAll)
	case k.complete(wideSources):
		k.view.setLevel(levelWide)
	default:
		k.view.setLevel(k.view.scope.restored)
	}
}

// dropRestored drops what came from a saved view and is not covered by a source.
func (k *sliceManager) dropRestored() {
	k.view.scope.restored = levelNode
	k.publishLevel()
	k.view.change(func(x *index) (lost bool) {
		x.epochs.BumpAny()
		for label, ns := range x.namespaces {
			if ns.complete && k.sources[label] == nil {
				ns.complete, lost = false, true
			}
		}
		for key := range x.restored {
			lost = lost || x.nameSource(key) == nil
		}
		x.restored = nil
		x.recompute()
		maps.DeleteFunc(k.view.saved, func(key sourceKey, _ reflector.Position) bool { return key.Resource == endpointSlices })
		return lost // the zone may change unseen, and its serial is that of a transfer
	})
	k.dropUncovered()
}

// stopSources stops the sources that are not desired and for which stop returns true. It drops the slices that only they
// covered.
func (k *sliceManager) stopSources(desired []string, stop func(*sliceSource) bool) {
	var ended []*sliceSource
	for key, src := range k.sources {
		if !slices.Contains(desired, key) && stop(src) {
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
		return k.view.serial.reserved.Load() // the zone may change unseen
	})
	if k.reconciled {
		k.dropUncovered()
	}
	for _, src := range ended {
		src.cancel()
	}
}

// dropUncovered removes the slices that no source covers.
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

// covers reports whether a source covers sl.
func (k *sliceManager) covers(sl *slice) bool {
	if k.sources[allSource] != nil || k.sources[namespaceOf(sl.key)] != nil {
		return true
	}
	for _, src := range k.sources {
		if src.ns == nil && src.covers(sl) {
			return true
		}
	}
	return false
}

// desiredSources returns the keys of the sources that are needed. Unless it is known which Services the node uses, there
// are no sources of single Services but those of a saved view: of a list that comes in pages, each page would get a source.
func (k *sliceManager) desiredSources(known bool) []string {
	keys, used := k.view.desiredSources()
	if !known && len(k.view.savedSources) == 0 {
		used = nil
	}
	if k.names.tick == 0 {
		for key, floor := range k.view.savedSources {
			k.names.restore(key, floor)
		}
	}
	k.names.plan(used, k.view.scope.tick.Load())
	return slices.AppendSeq(keys, maps.Keys(k.names.sets))
}
