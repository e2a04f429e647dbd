package app

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// initialWait is how long a start waits for the cluster DNS's endpoints before it makes
	// the rules: so long the rules of an earlier agent stand, or packets find their way
	// without. It is ten times what a list takes; more would hold up a start in a cluster
	// where there are none.
	initialWait = time.Second
	// minInterval is between two looks at endpoints that change: pods of the cluster DNS come
	// and go over seconds, and each change is a transaction in the kernel. With ten times
	// as long queries would go to a pod that has ended.
	minInterval = 500 * time.Millisecond
)

// endpointsFunc gives the endpoints of a Service (see [kubernetes.View.Endpoints]).
type endpointsFunc func(service string, port uint16) (addrs []netip.AddrPort, changed <-chan struct{})

// fallback follows the endpoints of the cluster DNS, where the kernel sends queries
// while no agent listens.
type fallback struct {
	log        *slog.Logger
	services   []string // NAMESPACE/NAME; the first that has endpoints counts
	setTargets func(context.Context, []netip.AddrPort) error
	// view is nil where no view has endpoints.
	view atomic.Pointer[endpointsFunc]
	// viewChanged has a value when view is another.
	viewChanged chan struct{}
	targets     []netip.AddrPort // in order
}

// newFallback follows the Service that -upstreamsvc names, or else kube-dns, which has
// the same endpoints wherever it is there.
func newFallback(log *slog.Logger, service string, divert func(context.Context, []netip.AddrPort) error) *fallback {
	const namespace, usual = "kube-system/", "kube-dns"
	d := &fallback{log: log, setTargets: divert, services: []string{namespace + service}, viewChanged: make(chan struct{}, 1)}
	if service != usual {
		d.services = append(d.services, namespace+usual)
	}
	return d
}

// useView looks at the endpoints that g knows. A nil diversion does nothing.
func (d *fallback) useView(g *generation) {
	if d == nil {
		return
	}
	var next *endpointsFunc
	for _, p := range g.blocks {
		if p.view != nil && !p.block.Kubernetes.NoEndpoints {
			f := endpointsFunc(p.view.Endpoints)
			next = &f
			break
		}
	}
	if next == nil {
		d.log.Warn("nobody answers the node's queries while the agent is down: the endpoints of the cluster DNS are not known; add a kubernetes directive to a server block")
	}
	d.view.Store(next)
	select {
	case d.viewChanged <- struct{}{}:
	default:
	}
}

// endpoints gives the endpoints, in order, and what is closed when they may be others: after
// a Service without endpoints the next one is looked at, too.
func (d *fallback) endpoints() (to []netip.AddrPort, changed [2]<-chan struct{}) {
	view := d.view.Load()
	if view == nil {
		return nil, changed
	}
	for i, name := range d.services {
		to, changed[i] = (*view)(name, 0)
		if len(to) > 0 {
			break
		}
	}
	to = slices.Clone(to)
	slices.SortFunc(to, netip.AddrPort.Compare)
	return to, changed
}

// waitChange ends when the endpoints may be others, or with ctx: then it is false.
func (d *fallback) waitChange(ctx context.Context, changed [2]<-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-changed[0]:
	case <-changed[1]:
	case <-d.viewChanged:
	}
	return true
}

// applyInitial diverts to the endpoints that are known soon. A nil diversion does nothing.
func (d *fallback) applyInitial(ctx context.Context) {
	if d == nil || d.view.Load() == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, initialWait)
	defer cancel()
	for {
		to, changed := d.endpoints()
		d.update(ctx, to)
		if len(to) > 0 || !d.waitChange(ctx, changed) {
			return
		}
	}
}

// run diverts to the endpoints that there are, until ctx ends. A nil diversion does
// nothing.
func (d *fallback) run(ctx context.Context) {
	if d == nil {
		return
	}
	for {
		to, changed := d.endpoints()
		d.update(ctx, to)
		if !d.waitChange(ctx, changed) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(minInterval):
		}
	}
}

// update diverts to the servers, if they are others than before. Nobody is no news: those
// that were the last may be back before anything else is.
func (d *fallback) update(ctx context.Context, to []netip.AddrPort) {
	if len(to) == 0 || slices.Equal(to, d.targets) {
		return
	}
	d.targets = to
	if err := d.setTargets(ctx, to); err != nil && ctx.Err() == nil {
		d.log.Warn("diverting to the cluster DNS; the next check tries again", "to", to, "err", err)
		return
	}
	d.log.Info("while no agent listens, queries go to the cluster DNS", "to", to)
}
