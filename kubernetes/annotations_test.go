// Internal: the delays of a view are shared with tests of internals.

package kubernetes

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/poll"
	"github.com/nodens-dns/nodens/test/rig/fakeapi"
)

// reported has the values of the annotation as a view reports them. It is safe for concurrent use.
type reported struct {
	mu     sync.Mutex
	values map[string]string
	calls  int
}

func (r *reported) observe(namespace, value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	if r.values[namespace] = value; value == "" {
		delete(r.values, namespace)
	}
}

// waitFor waits until the reported values are want, and returns the number of reports.
func (r *reported) waitFor(t *testing.T, when string, want map[string]string) (calls int) {
	t.Helper()
	poll.Until(t, when, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		calls = r.calls
		return cmp.Equal(want, r.values)
	})
	return calls
}

// annotated returns a Namespace with the annotation.
func annotated(name, value string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"nodens.dev/client-metrics": value, "other": "off"}}}
}

// TestAnnotations: the view reports each change of the annotation, also those that only a new list shows, and
// none of its own at the end of a watch.
func TestAnnotations(t *testing.T) {
	for _, protobuf := range []bool{false, true} {
		t.Run(fmt.Sprintf("protobuf %v", protobuf), func(t *testing.T) {
			f := fakeapi.Start(t)
			if protobuf {
				f.UseProtobuf()
			}
			f.Put(annotated("a", "workload"))
			f.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "plain"}})
			r := &reported{values: make(map[string]string)}
			openAndRunWith(t, f.URL, Options{Node: "n1", ObserveNamespace: r.observe}, func(c *config.Kubernetes) { c.Scope = config.ScopeNode })
			r.waitFor(t, "the first list", map[string]string{"a": "workload"})
			f.Put(annotated("a", "off"))
			f.Put(annotated("b", strings.Repeat("x", 1000)))
			calls := r.waitFor(t, "changes", map[string]string{"a": "off", "b": strings.Repeat("x", 64)})
			f.Put(annotated("b", strings.Repeat("x", 1000)))
			f.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "plain", Labels: map[string]string{"l": "v"}}})
			f.Put(annotated("c", "namespace"))
			if n := r.waitFor(t, "another one", map[string]string{"a": "off", "b": strings.Repeat("x", 64), "c": "namespace"}); n != calls+1 {
				t.Errorf("%d reports, want one", n-calls)
			}
			f.Remove(annotated("b", ""))
			f.Put(annotated("a", ""))
			r.waitFor(t, "the end of two", map[string]string{"c": "namespace"})

			f.SetFail(func(req *http.Request) (int, metav1.StatusReason) {
				if req.URL.Query().Get("resourceVersion") != "" {
					return http.StatusGone, metav1.StatusReasonExpired
				}
				return 0, ""
			})
			f.Disconnect()
			f.Remove(annotated("c", ""))
			f.Put(annotated("d", "off"))
			r.waitFor(t, "a new list", map[string]string{"d": "off"})
		})
	}
}

// TestAnnotationsEnd: a view that ends takes its values back, and reports nothing afterwards.
func TestAnnotationsEnd(t *testing.T) {
	r := &reported{values: make(map[string]string)}
	a := newAnnotations(r.observe)
	a.put("a", "off")
	a.close()
	a.put("b", "off")
	if len(r.values) > 0 || r.calls != 2 {
		t.Errorf("%v after %d reports", r.values, r.calls)
	}
	for _, none := range []*annotations{newAnnotations(nil), nil} {
		none.put("a", "off")
		none.close()
	}
}
