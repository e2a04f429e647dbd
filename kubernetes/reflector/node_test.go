// Internal: uses the fixture of internal tests.

package reflector

import (
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// getNodeZone returns the metadata of a Node or an error.
func TestGetNode(t *testing.T) {
	inEncodings(t, func(t *testing.T, w encoding) {
		node := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}}
		node.Labels = map[string]string{"zone": "z1"}
		s := newScriptedServer(t, w,
			reply{body: w.object(node)},
			reply{status: http.StatusForbidden, reason: metav1.StatusReasonForbidden},
			reply{body: []byte("<html>")},
			reply{body: w.object(expiredStatus())})
		f, _, _ := s.newReflector(t)
		if node, err := GetNode(t.Context(), f.Client, "n1"); err != nil || node.Labels["zone"] != "z1" {
			t.Errorf("node %v, error %v", node, err)
		}
		for range 3 {
			if node, err := GetNode(t.Context(), f.Client, "n1"); node != nil || err == nil || !strings.Contains(err.Error(), "node n1") {
				t.Errorf("node %v, error %v", node, err)
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.seen) != 4 || s.seen[0].URL.Path != "/api/v1/nodes/n1" {
			t.Errorf("%d requests, the first for %s", len(s.seen), s.seen[0].URL)
		}
	})
}

// GetNodePodCIDRs returns the podCIDRs of a Node, also from a server that only knows the first one,
// or an error.
func TestGetNodePodCIDRs(t *testing.T) {
	inEncodings(t, func(t *testing.T, w encoding) {
		node := func(first string, all ...string) reply {
			n := &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}}
			n.Spec.PodCIDR, n.Spec.PodCIDRs = first, all
			return reply{body: w.object(n)}
		}
		s := newScriptedServer(t, w,
			node("10.1.0.0/24", "10.1.0.0/24", "2001:db8::/64"), node("10.1.0.0/24"), node(""),
			reply{status: http.StatusForbidden, reason: metav1.StatusReasonForbidden},
			reply{body: []byte("<html>")},
			reply{body: w.object(expiredStatus())})
		f, _, _ := s.newReflector(t)
		for _, want := range []string{"10.1.0.0/24 2001:db8::/64", "10.1.0.0/24", ""} {
			if list, err := GetNodePodCIDRs(t.Context(), f.Client, "n1"); err != nil || strings.Join(list, " ") != want {
				t.Errorf("%v, error %v; want %s", list, err, want)
			}
		}
		for range 3 {
			if list, err := GetNodePodCIDRs(t.Context(), f.Client, "n1"); list != nil || err == nil || !strings.Contains(err.Error(), "node n1") {
				t.Errorf("%v, error %v", list, err)
			}
		}
	})
}
