// Package watches follows an API server as CoreDNS's kubernetes plugin does with the
// Corefile of a cluster's add-on: all Services, all EndpointSlices and all
// namespaces, whole, as protobuf, each by a Reflector of client-go's with streamed
// lists. Nothing is made of the objects and nothing kept, so that hundreds fit into
// one process: what is looked at is what they cost the API server.
package watches

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// Watches are those of one CoreDNS. They are safe for concurrent use; Run is called
// once.
type Watches struct {
	list   []*cache.Reflector
	stores []*store
}

// Open prepares the watches of the user that the kubeconfig file names. It opens no
// connection.
func Open(kubeconfig string) (*Watches, error) {
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("opening watches: %w", err)
	}
	c.ContentType = runtime.ContentTypeProtobuf
	c.UserAgent = "watches"
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("opening watches: %w", err)
	}
	w := &Watches{}
	w.add(client, client.CoreV1().RESTClient(), "services", &corev1.Service{})
	w.add(client, client.DiscoveryV1().RESTClient(), "endpointslices", &discoveryv1.EndpointSlice{})
	w.add(client, client.CoreV1().RESTClient(), "namespaces", &corev1.Namespace{})
	return w, nil
}

func (w *Watches) add(client kubernetes.Interface, group rest.Interface, resource string, example runtime.Object) {
	s := &store{}
	source := cache.NewListWatchFromClient(group, resource, corev1.NamespaceAll, fields.Everything())
	r := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(source, client), example, s, cache.ReflectorOptions{Name: resource})
	w.list, w.stores = append(w.list, r), append(w.stores, s)
}

// Run watches until ctx ends, and returns when all watches have ended.
func (w *Watches) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, r := range w.list {
		wg.Go(func() { r.RunWithContext(ctx) })
	}
	wg.Wait()
}

// Synced says whether every resource has been listed once.
func (w *Watches) Synced() bool {
	for _, s := range w.stores {
		if !s.listed.Load() {
			return false
		}
	}
	return true
}

// Seen is how many objects came, in lists and by themselves.
func (w *Watches) Seen() uint64 {
	var n uint64
	for _, s := range w.stores {
		n += s.seen.Load()
	}
	return n
}

// store counts what a Reflector puts into it.
type store struct {
	listed atomic.Bool
	seen   atomic.Uint64
}

// Add implements the Reflector's store.
func (s *store) Add(any) error { return s.count(1) }

// Update implements the Reflector's store.
func (s *store) Update(any) error { return s.count(1) }

// Delete implements the Reflector's store.
func (s *store) Delete(any) error { return s.count(1) }

// Resync implements the Reflector's store; there is nothing to repeat.
func (s *store) Resync() error { return nil }

// Replace implements the Reflector's store.
func (s *store) Replace(list []any, _ string) error {
	defer s.listed.Store(true)
	return s.count(len(list))
}

func (s *store) count(n int) error {
	s.seen.Add(uint64(n))
	return nil
}
