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
	// initialWait is how long a start waits for the endpoints of the cluster DNS before it
	// installs the rules. A list takes a tenth of that.
	initialWait = time.Second
	// minInterval is the least time between two changes of the rules. Each is a transaction
	// in the kernel.
	minInterval = 500 * time.Millisecond
)

// endpointsFunc returns the endpoints of a Service (see [kubernetes.View.Endpoints]).
type endpointsFunc func(service string, port uint16) (addrs []netip.AddrPort, changed <-chan struct{})

// fallback keeps the kernel's rules for a time without an agent up to date: they send queries
// to the endpoints of the cluster DNS, which it follows in a view.
type fallback struct {
	log        *slog.Logger
	services   []string // NAMESPACE/NAME; the first that has endpoints is used
	setTargets func(context.Context, []netip.AddrPort) error
	// view is nil if no view has endpoints.
	view atomic.Pointer[endpointsFunc]
	// viewChanged receives a value when view changes.
	viewChanged chan struct{}
	targets     []netip.AddrPort // sorted
}

// newFallback returns a fallback to the endpoints of service in kube-system, else to those of
// kube-dns, which are the same where both exist. It applies them by setTargets.
func newFallback(log *slog.Logger, service string, divert func(context.Context, []netip.AddrPort) error) *fallback {
	return &fallback{log: log, setTargets: divert, services: clusterDNSServices(service), viewChanged: make(chan struct{}, 1)}
}

// clusterDNSServices returns the names of the Services that may lead to the cluster DNS: service in kube-system, and kube-dns.
func clusterDNSServices(service string) []string {
	const namespace, usual = "kube-system/", "kube-dns"
	list := []string{namespace + service}
	if service != usual {
		list = append(list, namespace+usual)
	}
	return list
}

// useView makes f follow the endpoints in g's view. A nil fallback does nothing.
func (d *fallback) useView(g *generation) {
	if d == nil {
		return
	}
	next := g.endpoints()
	if next == nil {
		d.log.Warn("no fallback while the agent is down: the endpoints of the cluster DNS are unknown; add a kubernetes directive to a server block")
	}
	d.view.Store(next)
	select {
	case d.viewChanged <- struct{}{}:
	default:
	}
}

// endpoints returns the endpoints of the first Service that has any, sorted, and channels that
// are closed when they may have changed. They include those of earlier Services without
// endpoints.
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

// waitChange waits until the endpoints may have changed. It returns false when ctx ends.
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

// applyInitial applies the endpoints that are known within initialWait. A nil fallback does
// nothing.
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

// run applies the endpoints at each change, until ctx ends. A nil fallback does nothing.
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

// update applies to, if it has changed. It ignores an empty list: the last endpoints are the
// best guess.
func (d *fallback) update(ctx context.Context, to []netip.AddrPort) {
	if len(to) == 0 || slices.Equal(to, d.targets) {
		return
	}
	d.targets = to
	if err := d.setTargets(ctx, to); err != nil && ctx.Err() == nil {
		d.log.Warn("setting the fallback to the cluster DNS failed; the next check tries again", "to", to, "err", err)
		return
	}
	d.log.Info("fallback set: without an agent, queries go to the cluster DNS", "to", to)
}
