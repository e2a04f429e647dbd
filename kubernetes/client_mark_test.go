// Internal: feeds handlers and reads the epochs.

package kubernetes

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// clientWorld is a view of few pods with few addresses, and two zones that differ in the namespaces that they expose.
type clientWorld struct {
	*epochTable
	view    *View
	zones   []*Zone
	pods    handlerFixture
	objects handlerFixture // the Namespaces
}

func newClientWorld(t testing.TB) *clientWorld {
	w := &clientWorld{epochTable: newCounters()}
	w.view = w.newView(emptyView())
	w.view.index.clients.acquire(w.Table)
	w.pods, w.objects = handlerFixture{w.view, pods}, handlerFixture{w.view, namespaces}
	w.pods.setNode("n1")
	listed := testConfig(t)
	listed.NamespaceLabels = "a=b"
	w.zones = []*Zone{NewZone(w.view, testConfig(t)), NewZone(w.view, listed)}
	return w
}

// worldAddrs are the addresses of the pods of a clientWorld.
var worldAddrs = []string{"10.1.0.1", "10.1.0.2", "fd00::1"}

// change changes something at random, and returns what.
func (w *clientWorld) change(r *rand.Rand) string {
	ns, name := string(rune('a'+r.IntN(2))), string(rune('p'+r.IntN(3)))
	switch r.IntN(8) {
	case 0:
		w.objects.put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
		return "the Namespace " + ns
	case 1:
		w.objects.drop(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
		return "no Namespace " + ns
	case 2, 3:
		w.pods.drop(makePod(ns, name))
		return fmt.Sprintf("no pod %s/%s", ns, name)
	}
	p := makePod(ns, name)
	for _, addr := range worldAddrs {
		if r.IntN(3) == 0 {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: addr})
		}
	}
	if r.IntN(3) == 0 {
		p.Spec.NodeName = "n2"
	}
	p.Spec.HostNetwork = r.IntN(6) == 0
	if r.IntN(6) == 0 {
		p.DeletionTimestamp = &metav1.Time{Time: testClock()}
	}
	if r.IntN(10) == 0 {
		p.Status.Phase = corev1.PodSucceeded
	}
	w.pods.put(p)
	return fmt.Sprintf("the pod %s/%s with %v on %s", ns, name, p.Status.PodIPs, p.Spec.NodeName)
}

// namespacesOf returns the namespaces of all clients by all zones.
func (w *clientWorld) namespacesOf() string {
	text := ""
	for _, z := range w.zones {
		for _, addr := range worldAddrs {
			ns, ok := z.ClientNamespace(netip.MustParseAddr(addr))
			text += fmt.Sprintf("%s %q %t\n", addr, ns, ok)
		}
	}
	return text
}

// TestClientMark: the mark of the clients' namespaces moves with each change of one.
func TestClientMark(t *testing.T) {
	w := newClientWorld(t)
	r := rand.New(rand.NewPCG(1, 2))
	changed := 0
	for range 5000 {
		before, marks := w.namespacesOf(), []uint64{w.zones[0].ClientMark().Value, w.zones[1].ClientMark().Value}
		if !w.isCurrent(w.zones[0].ClientMark()) {
			t.Fatalf("the mark is %+v, the shared counter another", w.zones[0].ClientMark())
		}
		what := w.change(r)
		after := w.namespacesOf()
		if before == after {
			continue
		}
		changed++
		for i, z := range w.zones {
			if z.ClientMark().Value == marks[i] {
				t.Fatalf("%s: the mark stays, the namespaces were\n%sand are\n%s", what, before, after)
			}
		}
	}
	if changed < 500 {
		t.Errorf("only %d changes", changed)
	}
}

// TestClientMarkStays: changes elsewhere leave the mark as it is, or each of them would cost every client a query.
func TestClientMarkStays(t *testing.T) {
	w := newClientWorld(t)
	w.pods.put(makePod("a", "p", "10.1.0.1"))
	mark := w.zones[0].ClientMark()
	elsewhere := makePod("b", "q", "10.1.0.2")
	elsewhere.Spec.NodeName = "n2"
	w.pods.put(elsewhere)
	w.pods.put(makePod("a", "p", "10.1.0.1")) // as before
	handlerFixture{w.view, services}.put(makeService("a", "web", "10.0.0.1"))
	handlerFixture{w.view, endpointSlices}.put(makeSlice("a", "web", "web-1", "10.1.0.1"))
	w.pods.drop(elsewhere)
	if got := w.zones[0].ClientMark(); got != mark || mark.Index == 0 {
		t.Errorf("the mark was %+v, and is %+v", mark, got)
	}
	if got := NewZone(emptyView(), testConfig(t)).ClientMark(); got.Index != 0 {
		t.Errorf("the mark without epochs is %+v", got)
	}
}
