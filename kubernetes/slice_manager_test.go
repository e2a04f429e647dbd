// Internal: drives a sliceManager without an API server.

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/kubernetes/reflector"
)

// sliceServer has an API server's EndpointSlices. Every change has a version, and the test
// decides how far each source has read.
type sliceServer struct {
	mu      sync.Mutex
	version uint64
	log     []sliceEvent
	open    []*sliceReader
}

type sliceEvent struct {
	slice *discoveryv1.EndpointSlice
	gone  bool
}

// sliceReader is one source with its position.
type sliceReader struct {
	*handler
	ctx  context.Context
	next int // of the log; -1 before the list
	at   atomic.Uint64
}

// Position implements the follower of a source.
func (s *sliceReader) Position() reflector.Position { return reflector.Position{Version: s.at.Load()} }

// reflect is a sliceManager's; it returns when ctx ends.
func (a *sliceServer) reflect(ctx context.Context, src *sliceSource) {
	s := &sliceReader{handler: &handler{view: src.view, resource: endpointSlices, source: src}, ctx: ctx, next: -1}
	src.view.mu.Lock()
	src.follower = follower{reflector: s}
	if src.saved.Version > 0 {
		s.next = int(src.saved.Version)
		s.at.Store(src.saved.Version)
	}
	src.view.mu.Unlock()
	a.mu.Lock()
	a.open = append(a.open, s)
	a.mu.Unlock()
	<-ctx.Done()
	a.mu.Lock()
	a.open = slices.DeleteFunc(a.open, func(have *sliceReader) bool { return have == s })
	a.mu.Unlock()
}

// write changes a slice; nil endpoints delete it.
func (a *sliceServer) write(es *discoveryv1.EndpointSlice, gone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	es = es.DeepCopy()
	es.ResourceVersion = fmt.Sprint(a.version)
	a.log = append(a.log, sliceEvent{es, gone})
}

// sees reports whether the source covers es.
func (s *sliceReader) sees(es *discoveryv1.EndpointSlice) bool {
	return (s.source.ns == nil || s.source.ns.label[1:] == es.Namespace) &&
		(s.source.names == nil || slices.Contains(s.source.names.names(), es.Labels[discoveryv1.LabelServiceName])) &&
		(s.source.only == anySlice || s.source.only == classOfSlice(es.Labels))
}

// advance delivers one event, or the list, to s. It reports whether there was one.
func (a *sliceServer) advance(s *sliceReader) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	if s.next < 0 {
		now := map[string]*discoveryv1.EndpointSlice{}
		for _, e := range a.log {
			delete(now, e.slice.Namespace+"/"+e.slice.Name)
			if !e.gone {
				now[e.slice.Namespace+"/"+e.slice.Name] = e.slice
			}
		}
		s.at.Store(0)
		s.BeginList()
		for _, es := range now {
			if s.sees(es) {
				s.Upsert(es, false)
			}
		}
		s.EndList(a.version)
		s.next = len(a.log)
		s.at.Store(a.version)
		return true
	}
	if s.next == len(a.log) {
		return false
	}
	e := a.log[s.next]
	before := false // was it among what s asked for?
	for _, old := range a.log[:s.next] {
		if old.slice.Namespace == e.slice.Namespace && old.slice.Name == e.slice.Name {
			before = !old.gone && s.sees(old.slice)
		}
	}
	s.next++
	switch {
	case !e.gone && s.sees(e.slice):
		s.Upsert(e.slice, true)
	case before:
		s.Delete(e.slice)
	}
	s.at.Store(uint64(s.next))
	return true
}

// drain brings all sources up to date.
func (a *sliceServer) drain() {
	for again := true; again; {
		a.mu.Lock()
		open := slices.Clone(a.open)
		a.mu.Unlock()
		again = false
		for _, s := range open {
			again = a.advance(s) || again
		}
	}
}

// sliceLab is a view whose sliceManager uses a sliceServer.
type sliceLab struct {
	*testing.T
	view *View
	zone *Zone
	api  *sliceServer
	keep *sliceManager
	ctx  context.Context
}

func newLab(t *testing.T, change func(*config.Kubernetes)) *sliceLab {
	cfg := testConfig(t)
	cfg.Manifests = nil
	cfg.Fallthrough = nil
	change(cfg)
	v := newView(Options{Now: testClock})
	v.scope, v.node = newScope(cfg), "n1"
	for i := range v.listed {
		v.listed[i].Store(true)
	}
	ctx, cancel := context.WithCancel(t.Context())
	l := &sliceLab{T: t, view: v, zone: NewZone(v, cfg), api: &sliceServer{}, ctx: ctx}
	l.keep = &sliceManager{view: v, reflect: l.api.reflect}
	t.Cleanup(func() {
		cancel()
		l.keep.reflectors.Wait()
	})
	return l
}

// reconcile runs the sliceManager until it has nothing to do, and brings the sources up to
// date.
func (l *sliceLab) reconcile() {
	l.keep.reconcile(l.ctx)
	l.awaitSynced()
	l.api.drain()
	l.keep.reconcile(l.ctx)
	l.api.drain()
}

// awaitSynced waits until the sliceServer has exactly the sliceManager's sources.
func (l *sliceLab) awaitSynced() {
	kept := slices.Collect(maps.Values(l.keep.sources))
	for !l.api.readsFor(kept) {
		time.Sleep(time.Millisecond)
	}
}

// readsFor reports whether the open streams are those of kept.
func (a *sliceServer) readsFor(kept []*sliceSource) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, src := range kept {
		if !slices.ContainsFunc(a.open, func(s *sliceReader) bool { return s.source == src }) {
			return false
		}
	}
	return len(a.open) == len(kept)
}

// idle lets scope_idle pass.
func (l *sliceLab) idle() { l.view.scope.tick.Add(idleTicks + 1) }

func (l *sliceLab) service(ns, name string, selects bool) {
	s := makeService(ns, name, "None")
	if selects {
		s.Spec.Selector = map[string]string{"app": name}
	}
	handlerFixture{l.view, services}.put(s)
}

// slice adds a slice to the service of that name; labelled adds the headless label.
func (l *sliceLab) slice(ns, name string, labelled bool, addrs ...string) {
	class := foreignSlice
	if labelled {
		class = headlessSlice
	}
	l.sliceOf(class, ns, name, "1", addrs...)
}

// sliceOf adds a slice of that class, and with that suffix, to the service of that name.
func (l *sliceLab) sliceOf(class sliceClass, ns, name, suffix string, addrs ...string) {
	l.Helper()
	es := makeSlice(ns, name, name+"-"+suffix, addrs...)
	if class != foreignSlice {
		es.Labels[discoveryv1.LabelManagedBy] = sliceController
	}
	if class == headlessSlice {
		es.Labels[corev1.IsHeadlessService] = ""
	}
	l.api.write(es, false)
}

// addrs returns the addresses of the name, "?" if it is incomplete, "-" if it does not
// exist.
func (l *sliceLab) addrs(name string) string {
	l.Helper()
	msg, outcome, _ := ask(l, l.zone, name, dns.TypeA)
	switch {
	case outcome == Incomplete:
		return "?"
	case outcome != Answered:
		l.Fatalf("%s: outcome %d", name, outcome)
	}
	if msg.Rcode == dns.RcodeNameError {
		return "-"
	}
	var list []string
	for _, rr := range msg.Answer {
		list = append(list, rr.(*dns.A).A.String())
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

func (l *sliceLab) want(name, addrs string) {
	l.Helper()
	if got := l.addrs(name); got != addrs {
		l.Errorf("%s: %q, want %q", name, got, addrs)
	}
}

// sources returns the current sources: those of levelWide as "wide", of single Services their namespaces, and of whole namespaces these with a star.
func (l *sliceLab) sources() string {
	var cluster, local []string
	for key, src := range l.keep.sources {
		if src.names != nil {
			for service := range src.names {
				local = append(local, namespaceOf(service)[1:])
			}
		} else if key == allSource || slices.Contains(wideSources, key) {
			cluster = append(cluster, map[bool]string{true: "all", false: "wide"}[key == allSource])
		} else {
			local = append(local, key[1:]+"*")
		}
	}
	slices.Sort(cluster)
	cluster = slices.Compact(cluster)
	slices.Sort(local)
	return strings.Join(append(cluster, slices.Compact(local)...), " ")
}

func (l *sliceLab) wantSources(want string) {
	l.Helper()
	if got := l.sources(); got != want {
		l.Errorf("sources %q, want %q", got, want)
	}
}

// A query brings a namespace into view; without queries it is dropped.
func TestScopeByQuery(t *testing.T) {
	l := newLab(t, func(*config.Kubernetes) {})
	l.service("a", "db", true)
	l.service("b", "db", true)
	l.slice("a", "db", true, "10.1.0.1")
	l.slice("b", "db", true, "10.1.0.2")
	handlerFixture{l.view, services}.put(makeService("a", "web", "10.0.0.1"))
	l.reconcile()
	l.wantSources("")
	l.want("web.a.svc.cluster.local", "10.0.0.1")
	l.want("none.a.svc.cluster.local", "-")
	l.reconcile()
	l.wantSources("") // a cluster IP needs no slices
	l.want("db.a.svc.cluster.local", "?")
	l.want("db.a.svc.cluster.local", "?")
	l.reconcile()
	l.wantSources("a")
	l.want("db.a.svc.cluster.local", "10.1.0.1")
	l.want("db.b.svc.cluster.local", "?")
	l.slice("a", "db", true, "10.1.0.3")
	l.api.drain()
	l.want("db.a.svc.cluster.local", "10.1.0.3")
	l.reconcile()
	l.idle()
	l.want("db.b.svc.cluster.local", "10.1.0.2")
	l.reconcile()
	l.wantSources("b")
	l.want("db.a.svc.cluster.local", "?")
	count(t, len(l.view.index.slices), 1, "slices are kept")
}

// The namespace of a pod of this node is in view before any query.
func TestScopeByPod(t *testing.T) {
	l := newLab(t, func(*config.Kubernetes) {})
	l.service("a", "db", true)
	l.slice("a", "db", true, "10.1.0.1")
	other := makePod("b", "p", "10.1.0.9")
	other.Spec.NodeName = "n2"
	handlerFixture{l.view, pods}.put(other)
	handlerFixture{l.view, pods}.put(makePod("c", "p")) // where no service needs slices
	handlerFixture{l.view, pods}.put(makePod("a", "p"))
	l.reconcile()
	l.wantSources("a")
	l.want("db.a.svc.cluster.local", "10.1.0.1")
	l.idle()
	l.reconcile()
	l.wantSources("a")
	handlerFixture{l.view, pods}.drop(makePod("a", "p"))
	l.idle()
	l.reconcile()
	l.wantSources("")
}

// Services with unlabelled slices have all their endpoints at every level.
func TestScopeUnlabelledSlices(t *testing.T) {
	for name, change := range map[string]func(*config.Kubernetes){
		"node": func(*config.Kubernetes) {},
		"wide": func(c *config.Kubernetes) { c.Scope = config.ScopeCluster },
		"all":  func(c *config.Kubernetes) { c.Scope, c.AllEndpoints = config.ScopeCluster, true },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, change)
			l.service("a", "bare", false)
			l.slice("a", "bare", false, "10.1.0.1")
			l.service("b", "mirrored", true)
			l.slice("b", "mirrored", false, "10.1.0.2")
			l.service("c", "plain", true)
			l.slice("c", "plain", true, "10.1.0.3")
			for _, n := range []string{"bare.a", "mirrored.b", "plain.c"} {
				_ = l.addrs(n + ".svc.cluster.local")
				l.reconcile()
				l.reconcile()
			}
			l.want("bare.a.svc.cluster.local", "10.1.0.1")
			l.want("mirrored.b.svc.cluster.local", "10.1.0.2")
			l.want("plain.c.svc.cluster.local", "10.1.0.3")
			want := map[string]string{"node": "a b c", "wide": "wide a* b*", "all": "all"}[name]
			l.wantSources(want)
		})
	}
}

// A headless Service has the endpoints of all its slices at every level, also of those that
// something other than the slice controller has added.
func TestScopeForeignSlice(t *testing.T) {
	for name, change := range map[string]func(*config.Kubernetes){
		"node":           func(*config.Kubernetes) {},
		"wide":           func(c *config.Kubernetes) { c.Scope = config.ScopeCluster },
		"wide by others": func(c *config.Kubernetes) { c.ScopeMax = 1 },
		"all":            func(c *config.Kubernetes) { c.Scope, c.AllEndpoints = config.ScopeCluster, true },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, change)
			for _, ns := range []string{"a", "b", "c"} {
				l.service(ns, "db", true)
				l.sliceOf(headlessSlice, ns, "db", "1", "10.1.0.1")
				l.sliceOf(foreignSlice, ns, "db", "2", "10.1.0.2")
				_ = l.addrs("db." + ns + ".svc.cluster.local")
			}
			handlerFixture{l.view, services}.put(makeService("a", "web", "10.0.0.1"))
			l.sliceOf(anySlice, "a", "web", "1", "10.1.0.3")
			l.reconcile()
			l.reconcile()
			l.want("db.a.svc.cluster.local", "10.1.0.1 10.1.0.2")
			l.sliceOf(foreignSlice, "a", "db", "3", "10.1.0.4")
			l.api.drain()
			l.want("db.a.svc.cluster.local", "10.1.0.1 10.1.0.2 10.1.0.4")
			l.api.write(makeSlice("a", "db", "db-1"), true)
			l.api.write(makeSlice("a", "db", "db-3"), true)
			l.api.drain()
			_ = l.addrs("db.a.svc.cluster.local") // none has the label now
			l.reconcile()
			l.want("db.a.svc.cluster.local", "10.1.0.2")
			if strings.HasPrefix(name, "wide") {
				if l.view.index.slices["a/web-1"] != nil && !strings.HasSuffix(l.sources(), "a*") {
					t.Error("a slice of a Service with a cluster IP is in view")
				}
			}
		})
	}
}

// With more namespaces in use than scope_max the view changes to the wide level, and back,
// without ever hiding a known name.
func TestScopeMax(t *testing.T) {
	l := newLab(t, func(c *config.Kubernetes) { c.ScopeMax = 4 })
	var names []string
	for i := range 6 {
		ns := fmt.Sprintf("ns%d", i)
		l.service(ns, "db", true)
		l.slice(ns, "db", true, fmt.Sprintf("10.1.0.%d", i))
		names = append(names, "db."+ns+".svc.cluster.local")
	}
	check := func(n int) {
		t.Helper()
		for i, name := range names[:n] {
			l.want(name, fmt.Sprintf("10.1.0.%d", i))
		}
	}
	for i, name := range names {
		l.want(name, map[bool]string{true: "?", false: fmt.Sprintf("10.1.0.%d", i)}[i <= 4])
		check(i)
		l.keep.reconcile(l.ctx)
		check(i)
		l.awaitSynced()
		check(i)
		l.reconcile()
		check(i + 1)
	}
	l.wantSources("wide")
	l.idle()
	check(3) // more than half of what brought it about
	l.reconcile()
	l.wantSources("wide")
	l.idle()
	check(2)
	l.keep.reconcile(l.ctx)
	l.wantSources("wide ns0 ns1")
	check(2)
	l.reconcile()
	l.wantSources("ns0 ns1")
	check(2)
	count(t, len(l.view.index.slices), 2, "slices are kept")
}

// A deleted namespace is not watched any more, and its names disappear.
func TestScopeNamespaceGone(t *testing.T) {
	l := newLab(t, func(*config.Kubernetes) {})
	l.service("a", "db", false)
	_ = l.addrs("db.a.svc.cluster.local")
	l.reconcile()
	l.wantSources("a")
	handlerFixture{l.view, services}.drop(makeService("a", "db", "None"))
	l.want("a.svc.cluster.local", "-")
	l.reconcile()
	l.wantSources("")
	count(t, len(l.view.index.namespaces), 0, "namespaces are left")
}

// Reverse names of endpoints are known if the address belongs to a pod of this node, or if
// all slices are in view, which Await brings about.
func TestScopeReverse(t *testing.T) {
	l := newLab(t, func(*config.Kubernetes) {})
	l.service("a", "db", true)
	l.slice("a", "db", true, "10.1.0.1", "10.1.0.2")
	handlerFixture{l.view, services}.put(makeService("a", "web", "10.0.0.1"))
	handlerFixture{l.view, pods}.put(makePod("a", "p", "10.1.0.1"))
	l.reconcile()
	check := func(name string, want Outcome) {
		t.Helper()
		if _, got, _ := ask(t, l.zone, name, dns.TypePTR); got != want {
			t.Errorf("%s: outcome %d, want %d", name, got, want)
		}
	}
	check("1.0.0.10.in-addr.arpa", Answered)
	l.wantSources("a")
	check("1.0.1.10.in-addr.arpa", Incomplete)
	q := parsed(t, "1.0.1.10.in-addr.arpa", dns.TypePTR)
	l.view.requestWholeCluster(l.zone.lookup(q.Name(), l.zone.origin(q.Name()), nil))
	l.reconcile()
	l.wantSources("a a*")
	check("1.0.1.10.in-addr.arpa", Answered)
	check("2.0.1.10.in-addr.arpa", Incomplete)
	check("9.9.9.9.in-addr.arpa", Incomplete)
	q = parsed(t, "2.0.1.10.in-addr.arpa", dns.TypePTR)
	waited := make(chan error)
	go func() { waited <- l.zone.Await(l.ctx, &q) }()
	for l.view.scope.reverseUsed.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	l.reconcile()
	noError(t, <-waited)
	l.wantSources("all")
	check("2.0.1.10.in-addr.arpa", Answered)
	check("9.9.9.9.in-addr.arpa", Answered)
	l.idle()
	l.reconcile()
	l.wantSources("a")
}

// Await ends with its context.
func TestAwaitEnds(t *testing.T) {
	l := newLab(t, func(*config.Kubernetes) {})
	l.service("a", "db", true)
	q := parsed(t, "db.a.svc.cluster.local", dns.TypeA)
	ctx, cancel := context.WithCancel(l.ctx)
	cancel()
	if err := l.zone.Await(ctx, &q); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// Whatever the queries, the changes and the order in which sources deliver them: every
// answer was true at some time since the state that the slowest source knows, and once all
// is quiet, every name that is queried twice has its answer.
func TestScopeNeverGuesses(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 3))
		onlyNames := seed%3 == 0 // then no answer is older than the one before
		l := newLab(t, func(c *config.Kubernetes) {
			c.ScopeMax = 1 + rng.IntN(3)
			if onlyNames {
				c.ScopeMax = 10
			} else if rng.IntN(4) == 0 {
				c.Scope = config.ScopeCluster
			}
		})
		const many = 9
		truth := map[string][]string{} // what each name has been, the last one now
		seen := map[string]int{}       // how far an answer has been, if a watch was all it took
		service := func(i int) string { return []string{"db", "web"}[i%2] }
		space := func(i int) string { return fmt.Sprintf("ns%d", i/2) }
		name := func(i int) string { return service(i) + "." + space(i) + ".svc.cluster.local" }
		for i := range many {
			l.service(space(i), service(i), rng.IntN(2) == 0)
			truth[name(i)] = []string{"-"}
		}
		for n := range 150 {
			i := rng.IntN(many)
			ns := space(i)
			switch rng.IntN(9) {
			case 0:
				addr := fmt.Sprintf("10.%d.%d.%d", i, n, rng.IntN(250))
				l.slice(ns, service(i), rng.IntN(2) == 0, addr)
				truth[name(i)] = append(truth[name(i)], addr)
			case 1:
				l.api.write(makeSlice(ns, service(i), service(i)+"-1"), true)
				truth[name(i)] = append(truth[name(i)], "-")
			case 8:
				l.view.scope.tick.Add(1) // sources of names are merged
			case 2:
				l.keep.reconcile(l.ctx)
				l.awaitSynced()
			case 3:
				if rng.IntN(5) == 0 {
					l.idle()
				}
			case 4, 5:
				l.awaitSynced()
				l.api.mu.Lock()
				var s *sliceReader
				if n := len(l.api.open); n > 0 {
					s = l.api.open[rng.IntN(n)]
				}
				l.api.mu.Unlock()
				if s != nil {
					l.api.advance(s)
				}
			default:
				got := l.addrs(name(i))
				at := slices.Index(truth[name(i)][seen[name(i)]:], got)
				if got != "?" && at < 0 && (onlyNames || !slices.Contains(truth[name(i)], got)) {
					t.Fatalf("seed %d: %s: %q, which it never was since %d: %q", seed, name(i), got, seen[name(i)], truth[name(i)])
				}
				if onlyNames && got != "?" {
					seen[name(i)] += at
				}
			}
		}
		for i := range many {
			_ = l.addrs(name(i))
			l.reconcile()
			l.reconcile()
			was := truth[name(i)]
			if got := l.addrs(name(i)); got != was[len(was)-1] {
				t.Fatalf("seed %d: %s: %q at the end, want %q (sources %s)", seed, name(i), got, was[len(was)-1], l.sources())
			}
		}
	}
}

// back puts the server back to the state after its nth event; every source lists again.
func (a *sliceServer) back(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.log, a.version = a.log[:n], uint64(n)
}

// Whatever the sources, versions that were set back keep no slice from before: each source is
// told, and lists again, in any order, while others still deliver what was before.
func TestScopeSetBack(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 4))
		l := newLab(t, func(c *config.Kubernetes) {
			if seed%2 == 0 {
				c.Scope = config.ScopeCluster
			}
		})
		truth := map[string]string{}
		change := func() {
			i := rng.IntN(3)
			ns := fmt.Sprintf("ns%d", i)
			addr := fmt.Sprintf("10.1.%d.%d", i, rng.IntN(250))
			l.sliceOf([]sliceClass{headlessSlice, foreignSlice}[rng.IntN(2)], ns, "db", "1", addr)
			truth["db."+ns+".svc.cluster.local"] = addr
		}
		for i := range 3 {
			l.service(fmt.Sprintf("ns%d", i), "db", true)
			truth[fmt.Sprintf("db.ns%d.svc.cluster.local", i)] = "-"
		}
		settle := func() {
			t.Helper()
			for name := range truth {
				_ = l.addrs(name)
				l.reconcile()
				l.reconcile()
			}
		}
		for range 10 {
			change()
		}
		settle()
		kept, backup := len(l.api.log), maps.Clone(truth)
		for range 30 {
			change()
		}
		settle()
		old := len(l.api.log)
		for range 5 { // which some of the sources have not read yet
			change()
		}
		l.api.mu.Lock()
		open := slices.Clone(l.api.open)
		l.api.mu.Unlock()
		late := open[rng.IntN(len(open))]
		l.api.advance(late)
		l.view.noteSetBack(reflector.SetBack{Resource: "endpointslices", Seen: uint64(old), Listed: uint64(kept)})
		l.api.advance(late) // an event of before, after it was told
		l.api.back(kept)
		truth = backup
		for range rng.IntN(3) {
			change()
		}
		rng.Shuffle(len(open), func(i, j int) { open[i], open[j] = open[j], open[i] })
		for _, s := range open {
			s.next = -1
			l.api.advance(s)
			if rng.IntN(2) == 0 {
				change()
			}
		}
		settle()
		for name, want := range truth {
			if got := l.addrs(name); got != want {
				t.Fatalf("seed %d: %s is %q, want %q (sources %s)", seed, name, got, want, l.sources())
			}
		}
	}
}

// TestSourcesDeliverTogether: a slice that two sources deliver at the same time gets into view.
func TestSourcesDeliverTogether(t *testing.T) {
	v := emptyView()
	handlers := make([]*handler, 2)
	for i := range handlers {
		src := &sliceSource{view: v, complete: true}
		v.index.sources = append(v.index.sources, src)
		handlers[i] = &handler{view: v, resource: endpointSlices, source: src}
	}
	for i := range 20_000 {
		es := makeSlice("a", fmt.Sprint("web-", i), "web", "10.1.0.1")
		es.ResourceVersion = fmt.Sprint(i + 1)
		start := make(chan struct{})
		var both sync.WaitGroup
		for _, h := range handlers {
			both.Go(func() {
				<-start
				h.Upsert(es.DeepCopy(), true)
			})
		}
		close(start)
		both.Wait()
		if v.index.slices[objectKey("a", es.Name)] == nil {
			t.Fatalf("slice %d is missing", i)
		}
	}
}
