// Internal: feeds handlers and reads the epochs.

package kubernetes

import (
	"path/filepath"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/file"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Each kind of change invalidates the copies that it affects, and no others.
func TestMarks(t *testing.T) {
	const web, db = "web.a.svc.cluster.local", "db.a.svc.cluster.local"
	svc := func(v *View) handlerFixture { return handlerFixture{v, services} }
	eps := func(v *View) handlerFixture { return handlerFixture{v, endpointSlices} }
	for name, c := range map[string]struct {
		change           func(*View)
		web, db, missing bool // whether copies are good afterwards
	}{
		"nothing":                   {func(*View) {}, true, true, true},
		"the same Service":          {func(v *View) { svc(v).put(makeService("a", "web", "10.0.0.1")) }, true, true, true},
		"the same list":             {func(v *View) { svc(v).list(makeService("a", "web", "10.0.0.1"), makeService("a", "db", "None")) }, true, true, true},
		"a Service":                 {func(v *View) { svc(v).put(makeService("a", "web", "10.0.0.2")) }, false, true, true},
		"a Service that goes":       {func(v *View) { svc(v).drop(makeService("a", "web", "")) }, false, true, true},
		"another Service":           {func(v *View) { svc(v).put(makeService("a", "new", "10.0.0.3")) }, true, true, true},
		"the one that is not there": {func(v *View) { svc(v).put(makeService("a", "nope", "10.0.0.9")) }, true, true, false},
		"a slice":                   {func(v *View) { eps(v).put(makeSlice("a", "db", "db-1", "10.1.0.2")) }, true, false, true},
		"a slice that goes":         {func(v *View) { eps(v).drop(makeSlice("a", "db", "db-1")) }, true, false, true},
		"a slice that moves on":     {func(v *View) { eps(v).put(makeSlice("a", "web", "db-1", "10.1.0.2")) }, false, false, true},
		"a pod":                     {func(v *View) { handlerFixture{v, pods}.put(makePod("a", "p", "10.1.0.1")) }, true, true, true},
		"a namespace": {func(v *View) {
			handlerFixture{v, namespaces}.put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "new"}})
		}, true, true, true},
		"a namespace that goes": {func(v *View) { handlerFixture{v, namespaces}.list() }, false, false, false},
		"an empty one that goes": {func(v *View) {
			handlerFixture{v, namespaces}.drop(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "empty"}})
		}, true, true, true},
		"less in view": {func(v *View) { v.setLevel(levelNode) }, false, false, true},
		"an import":    {func(v *View) { v.putImport(testImport("web", "Headless", nil), &faults{}) }, true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			counters := newCountersOf(20)
			v := counters.newView(emptyView())
			for _, ns := range []string{"a", "empty"} {
				handlerFixture{v, namespaces}.put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
			}
			svc(v).put(makeService("a", "web", "10.0.0.1"))
			svc(v).put(makeService("a", "db", "None"))
			eps(v).put(makeSlice("a", "db", "db-1", "10.1.0.1"))
			z := NewZone(v, testConfig(t))
			var kept []copied
			for _, name := range []string{web, db, "nope.a.svc.cluster.local"} {
				k, ok := counters.copy(t, z, name, dns.TypeA)
				if !ok {
					t.Fatalf("no copy of %s", name)
				}
				kept = append(kept, k)
			}
			c.change(v)
			for i, want := range []bool{c.web, c.db, c.missing} {
				if got := counters.isCurrent(kept[i].mark); got != want {
					t.Errorf("the copy of %s is good: %v, want %v", kept[i].name, got, want)
				}
			}
		})
	}
}

// Copies that depend on a Namespace become invalid with it.
func TestMarksOfNamespaces(t *testing.T) {
	a := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	verified := testConfig(t)
	verified.Pods = config.PodsVerified
	listed := multiclusterConfig(t)
	listed.NamespaceLabels = "a=b"
	for name, c := range map[string]struct {
		cfg    *config.Kubernetes
		qname  string
		qtype  uint16
		change func(*View)
	}{
		"a pod that goes": {verified, "10-1-0-1.default.pod.cluster.local", dns.TypeA, func(v *View) {
			handlerFixture{v, pods}.drop(makePod("default", "p"))
		}},
		"one that is hidden": {listed, "web.default.svc.clusterset.local", dns.TypeA, func(v *View) { handlerFixture{v, namespaces}.drop(a) }},
		"a source that ends": {verified, arpa("10.1.0.1"), dns.TypePTR, func(v *View) {
			v.change(func(x *index) bool {
				x.closeSource(&sliceSource{ns: x.namespaces["\x07default"]})
				return false
			})
		}},
		"the end of what was saved": {verified, arpa("10.1.0.1"), dns.TypePTR, func(v *View) {
			k := sliceManager{view: v, sources: map[string]*sliceSource{allSource: {}}} // which has the slice
			k.dropRestored()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			counters := newCounters()
			v := counters.newView(emptyView())
			v.setLevel(levelNode)
			v.node = "n1"
			z := NewZone(v, c.cfg)
			if c.cfg == listed {
				v.putImport(testImport("web", "ClusterSetIP", nil, "10.240.0.1"), &faults{})
			} else {
				handlerFixture{v, pods}.put(makePod("default", "p", "10.1.0.1"))
				handlerFixture{v, services}.put(makeService("default", "db", "10.0.0.1"))
				handlerFixture{v, endpointSlices}.put(makeSlice("default", "db", "db-1", "10.1.0.1"))
				v.index.namespaces["\x07default"].complete = true
			}
			handlerFixture{v, namespaces}.put(a)
			k, ok := counters.copy(t, z, c.qname, c.qtype)
			if !ok || len(unpacked(t, k.reply).Answer) == 0 {
				t.Fatalf("no copy: %v", unpacked(t, k.reply))
			}
			c.change(v)
			if m, outcome, _ := ask(t, z, c.qname, c.qtype); outcome == Answered && len(m.Answer) > 0 {
				t.Fatalf("it is still answered: %v", m)
			}
			if counters.isCurrent(k.mark) {
				t.Error("the copy is good")
			}
		})
	}
}

// There are no marks for what is not, or not only, an answer of the zone.
func TestNoMark(t *testing.T) {
	c := newCounters()
	v := c.newView(emptyView())
	for name, target := range map[string]string{"out": "example.com", "in": "web.a.svc.cluster.local", "loop": "loop.a.svc.cluster.local"} {
		s := makeService("a", name, "")
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, target
		handlerFixture{v, services}.put(s)
	}
	handlerFixture{v, services}.put(makeService("a", "web", "10.0.0.1"))
	handlerFixture{v, services}.put(makeService("b", "db", "None"))
	v.setLevel(levelNode)
	cfg := testConfig(t)
	cfg.Fallthrough = &config.Fallthrough{Zones: names(t, "in-addr.arpa")}
	z := NewZone(v, cfg)
	for _, k := range []struct {
		name  string
		qtype uint16
		want  bool
	}{
		{"web.a.svc.cluster.local", dns.TypeA, true},
		{"out.a.svc.cluster.local", dns.TypeA, false},
		{"out.a.svc.cluster.local", dns.TypeCNAME, true},
		{"in.a.svc.cluster.local", dns.TypeA, true},
		{"loop.a.svc.cluster.local", dns.TypeA, true}, // no data
		{"db.b.svc.cluster.local", dns.TypeA, false},  // elsewhere
		{"nope.a.svc.cluster.local", dns.TypeA, true},
		{"9.9.9.9.in-addr.arpa", dns.TypePTR, false},
		{"example.com", dns.TypeA, false},
		{"cluster.local", dns.TypeSOA, true},
		{"cluster.local", dns.TypeAXFR, false},
	} {
		if _, ok := c.copy(t, z, k.name, k.qtype); ok != k.want {
			t.Errorf("%s %s: a mark is %v, want %v", k.name, dns.TypeToString[k.qtype], ok, k.want)
		}
	}
	v.listed[services].Store(false)
	if _, ok := c.copy(t, z, "nope.a.svc.cluster.local", dns.TypeA); ok {
		t.Error("a mark of what is not certain")
	}
	v.index.epochs = nil
	if _, ok := NewZone(v, cfg).Mark(new(wire.Query), new(wire.Reply), nil); ok {
		t.Error("a mark without epochs")
	}
}

// Events after the start from a saved view invalidate copies.
func TestMarkOfSavedView(t *testing.T) {
	path := filepath.Join(t.TempDir(), "view")
	cfg := savedConfig(t, path)
	v, _ := openSaved(t, cfg)
	handlerFixture{v, services}.put(makeService("a", "web", "10.0.0.1"))
	noError(t, file.Replace(path, savedView{v}.writeSaved))
	c := newCounters()
	back, err := Open(cfg, Options{Now: testClock, Node: "n1", Epochs: c.Table})
	noError(t, err)
	k, ok := c.copy(t, NewZone(back, cfg), "web.a.svc.cluster.local", dns.TypeA)
	if !ok || unpacked(t, k.reply).Answer == nil {
		t.Fatal("no copy")
	}
	handlerFixture{back, services}.put(makeService("a", "web", "10.0.0.2"))
	if c.isCurrent(k.mark) {
		t.Error("a copy of what the file said is good")
	}
}

// Answers from copies keep data in view like queries to the zone, including the targets of
// aliases.
func TestTouch(t *testing.T) {
	l := newLab(t, func(*config.Kubernetes) {})
	s := makeService("c", "alias", "")
	s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "db.a.svc.cluster.local"
	handlerFixture{l.view, services}.put(s)
	for _, ns := range []string{"a", "b"} {
		l.service(ns, "db", true)
		l.slice(ns, "db", true, "10.1.0.1")
		_ = l.addrs("db." + ns + ".svc.cluster.local")
	}
	l.reconcile()
	l.wantSources("a b")
	q := parsed(t, "db.b.svc.cluster.local", dns.TypeA)
	alias := parsed(t, "alias.c.svc.cluster.local", dns.TypeA)
	l.idle()
	l.zone.Touch(&q)
	l.zone.Touch(&alias)
	l.reconcile()
	l.wantSources("a b")
	l.idle()
	l.zone.Touch(&q)
	l.reconcile()
	l.wantSources("b")
}
