package kubernetes

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodens-dns/nodens/internal/wire"
)

// handlerFixture is a view's source in tests: objects come as they are told, one by one or as
// lists, without an API server.
type handlerFixture struct {
	view     *View
	resource resource
}

func (t handlerFixture) sink() *handler { return &handler{view: t.view, resource: t.resource} }

// put tells of an object that is new or changed.
func (t handlerFixture) put(obj metav1.Object) { t.sink().Upsert(obj.(runtime.Object), true) }

// drop tells that it is gone.
func (t handlerFixture) drop(obj metav1.Object) { t.sink().Delete(obj.(runtime.Object)) }

// list tells all there is.
func (t handlerFixture) list(objects ...metav1.Object) {
	s := t.sink()
	s.BeginList()
	for _, o := range objects {
		s.Upsert(o.(runtime.Object), false)
	}
	s.EndList(0)
}

// setNode says which node the view is on.
func (t handlerFixture) setNode(node string) { t.view.node = node }

func netipAddr(t testing.TB, text string) netip.Addr {
	t.Helper()
	a, err := netip.ParseAddr(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// parsed is a query for name.
func parsed(t testing.TB, name string, qtype uint16) (q wire.Query) {
	t.Helper()
	if q.Parse(packQuery(t, name, qtype)) != wire.Serve {
		t.Fatalf("no query for %s", name)
	}
	return q
}

// makePod is a pod of the node n1.
func makePod(ns, name string, ips ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: corev1.PodSpec{NodeName: "n1"}}
	for _, ip := range ips {
		if ip != "" {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
		}
	}
	return p
}
