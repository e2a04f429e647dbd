package kubernetes

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
)

// level says how much of the cluster's EndpointSlices is in view.
type level uint32

const (
	// levelNode: those of the namespaces in use, a source for each.
	levelNode level = iota
	// levelWide: those with the label of headless services, and all those of the
	// namespaces where these are not enough.
	levelWide
	// levelAll: all of them.
	levelAll
)

func (l level) String() string { return [...]string{"node", "wide", "all"}[l] }

// scope is what a view's keeper goes by: the settings, and what queries say of what
// they need. Queries only write marks that cost them nothing when they are there
// already.
type scope struct {
	cluster       bool          // level wide from the start
	all           bool          // level all in place of it
	maxNamespaces int           // namespaces in use before level wide
	idleTimeout   time.Duration // until what nobody asks for is dropped
	// restored is the level of a saved view, which holds until sources have taken over.
	restored level
	// level is the index's, for those who don't hold its lock.
	level atomic.Uint32
	// tick counts the times that idleness is looked at, from 1.
	tick atomic.Uint32
	// reverseUsed is the last epoch in which a name hung on the slices of the whole
	// cluster, and nobody else could be asked; 0 is never.
	reverseUsed atomic.Uint32
	// allPodsNeeded is closed when a name hung on the pods of the whole cluster, and nobody
	// else could be asked.
	allPodsNeeded chan struct{}
	allPodsOnce   sync.Once
	// reconcileRequests wakes the keeper.
	reconcileRequests chan struct{}

	moreMu   sync.Mutex
	moreData chan struct{} // closed when more has come into view
}

// idleTicks is how many epochs make up scope_idle: what is not asked for is dropped
// at most a sixteenth of it late. With half of it an hour could be 68 minutes, with
// twice as many the keeper would look around twice as often for nothing.
const idleTicks = 16

// The defaults of scope_max and scope_idle, for those who make a view without a
// Corefile.
const (
	defaultScopeMax  = 32
	defaultScopeIdle = time.Hour
)

func newScope(cfg *config.Kubernetes) *scope {
	sc := &scope{
		cluster: cfg.Scope == config.ScopeCluster, all: cfg.AllEndpoints, maxNamespaces: cfg.ScopeMax, idleTimeout: cfg.ScopeIdle,
		reconcileRequests: make(chan struct{}, 1), allPodsNeeded: make(chan struct{}), moreData: make(chan struct{}),
	}
	if sc.maxNamespaces <= 0 {
		sc.maxNamespaces = defaultScopeMax
	}
	if sc.idleTimeout <= 0 {
		sc.idleTimeout = defaultScopeIdle
	}
	sc.tick.Store(1)
	return sc
}

// usedRecently reports whether the epoch is not longer ago than scope_idle.
func (sc *scope) usedRecently(epoch uint32) bool {
	return epoch > 0 && sc.tick.Load()-epoch <= idleTicks
}

// requestReconcile makes the keeper look at what is to be followed. It does not block.
func (v *View) requestReconcile() {
	select {
	case v.scope.reconcileRequests <- struct{}{}:
	default:
	}
}

// more is a channel that is closed when more has come into view.
func (sc *scope) more() <-chan struct{} {
	sc.moreMu.Lock()
	defer sc.moreMu.Unlock()
	return sc.moreData
}

// broadcast closes the channel of those who wait for more.
func (sc *scope) broadcast() {
	sc.moreMu.Lock()
	defer sc.moreMu.Unlock()
	close(sc.moreData)
	sc.moreData = make(chan struct{})
}

// requireSlices reports whether all the slices that s's names are made of are in view, and
// notes that they are in use. If they are not they soon will be.
func (v *View) requireSlices(s *service) bool {
	ns, sc := s.ns, v.scope
	if epoch := sc.tick.Load(); ns.lastUsed.Load() != epoch {
		ns.lastUsed.Store(epoch)
	}
	if s.kind == clusterIP && !ns.needsUnlabelled.Load() {
		ns.needsUnlabelled.Store(true)
	}
	if s.complete {
		return true
	}
	v.requestReconcile()
	return false
}

// isComplete reports whether the index has all the slices that s's names are made of. The
// slices with the label are not all there is for a service without a selector, whose
// slices somebody makes by hand or mirrors from Endpoints, nor do they say anything
// of a service that has none of them: then it is all of the namespace's, or Elsewhere.
func (x *index) isComplete(s *service) bool {
	switch {
	case x.level == levelAll, s.ns.complete:
		return true
	}
	return x.level == levelWide && s.kind == headless && s.selects && s.hasLabelledSlice()
}

// recompute publishes the services anew for which holds has another answer than before.
func (x *index) recompute() {
	for key, old := range x.services {
		if old.kind != orphan && x.isComplete(old) != old.complete {
			s := *old
			x.publish(key, &s)
		}
	}
}

// setLevel makes l what is in view.
func (v *View) setLevel(l level) {
	if level(v.scope.level.Load()) == l {
		return
	}
	v.mu.Lock()
	v.index.epochs.BumpAny() // reverse names hang on the level itself
	v.index.level = l
	v.index.recompute()
	v.mu.Unlock()
	v.scope.level.Store(uint32(l))
	v.scope.broadcast()
}
