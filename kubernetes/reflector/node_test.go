// Internal: uses the fixture of internal tests.

package reflector

import (
	"net/http"
	"strings"
	"testing"

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
