// Internal: drives the sources of single Services.

package kubernetes

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/kubernetes/reflector"
)

// nameSets returns how many sources of single Services there are, and for how many Services.
func (l *sliceLab) nameSets() (sources, services int) {
	for _, src := range l.keep.sources {
		if src.names != nil {
			sources++
			services += len(src.names)
		}
	}
	return sources, services
}

// askInTurn makes a Service db in each namespace, and asks for one after the other, so that each has a source of its own.
func (l *sliceLab) askInTurn(namespaces ...string) {
	for _, ns := range namespaces {
		l.service(ns, "db", true)
		l.slice(ns, "db", true, "10.1.0.1")
		_ = l.addrs("db." + ns + ".svc.cluster.local")
		l.reconcile()
	}
}

// Services that come into use get sources, which a tick makes one that goes on without a list, and no answer goes back to what has been.
func TestNameSourcesMerge(t *testing.T) {
	l := newLab(t, func(*config.Kubernetes) {})
	const most = maxNameSources - 1
	for i := range most {
		ns := fmt.Sprintf("ns%d", i)
		l.service(ns, "db", true)
		l.slice(ns, "db", true, fmt.Sprintf("10.1.0.%d", i))
		_ = l.addrs("db." + ns + ".svc.cluster.local")
		l.reconcile()
		if sources, services := l.nameSets(); sources != i+1 || services != i+1 {
			t.Errorf("%d sources of %d Services, want %d", sources, services, i+1)
		}
	}
	behind := l.keep.sources[namesPrefix+"2"]
	l.slice("ns1", "db", true, "10.1.1.1")
	l.slice("ns0", "db", true, "10.1.1.0")
	l.slice("ns0", "db", true, "10.1.2.0")
	for _, s := range l.api.open { // all but one have all
		for s.source != behind && l.api.advance(s) {
		}
	}
	l.want("db.ns0.svc.cluster.local", "10.1.2.0")
	l.view.scope.tick.Add(1)
	l.keep.reconcile(l.ctx)
	l.awaitSynced()
	if sources, services := l.nameSets(); sources != 1 || services != most {
		t.Fatalf("%d sources of %d Services, want 1 of %d", sources, services, most)
	}
	l.want("db.ns1.svc.cluster.local", "10.1.0.1")
	merged := l.api.open[0]
	if merged.next < 0 {
		t.Fatal("the source lists")
	}
	for l.api.advance(merged) {
		l.want("db.ns0.svc.cluster.local", "10.1.2.0")
	}
	l.want("db.ns1.svc.cluster.local", "10.1.1.1")
	l.api.write(makeSlice("ns0", "db", "db-1"), true)
	l.api.drain()
	l.want("db.ns0.svc.cluster.local", "-")
}

// While the API server is away, Services that come into use don't pile up sources.
func TestNameSourcesWithoutServer(t *testing.T) {
	l := newLab(t, func(*config.Kubernetes) {})
	for i := range 30 {
		ns := fmt.Sprintf("ns%d", i)
		l.service(ns, ns, true)
		_ = l.addrs(ns + "." + ns + ".svc.cluster.local")
		l.keep.reconcile(l.ctx)
		if sources, services := l.nameSets(); sources > maxNameSources || services != i+1 {
			t.Fatalf("%d sources of %d Services, want %d", sources, services, i+1)
		}
	}
}

// A set of Services is divided so that each selector fits into a URL. Beyond that the view is wide.
func TestServiceSetPack(t *testing.T) {
	name := func(i int) string { return fmt.Sprintf("%s-%03d", strings.Repeat("x", 50), i) }
	set := serviceSet{}
	for i := range 200 {
		for _, ns := range []string{"a", "b"} {
			key, _ := serviceKey(name(i), ns)
			set[key] = struct{}{}
		}
	}
	total := 0
	for _, part := range set.pack() {
		total += len(part)
		if n := part.selectorBytes(); n > maxSelectorBytes {
			t.Errorf("the names of a source take %d bytes", n)
		}
	}
	count(t, total, 400, "Services")
	count(t, len(set.pack()), 3, "sources")

	l := newLab(t, func(*config.Kubernetes) {})
	for i := range 300 {
		l.service("a", name(i), true)
		_ = l.addrs(name(i) + ".a.svc.cluster.local")
	}
	l.reconcile()
	l.wantSources("wide a*") // no slice has the headless label
}

// A source of single Services gets the slices of Services of the same name, too, and ignores them; a slice whose label changes from one of its Services to
// such a one disappears.
func TestNameSourceIgnoresOthers(t *testing.T) {
	l := newLab(t, func(*config.Kubernetes) {})
	l.service("a", "db", true)
	l.service("b", "db", true)
	l.service("a", "web", true)
	l.service("b", "web", true)
	l.slice("a", "db", true, "10.1.0.1")
	l.slice("b", "db", true, "10.1.0.2")
	for _, name := range []string{"db.a", "web.b"} {
		_ = l.addrs(name + ".svc.cluster.local")
	}
	l.reconcile()
	count(t, len(l.view.index.slices), 1, "slices")
	l.want("db.a.svc.cluster.local", "10.1.0.1")
	moved := makeSlice("a", "web", "db-1", "10.1.0.1")
	l.api.write(moved, false)
	l.api.drain()
	l.want("db.a.svc.cluster.local", "-")
	l.want("web.a.svc.cluster.local", "?")
	count(t, len(l.view.index.slices), 0, "slices")
	l.reconcile()
	l.want("web.a.svc.cluster.local", "10.1.0.1")
}

// After versions were set back, a source that goes on from others takes what it gets.
func TestNameSourceSetBack(t *testing.T) {
	l := newLab(t, func(*config.Kubernetes) {})
	l.askInTurn("ns0", "ns1")
	for i := range 9 {
		l.slice("ns0", "db", true, fmt.Sprintf("10.1.1.%d", i))
	}
	l.api.advance(l.api.open[0])
	l.view.scope.tick.Add(1)
	l.keep.reconcile(l.ctx)
	l.awaitSynced()
	merged := l.api.open[0]
	l.view.noteSetBack(reflector.SetBack{Resource: "endpointslices", Seen: 11, Listed: 2})
	l.api.back(2)
	merged.next = -1
	l.slice("ns0", "db", true, "10.1.2.1")
	l.api.drain()
	l.want("db.ns0.svc.cluster.local", "10.1.2.1")
	l.slice("ns0", "db", true, "10.1.2.2")
	l.api.drain()
	l.want("db.ns0.svc.cluster.local", "10.1.2.2")
}

// A name that Services of many namespaces have, such as one for each tenant, is watched by namespace.
func TestNameSourcesOfCommonNames(t *testing.T) {
	l := newLab(t, func(*config.Kubernetes) {})
	for i := range maxNamesakes {
		ns := fmt.Sprintf("ns%02d", i)
		l.service(ns, "db", true)
		l.slice(ns, "db", true, "10.1.0.1")
	}
	_ = l.addrs("db.ns00.svc.cluster.local")
	l.reconcile()
	l.wantSources("ns00")
	l.service("other", "db", true)
	_ = l.addrs("db.other.svc.cluster.local")
	l.reconcile()
	l.wantSources("ns00* other*")
	l.want("db.ns00.svc.cluster.local", "10.1.0.1")
	l.want("db.other.svc.cluster.local", "-")
}

// A view that is saved while a source gets again what has been in view goes on there, and no answer goes back either.
func TestNameSourceSaved(t *testing.T) {
	l := newLab(t, func(*config.Kubernetes) {})
	l.askInTurn("a", "b")
	l.slice("a", "db", true, "10.1.0.2")
	l.slice("a", "db", true, "10.1.0.3")
	for l.api.advance(l.api.open[0]) {
	}
	l.view.scope.tick.Add(1)
	l.keep.reconcile(l.ctx)
	l.awaitSynced()

	next := newLab(t, func(*config.Kubernetes) {})
	next.api, next.keep.reflect = l.api, l.api.reflect
	_, records := savedView{l.view}.savedRecords()
	for _, record := range records {
		r := record()
		noError(t, r.check())
		savedView{next.view}.putRecord(&r)
	}
	l.api.open = nil
	next.view.mu.Lock()
	next.view.index.recompute()
	next.view.mu.Unlock()
	next.want("db.a.svc.cluster.local", "10.1.0.3")
	next.keep.reconcile(next.ctx)
	next.awaitSynced()
	for next.api.advance(next.api.open[0]) {
		next.want("db.a.svc.cluster.local", "10.1.0.3")
	}
	next.slice("a", "db", true, "10.1.0.4")
	next.api.drain()
	next.want("db.a.svc.cluster.local", "10.1.0.4")
	next.want("db.b.svc.cluster.local", "10.1.0.1")
	if s := next.api.open[0]; s.next < 5 || len(next.api.open) != 1 {
		t.Errorf("%d sources, the first at event %d", len(next.api.open), s.next)
	}
}

// A source that gets further after another one has been told to go on from there, and before it ends, takes no answer back either.
func TestNameSourceGetsFurther(t *testing.T) {
	l := newLab(t, func(*config.Kubernetes) {})
	l.askInTurn("a", "b")
	l.view.scope.tick.Add(1)
	desired := l.keep.desiredSources(true)
	l.keep.startSources(l.ctx, desired)
	l.awaitSynced()
	l.slice("a", "db", true, "10.1.0.2")
	l.slice("a", "db", true, "10.1.0.3")
	for _, s := range l.api.open {
		for s.source.key != desired[0] && l.api.advance(s) {
		}
	}
	l.want("db.a.svc.cluster.local", "10.1.0.3")
	l.keep.stopSources(desired, func(*sliceSource) bool { return true })
	l.awaitSynced()
	for l.api.advance(l.api.open[0]) {
		l.want("db.a.svc.cluster.local", "10.1.0.3")
	}
	l.slice("a", "db", true, "10.1.0.4")
	l.api.drain()
	l.want("db.a.svc.cluster.local", "10.1.0.4")
}
