package scale

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nodens-dns/nodens/kubernetes/reflector"
	"github.com/nodens-dns/nodens/test/bench/apiobjects"
)

// sliceWatch is what a watch of EndpointSlices asks for; empty fields are all.
type sliceWatch struct{ namespace, labels, fields, shards string }

// designAgent watches with the agent's reflectors, with nothing behind them: all Services, the metadata of all
// namespaces and the pods of its node until Run ends, and EndpointSlices as one design after the other does. It has a
// connection of its own.
type designAgent struct {
	node     int
	conn     *reflector.Connection
	clients  map[string]rest.Interface
	outages  *reflector.OutageLog
	history  *reflector.History
	shards   atomic.Pointer[string] // of requests for the slices of all namespaces
	pending  atomic.Int64           // first lists that are not complete, and one until all have begun
	events   atomic.Uint64          // slices that came in watches
	watching sync.WaitGroup
	seen     seenSlices

	mu      sync.Mutex // of those below; ask holds it
	design  watchDesign
	wants   wants
	current []*runningWatch
	copies  []*runningWatch // of them, which ask leaves as they are
}

// runningWatch is a watch of slices.
type runningWatch struct {
	sliceWatch
	reflector *reflector.Reflector
	first     *firstList
	stop      func() // returns when the handler gets nothing more
}

// firstList is the first list of a reflector. version may be read once done is closed.
type firstList struct {
	done    chan struct{}
	version uint64
	once    sync.Once
}

// openAgent opens the agent of a node. It starts nothing.
func openAgent(kubeconfig string, node int) (*designAgent, error) {
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("opening an agent: %w", err)
	}
	a := &designAgent{
		node: node, clients: map[string]rest.Interface{},
		outages: reflector.NewOutageLog(slog.New(slog.DiscardHandler)), history: reflector.NewHistory(nil),
	}
	a.pending.Store(1)
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return shardRequests{next, &a.shards} })
	if a.conn, err = reflector.Connect(c); err != nil {
		return nil, err
	}
	for _, gv := range []schema.GroupVersion{corev1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion} {
		if a.clients[gv.Group], err = a.conn.Client(gv); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// shardRequests adds the parameter of KEP-5866 to requests for the slices of all namespaces.
type shardRequests struct {
	next   http.RoundTripper
	shards *atomic.Pointer[string]
}

// RoundTrip implements http.RoundTripper.
func (t shardRequests) RoundTrip(req *http.Request) (*http.Response, error) {
	if s := t.shards.Load(); s != nil && *s != "" && strings.HasSuffix(req.URL.Path, "/v1/endpointslices") {
		req = req.Clone(req.Context())
		q := req.URL.Query()
		q.Set("shardSelector", *s)
		req.URL.RawQuery = q.Encode()
	}
	return t.next.RoundTrip(req)
}

// Run watches all but slices, and returns when ctx has ended and all watches have.
func (a *designAgent) Run(ctx context.Context) {
	spaces := a.newReflector(corev1.SchemeGroupVersion, "namespaces", func() runtime.Object { return new(metav1.PartialObjectMetadata) })
	spaces.MetadataOnly = true
	pods := a.newReflector(corev1.SchemeGroupVersion, "pods", func() runtime.Object { return new(corev1.Pod) })
	pods.Fields = "spec.nodeName=" + apiobjects.Node(a.node)
	for _, f := range []*reflector.Reflector{pods, spaces, a.newReflector(corev1.SchemeGroupVersion, "services", func() runtime.Object { return new(corev1.Service) })} {
		a.follow(ctx, f)
	}
	a.pending.Add(-1)
	<-ctx.Done()
	a.watching.Wait()
	a.conn.Close()
}

// use watches slices as the design does, until drop.
func (a *designAgent) use(ctx context.Context, d watchDesign, w wants) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.design, a.wants = d, w
	a.seen.reset()
	a.events.Store(0)
	for _, w := range d.slices(w) {
		a.current = append(a.current, a.startSlices(ctx, w, reflector.Position{}))
		for range d.copies() {
			a.copies = append(a.copies, a.startSlices(ctx, w, reflector.Position{}))
		}
	}
}

// drop ends the watches of slices.
func (a *designAgent) drop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.current {
		w.stop()
	}
	a.current = nil
}

// dropCopies ends all but one of each watch.
func (a *designAgent) dropCopies() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.copies {
		w.stop()
	}
	a.copies = nil
}

// Synced reports whether all first lists are complete.
func (a *designAgent) Synced() bool { return a.pending.Load() == 0 }

func (a *designAgent) newReflector(gv schema.GroupVersion, plural string, object func() runtime.Object) *reflector.Reflector {
	return &reflector.Reflector{
		Client: a.clients[gv.Group], Resource: schema.GroupResource{Group: gv.Group, Resource: plural}, NewObject: object,
		Log: slog.New(slog.DiscardHandler), Outages: a.outages, History: a.history,
	}
}

// follow runs f until ctx ends. ended is closed when it has ended.
func (a *designAgent) follow(ctx context.Context, f *reflector.Reflector) (first *firstList, ended chan struct{}) {
	h := designHandler{a, &firstList{done: make(chan struct{})}}
	f.Handler, ended = h, make(chan struct{})
	a.pending.Add(1)
	if f.Resume.Version > 0 {
		h.EndList(f.Resume.Version)
	}
	a.watching.Go(func() {
		defer close(ended)
		f.Run(ctx)
	})
	return h.first, ended
}

// startSlices starts a watch of slices, from the position if it is one.
func (a *designAgent) startSlices(ctx context.Context, w sliceWatch, from reflector.Position) *runningWatch {
	f := a.newReflector(discoveryv1.SchemeGroupVersion, "endpointslices", func() runtime.Object { return new(discoveryv1.EndpointSlice) })
	f.Namespace, f.Fields, f.Resume = w.namespace, w.fields, from
	if w.labels != "" {
		f.Labels, _ = labels.Parse(w.labels) // made by a design
	}
	if w.namespace == "" {
		a.shards.Store(&w.shards)
	}
	ctx, cancel := context.WithCancel(ctx)
	first, ended := a.follow(ctx, f)
	return &runningWatch{w, f, first, func() {
		cancel()
		<-ended
	}}
}

// ask wants one more Service, of any namespace, and returns how long it took until its slices were there. If the set of
// a watch of all namespaces changes, the new part is listed alone, and the watch goes on with the new set from the
// lower of the two versions, so that it misses nothing of either.
func (a *designAgent) ask(ctx context.Context, s apiobjects.Service) (time.Duration, error) {
	start := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wants = a.wants.with(s)
	next := a.design.slices(a.wants)
	var first *runningWatch // its list has the answer
	var renewed []int
	for i, w := range next {
		switch {
		case i == len(a.current):
			first = a.startSlices(ctx, w, reflector.Position{})
			a.current = append(a.current, first)
		case a.current[i].sliceWatch != w:
			renewed = append(renewed, i)
		}
	}
	if len(renewed) > 0 {
		first = a.startSlices(ctx, sliceWatch{namespace: s.Namespace, labels: discoveryv1.LabelServiceName + "=" + s.Name}, reflector.Position{})
		defer first.stop()
	}
	if first == nil {
		return 0, nil // in view already
	}
	select {
	case <-first.first.done:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	took := time.Since(start)
	for _, i := range renewed {
		a.current[i].stop()
		from := a.current[i].reflector.Position()
		from.Version = min(from.Version, first.first.version)
		a.current[i] = a.startSlices(ctx, next[i], from)
	}
	return took, nil
}

// designHandler counts the slices of an agent.
type designHandler struct {
	agent *designAgent
	first *firstList
}

// BeginList implements reflector.Handler.
func (h designHandler) BeginList() {}

// Delete implements reflector.Handler.
func (h designHandler) Delete(runtime.Object) {}

// EndList implements reflector.Handler.
func (h designHandler) EndList(version uint64) {
	h.first.once.Do(func() {
		h.first.version = version
		h.agent.pending.Add(-1)
		close(h.first.done)
	})
}

// Upsert implements reflector.Handler.
func (h designHandler) Upsert(obj runtime.Object, live bool) {
	s, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return
	}
	if live {
		h.agent.events.Add(1)
	}
	h.agent.seen.note(s, live)
}

// seenSlices are the slices that an agent has got, by namespace and name of the Service.
type seenSlices struct {
	mu   sync.Mutex
	list map[[2]string]seenSlice
}

// seenSlice is what has come of a slice: its latest version, and how many newer ones came in watches.
type seenSlice struct {
	version uint64
	changes int
}

func (l *seenSlices) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = map[[2]string]seenSlice{}
}

func (l *seenSlices) note(s *discoveryv1.EndpointSlice, live bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := [2]string{s.Namespace, s.Labels[discoveryv1.LabelServiceName]}
	at := l.list[key]
	version, _ := strconv.ParseUint(s.ResourceVersion, 10, 64) // the server's
	if version <= at.version {
		return // seen before a watch was renewed
	}
	at.version = version
	if live {
		at.changes++
	}
	l.list[key] = at
}

// get returns what has come of the Service's slice.
func (l *seenSlices) get(s apiobjects.Service) seenSlice {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.list[[2]string{s.Namespace, s.Name}]
}
