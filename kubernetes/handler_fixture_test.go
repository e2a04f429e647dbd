// Internal: a fixture of internal tests.

package kubernetes

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/wire"
)

// handlerFixture feeds a view without an API server: single objects or lists.
type handlerFixture struct {
	view     *View
	resource resource
}

func (t handlerFixture) handler() *handler { return &handler{view: t.view, resource: t.resource} }

// put adds or replaces an object.
func (t handlerFixture) put(obj metav1.Object) { t.handler().Upsert(obj.(runtime.Object), true) }

// drop deletes an object.
func (t handlerFixture) drop(obj metav1.Object) { t.handler().Delete(obj.(runtime.Object)) }

// list sends a list of objects.
func (t handlerFixture) list(objects ...metav1.Object) {
	s := t.handler()
	s.BeginList()
	for _, o := range objects {
		s.Upsert(o.(runtime.Object), false)
	}
	s.EndList(0)
}

// setNode sets the view's node.
func (t handlerFixture) setNode(node string) { t.view.node = node }

func netipAddr(t testing.TB, text string) netip.Addr {
	t.Helper()
	a, err := netip.ParseAddr(text)
	noError(t, err)
	return a
}

// parsed returns a query for name.
func parsed(t testing.TB, name string, qtype uint16) (q wire.Query) {
	t.Helper()
	if q.Parse(packQuery(t, name, qtype)) != wire.Serve {
		t.Fatalf("no query for %s", name)
	}
	return q
}

// makePod returns a pod on the node n1.
func makePod(ns, name string, ips ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: corev1.PodSpec{NodeName: "n1"}}
	for _, ip := range ips {
		if ip != "" {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
		}
	}
	return p
}

// shortenDelays shortens the pauses of a view's reflectors.
func shortenDelays(v *View) {
	v.firstBackoff = 5 * time.Millisecond
	v.maxStartDelay = 0
}

// append appends a port to p.
func (p portList) append(name string, proto byte, number uint16) portList {
	return portList(packPort([]byte(p), name, proto, number))
}

// The changes of ServiceImports and their slices, with their faults.
func (v *View) putImport(o *serviceImport, f *faults) {
	(&handler{view: v, resource: serviceImports}).putImport(o, false, f)
}

func (v *View) dropImport(ns, name string) {
	(&handler{view: v, resource: serviceImports}).dropService(ns, name, 0)
}

func (v *View) putImportSlice(o *discoveryv1.EndpointSlice, f *faults) {
	(&handler{view: v, resource: importSlices}).putImportSlice(o, false, f)
}

func (v *View) dropImportSlice(ns, name string) {
	(&handler{view: v, resource: importSlices}).dropSlice(ns, name, 0)
}

// noError ends the test if err is not nil.
func noError(t testing.TB, err error) {
	if err != nil {
		t.Helper() // not before: benchmarks would measure it
		t.Fatal(err)
	}
}

// equal fails the test if want and got differ. What is said about them has the format of [fmt.Sprintf].
func equal(t testing.TB, want, got any, format string, args ...any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", fmt.Sprintf(format, args...), d)
	}
}

// count fails the test if there are not as many as wanted; what says of what.
func count[N comparable](t testing.TB, got, want N, what string) {
	t.Helper()
	if got != want {
		t.Errorf("%v %s, want %v", got, what, want)
	}
}
