package apiobjects

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nodens-dns/nodens/test/apiserver"
)

// writers is how many requests are under way at once: what keeps an API server on
// two cores busy; twice as many only wait for each other.
const writers = 16

// The field managers of a real cluster's objects: who installs, and who controls.
var (
	installer  = metav1.CreateOptions{FieldManager: "helm"}
	controller = metav1.CreateOptions{FieldManager: "kube-controller-manager"}
	kubelet    = metav1.UpdateOptions{FieldManager: "kubelet"}
)

// World is a cluster that has been written. Its methods may be called from several
// goroutines.
type World struct {
	Shape
	client  kubernetes.Interface
	entries []*entry
	objects int
	// fresh is the number of the next address that no endpoint has had.
	fresh atomic.Int64
}

// entry is a Service and its slice as the API server has them.
type entry struct {
	Service
	mu    sync.Mutex
	svc   *corev1.Service
	slice *discoveryv1.EndpointSlice
	// changes is how often the slice was changed.
	changes int
	// sizes are those that both had when they were made, in protobuf, in bytes.
	sizes [2]int
}

// Client is a client of an API server that speaks protobuf, as controllers do.
func Client(c *rest.Config) (kubernetes.Interface, error) {
	c = rest.CopyConfig(c)
	c.ContentType = runtime.ContentTypeProtobuf
	c.AcceptContentTypes = runtime.ContentTypeProtobuf
	return kubernetes.NewForConfig(c)
}

// Write writes all objects of the shape. It blocks until all are there, and gives up
// at the first error.
func Write(ctx context.Context, client kubernetes.Interface, s Shape) (*World, error) {
	w := &World{Shape: s, client: client}
	for _, svc := range s.Services() {
		w.entries = append(w.entries, &entry{Service: svc})
	}
	w.fresh.Store(int64(s.Endpoints()))
	for _, step := range []struct {
		what string
		n    int
		do   func(context.Context, int) error
	}{
		{"namespaces", s.Namespaces, w.writeNamespace},
		{"nodes", s.Nodes, w.writeNode},
		{"Services and slices", len(w.entries), w.writeService},
		{"pods", s.Nodes * s.PodsPerNode, w.writePod},
	} {
		if err := apiserver.Parallel(ctx, step.n, writers, step.do); err != nil {
			return nil, fmt.Errorf("writing %s: %w", step.what, err)
		}
	}
	w.objects = s.Namespaces + s.Nodes + 2*len(w.entries) + s.Nodes*s.PodsPerNode
	return w, nil
}

// Objects is how many objects were written.
func (w *World) Objects() int { return w.objects }

// Sizes are the mean sizes of the objects, in bytes of protobuf, with the field
// managers that the API server adds: of a Service, of the slice of one with a cluster
// IP, and of a headless one's.
func (w *World) Sizes() (service, plain, headless int) {
	var n [2]int
	for _, e := range w.entries {
		service += e.sizes[0]
		if e.Headless {
			headless += e.sizes[1]
			n[1]++
		} else {
			plain += e.sizes[1]
			n[0]++
		}
	}
	return service / max(1, len(w.entries)), plain / max(1, n[0]), headless / max(1, n[1])
}

func (w *World) writeNamespace(ctx context.Context, i int) error {
	_, err := w.client.CoreV1().Namespaces().Create(ctx, namespaceObject(i), installer)
	return err
}

func (w *World) writeNode(ctx context.Context, i int) error {
	_, err := w.client.CoreV1().Nodes().Create(ctx, nodeObject(i), controller)
	return err
}

func (w *World) writeService(ctx context.Context, i int) error {
	e := w.entries[i]
	var err error
	if e.svc, err = w.client.CoreV1().Services(e.Namespace).Create(ctx, e.object(), installer); err != nil {
		return err
	}
	e.slice, err = w.client.DiscoveryV1().EndpointSlices(e.Namespace).Create(ctx, e.Service.slice(), controller)
	if err != nil {
		return err
	}
	e.sizes = [2]int{e.svc.Size(), e.slice.Size()}
	// An update without them leaves them as they are.
	e.svc.ManagedFields, e.slice.ManagedFields = nil, nil
	return nil
}

// writePod writes a pod and then its status, which comes by another way.
func (w *World) writePod(ctx context.Context, n int) error {
	pod := w.pod(n/w.PodsPerNode, n%w.PodsPerNode)
	status := pod.Status
	made, err := w.client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, controller)
	if err != nil {
		return err
	}
	made.Status = status
	_, err = w.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, made, kubelet)
	return err
}

// Sample gives n of the Services that are wanted, picked at random but always the
// same ones; all of them if there are no more.
func (s Shape) Sample(n int, wanted func(Service) bool) []Service {
	var list []Service
	for _, svc := range s.Services() {
		if wanted(svc) {
			list = append(list, svc)
		}
	}
	r := rand.New(rand.NewPCG(1, 2)) // any seed will do
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list[:min(n, len(list))]
}
