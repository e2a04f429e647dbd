// Package watches follows an API server as CoreDNS's kubernetes plugin does with the
// Corefile of a cluster's add-on: all Services, all EndpointSlices and all
// namespaces, whole, as protobuf, each by a Reflector of client-go's with streamed
// lists. Nothing is made of the objects and nothing kept, so that hundreds fit into
// one process: what is looked at is what they cost the API server.
package watches

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
)

// Watches are those of one CoreDNS. They are safe for concurrent use; Run is called
// once.
type Watches struct {
	list   []*cache.Reflector
	stores map[string]*store // by resource
}

// Open prepares the watches of the user that the kubeconfig file names. wrap wraps the transport; nil is none. It opens no
// connection.
func Open(kubeconfig string, wrap transport.WrapperFunc) (*Watches, error) {
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("opening watches: %w", err)
	}
	c.ContentType = runtime.ContentTypeProtobuf
	c.UserAgent = "watches"
	c.Wrap(wrap)
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("opening watches: %w", err)
	}
	w := &Watches{stores: map[string]*store{}}
	w.add(client, client.CoreV1().RESTClient(), "services", &corev1.Service{})
	w.add(client, client.DiscoveryV1().RESTClient(), "endpointslices", &discoveryv1.EndpointSlice{})
	w.add(client, client.CoreV1().RESTClient(), "namespaces", &corev1.Namespace{})
	return w, nil
}

func (w *Watches) add(client kubernetes.Interface, group rest.Interface, resource string, example runtime.Object) {
	s := &store{}
	source := cache.NewListWatchFromClient(group, resource, corev1.NamespaceAll, fields.Everything())
	r := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(source, client), example, s, cache.ReflectorOptions{Name: resource})
	w.list, w.stores[resource] = append(w.list, r), s
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

// Reached says whether a Reflector has got all that the resource had at the resourceVersion.
func (w *Watches) Reached(resource string, version uint64) bool {
	return w.stores[resource].version.Load() >= version
}

// store notes what a Reflector puts into it.
type store struct {
	listed  atomic.Bool
	version atomic.Uint64 // the latest resourceVersion
}

// Add implements the Reflector's store.
func (s *store) Add(obj any) error { return s.reach(obj) }

// Update implements the Reflector's store.
func (s *store) Update(obj any) error { return s.reach(obj) }

// Delete implements the Reflector's store.
func (s *store) Delete(obj any) error { return s.reach(obj) }

// Resync implements the Reflector's store; there is nothing to repeat.
func (s *store) Resync() error { return nil }

// Replace implements the Reflector's store.
func (s *store) Replace(_ []any, version string) error {
	defer s.listed.Store(true)
	return s.set(version)
}

func (s *store) reach(obj any) error {
	o, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	return s.set(o.GetResourceVersion())
}

func (s *store) set(version string) error {
	n, err := strconv.ParseUint(version, 10, 64)
	s.version.Store(n)
	return err
}
