package kubernetes

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
)

// level is how much of the cluster's EndpointSlices is in view.
type level uint32

const (
	// levelNode is the slices of the namespaces in use, with a source for each.
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
	moreData chan struct{} // closed when more data has come into view
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

// SetLimits sets scope_idle and scope_max of a view that may be running; 0 stands for the default. It is safe for
// concurrent use.
func (v *View) SetLimits(idle time.Duration, most int) {
	v.scope.setLimits(idle, most)
	v.requestReconcile()
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
