package differential

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// marks says what can be seen through a Corefile of the objects that are
// written last.
type marks struct {
	noEndpoints, pods, clusters bool
	// namespaces are those that have a mark of their own.
	namespaces []string
}

// markNamespace is the namespace of the nth marks.
func markNamespace(n int) string { return fmt.Sprintf("mark-%d", n) }

// watcher is a server and the marks that it can see.
type watcher struct {
	marks
	server netip.AddrPort
}

// awaitMarks writes a last object of each kind, and slices in each namespace that
// any server can see, waits until every server has seen all that it can of them, and
// deletes them again. Events of one watch come in order, so whatever was written
// before has been seen too.
func (s *site) awaitMarks(t *testing.T, watchers []watcher) {
	t.Helper()
	var namespaces []string
	for _, m := range watchers {
		namespaces = append(namespaces, m.namespaces...)
	}
	slices.Sort(namespaces)
	w := newMarks(int(s.marks.Add(1)), slices.Compact(namespaces))
	check.NoError(t, s.write(t.Context(), w))
	for _, m := range watchers {
		names, server := m.names(w), m.server
		// What a cache holds about the name from before would be NXDOMAIN,
		// for five seconds at most.
		err := peer.Await(t.Context(), fmt.Sprintf("%s to see the last objects", server), func(ctx context.Context) error {
			for len(names) > 0 {
				if err := rcode(server, names[0], dns.RcodeSuccess)(ctx); err != nil {
					return err
				}
				names = names[1:]
			}
			return nil
		})
		check.NoError(t, err)
	}
	check.NoError(t, s.deleteAll(t.Context(), w))
}

// newMarks makes the nth marks. All of them have the label that selectors ask
// for.
func newMarks(n int, namespaces []string) *world {
	w := &world{}
	own := markNamespace(n)
	w.namespace(own)
	http := port("http", 80, corev1.ProtocolTCP)
	both := func(ns, svc string, ips []string) {
		w.service(ns, svc, ips, http)
		w.slice(ns, svc, "a", []discoveryv1.EndpointPort{ports(http)[0]}, ready("10.244.255.1"))
	}
	for _, ns := range namespaces {
		both(ns, own, noClusterIP)
		both(ns, own+"-manual", noClusterIP)
		delete(w.slices[len(w.slices)-1].Labels, corev1.IsHeadlessService)
	}
	both(own, "address", []string{fmt.Sprintf("10.96.%d.%d", 64+n/256, n%256)})
	both(own, "mark", noClusterIP)
	s := w.slice(own, "import", "a", []discoveryv1.EndpointPort{ports(http)[0]}, ready("10.244.255.1"))
	s.Labels = map[string]string{importName: "import", importCluster: "east"}
	w.imports = append(w.imports, newImport(own, "import", importSpec{Type: "Headless"}))
	w.pods = append(w.pods, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: own, Name: "pod"},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "c"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.244.255.2", PodIPs: []corev1.PodIP{{IP: "10.244.255.2"}}},
	})
	for _, o := range w.objects() {
		labels := o.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels[selectorLabel] = "yes"
		o.SetLabels(labels)
	}
	return w
}

// names are those by which the marks are seen.
func (m marks) names(w *world) []string {
	own := w.namespaces[0].Name
	names := []string{"address." + own + ".svc." + zone}
	if !m.noEndpoints {
		names = append(names, "mark."+own+".svc."+zone)
		for _, ns := range m.namespaces {
			names = append(names, own+"."+ns+".svc."+zone, own+"-manual."+ns+".svc."+zone)
		}
	}
	if m.pods {
		names = append(names, "10-244-255-2."+own+".pod."+zone)
	}
	if m.clusters {
		names = append(names, "import."+own+".svc."+importZone)
	}
	return names
}
