// Internal: the fake server and the delays of a view are shared with tests of internals.

package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/poll"
	"github.com/nodens-dns/nodens/test/testlog"
)

// fakeServer is an API server for a view's watches: lists, streamed lists and watches of
// the view's resources in JSON.
type fakeServer struct {
	*httptest.Server
	mu       sync.Mutex
	version  int
	objects  map[string]map[string]metav1.Object // by plural and object key
	watchers map[string]map[chan []byte]struct{}
	history  map[string][]history
	// fail, if set, answers a request itself by giving a status other than 0.
	fail func(*http.Request) (status int, reason metav1.StatusReason)
	seen []string // paths and queries of all requests
}

// history is an event that a watch from an older version receives first.
type history struct {
	version int
	event   []byte
}

func newFakeServer(t *testing.T) *fakeServer {
	f := &fakeServer{
		history:  map[string][]history{},
		objects:  map[string]map[string]metav1.Object{},
		watchers: map[string]map[chan []byte]struct{}{},
		version:  1,
	}
	for r := range numResources {
		f.objects[r.plural()] = map[string]metav1.Object{}
		f.watchers[r.plural()] = map[chan []byte]struct{}{}
	}
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(func() {
		f.disconnect()
		f.Close()
	})
	return f
}

func (f *fakeServer) serve(w http.ResponseWriter, req *http.Request) {
	plural := req.URL.Path[strings.LastIndex(req.URL.Path, "/")+1:]
	query := req.URL.Query()
	f.mu.Lock()
	f.seen = append(f.seen, req.URL.String())
	if f.fail != nil {
		if status, reason := f.fail(req); status != 0 {
			f.mu.Unlock()
			writeStatus(w, status, reason)
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	if query.Get("watch") == "" {
		defer f.mu.Unlock()
		list := map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{"resourceVersion": strconv.Itoa(f.version)}}
		var items []any
		for _, o := range f.objects[plural] {
			items = append(items, o)
		}
		list["items"] = items
		list["kind"], list["apiVersion"] = kindOf(plural)+"List", versionOf(plural)
		_ = json.NewEncoder(w).Encode(list)
		return
	}
	ch := make(chan []byte, 1000)
	if query.Get("sendInitialEvents") == "true" {
		for _, o := range f.objects[plural] {
			ch <- encodeEvent("ADDED", o)
		}
		ch <- f.bookmark(plural)
	} else if from, err := strconv.Atoi(query.Get("resourceVersion")); err == nil {
		for _, p := range f.history[plural] {
			if p.version > from {
				ch <- p.event
			}
		}
	}
	f.watchers[plural][ch] = struct{}{}
	f.mu.Unlock()
	copyEvents(w, req, ch)
}

func copyEvents(w http.ResponseWriter, req *http.Request, ch chan []byte) {
	flush := http.NewResponseController(w)
	for {
		_ = flush.Flush()
		select {
		case b, ok := <-ch:
			if !ok {
				return
			}
			if _, err := w.Write(b); err != nil {
				return
			}
		case <-req.Context().Done():
			return
		}
	}
}

func writeStatus(w http.ResponseWriter, status int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(status), Reason: reason, Message: "the test says so",
	})
}

func kindOf(plural string) string {
	return map[string]string{"services": "Service", "endpointslices": "EndpointSlice", "namespaces": "Namespace", "pods": "Pod"}[plural]
}

func versionOf(plural string) string {
	if plural == "endpointslices" {
		return "discovery.k8s.io/v1"
	}
	return "v1"
}

func encodeEvent(kind string, o any) []byte {
	b, err := json.Marshal(map[string]any{"type": kind, "object": o})
	if err != nil {
		panic(err)
	}
	return append(b, '\n')
}

func (f *fakeServer) bookmark(plural string) []byte {
	return encodeEvent("BOOKMARK", map[string]any{
		"kind": kindOf(plural), "apiVersion": versionOf(plural),
		"metadata": map[string]any{
			"resourceVersion": strconv.Itoa(f.version),
			"annotations":     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		},
	})
}

// put adds or replaces o and sends the event to the watches.
func (f *fakeServer) put(o metav1.Object) {
	plural := typed(o)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	o.SetResourceVersion(strconv.Itoa(f.version))
	key := objectKey(o.GetNamespace(), o.GetName())
	kind := "MODIFIED"
	if f.objects[plural][key] == nil {
		kind = "ADDED"
	}
	f.objects[plural][key] = o
	f.tell(plural, encodeEvent(kind, o))
}

// remove deletes o and sends the event to the watches.
func (f *fakeServer) remove(o metav1.Object) {
	plural := typed(o)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	o.SetResourceVersion(strconv.Itoa(f.version))
	delete(f.objects[plural], objectKey(o.GetNamespace(), o.GetName()))
	f.tell(plural, encodeEvent("DELETED", o))
}

func (f *fakeServer) tell(plural string, b []byte) {
	f.history[plural] = append(f.history[plural], history{f.version, b})
	for ch := range f.watchers[plural] {
		ch <- b
	}
}

// disconnect ends every watch.
func (f *fakeServer) disconnect() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, set := range f.watchers {
		for ch := range set {
			close(ch)
			delete(set, ch)
		}
	}
}

func (f *fakeServer) setFail(fail func(*http.Request) (int, metav1.StatusReason)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

// requests counts the requests so far whose URL has all of the parts.
func (f *fakeServer) requests(parts ...string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
next:
	for _, s := range f.seen {
		for _, p := range parts {
			if !strings.Contains(s, p) {
				continue next
			}
		}
		n++
	}
	return n
}

// typed sets o's kind and returns its plural.
func typed(o metav1.Object) string {
	switch o := o.(type) {
	case *corev1.Service:
		o.TypeMeta = metav1.TypeMeta{Kind: "Service", APIVersion: "v1"}
		return "services"
	case *corev1.Pod:
		o.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
		return "pods"
	case *corev1.Namespace:
		o.TypeMeta = metav1.TypeMeta{Kind: "Namespace", APIVersion: "v1"}
		return "namespaces"
	case *discoveryv1.EndpointSlice:
		o.TypeMeta = metav1.TypeMeta{Kind: "EndpointSlice", APIVersion: "discovery.k8s.io/v1"}
		return "endpointslices"
	}
	panic(fmt.Sprintf("no resource for %T", o))
}

// openAndRun opens a view of all that the server at url has and runs it until the test
// ends.
func openAndRun(t *testing.T, url string) (*View, *Zone, *testlog.Buffer) {
	t.Helper()
	return openAndRunWith(t, url, Options{}, func(c *config.Kubernetes) { c.Scope, c.AllEndpoints = config.ScopeCluster, true })
}

// openAndRunWith opens a view of the server at url and runs it until the test ends.
func openAndRunWith(t *testing.T, url string, opts Options, change func(*config.Kubernetes)) (*View, *Zone, *testlog.Buffer) {
	t.Helper()
	cfg := testConfig(t)
	cfg.Endpoint = url
	if change != nil {
		change(cfg)
	}
	log := new(testlog.Buffer)
	opts.Log, opts.Now = slog.New(slog.NewTextHandler(log, nil)), testClock
	v, err := Open(cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	shortenDelays(v)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { v.Run(ctx); close(done) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return v, NewZone(v, cfg), log
}

// resolves reports whether name has exactly the addresses.
func resolves(t *testing.T, z *Zone, name string, addrs ...string) bool {
	m, _, _ := ask(t, z, name, dns.TypeA)
	if len(m.Answer) != len(addrs) {
		return false
	}
	for i, rr := range m.Answer {
		if a, ok := rr.(*dns.A); !ok || a.A.String() != addrs[i] {
			return false
		}
	}
	return true
}

const (
	x = "x.default.svc.cluster.local"
	y = "y.default.svc.cluster.local"
)

func TestWatchFollows(t *testing.T) {
	f := newFakeServer(t)
	f.put(makeService("default", "x", "10.0.0.1"))
	f.put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "bare"}})
	v, z, _ := openAndRun(t, f.URL)
	poll.Until(t, "the first sync", v.Synced)
	if !resolves(t, z, x, "10.0.0.1") {
		t.Error("a service of the first list does not resolve")
	}
	f.put(makeService("default", "y", "None"))
	es := makeSlice("default", "y", "y-1", "10.1.0.1")
	es.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: testClock().Add(-3 * time.Second).Format(time.RFC3339)}
	poll.Until(t, "the new service", func() bool { return v.Stats().Services == 2 })
	f.put(es)
	poll.Until(t, "its endpoint", func() bool { return resolves(t, z, y, "10.1.0.1") })
	f.put(makeSlice("default", "y", "y-1", "10.1.0.2"))
	poll.Until(t, "its new endpoint", func() bool { return resolves(t, z, y, "10.1.0.2") })
	f.remove(makeSlice("default", "y", "y-1"))
	poll.Until(t, "an endpoint to go", func() bool { return resolves(t, z, y) })
	f.remove(makeService("default", "x", "10.0.0.1"))
	poll.Until(t, "a service to go", func() bool { return resolves(t, z, x) })

	st := v.Stats()
	if h := st.Programming["headless_with_selector"]; h.Count != 1 || h.Sum != 3 {
		t.Errorf("programming duration: %d values of %v s together, want one of 3 s", h.Count, h.Sum)
	}
	if n := f.requests("sendInitialEvents=true"); n != 3 {
		t.Errorf("%d streamed lists, want 3", n)
	}
	if n := f.requests("/services"); n != 1 {
		t.Errorf("%d requests for services, want 1", n)
	}
	want := []Requests{{Code: "200", Method: "GET", Host: strings.TrimPrefix(f.URL, "http://"), Count: 3}}
	if d := cmp.Diff(want, st.Requests); d != "" {
		t.Errorf("requests -want +got:\n%s", d)
	}
}

// A broken connection loses no event: the watch resumes.
func TestWatchResumes(t *testing.T) {
	f := newFakeServer(t)
	f.put(makeService("default", "x", "10.0.0.1"))
	v, z, log := openAndRun(t, f.URL)
	poll.Until(t, "the first sync", v.Synced)
	f.setFail(func(*http.Request) (int, metav1.StatusReason) {
		return http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable
	})
	f.disconnect()
	poll.Until(t, "a failed request", func() bool { return strings.Contains(log.String(), "API server unavailable") })
	if !resolves(t, z, x, "10.0.0.1") || !v.Synced() {
		t.Error("what was known is gone with the connection")
	}
	f.setFail(nil)
	poll.Until(t, "the watch to come back", func() bool { return strings.Contains(log.String(), "API server available again") })
	poll.Until(t, "all watches", func() bool { return f.requests("/services", "watch=true") >= 2 })
	f.put(makeService("default", "y", "10.0.0.2"))
	poll.Until(t, "a new service", func() bool { return resolves(t, z, y, "10.0.0.2") })
}

// An expired resourceVersion leads to a new list: deleted objects disappear, and the others
// are always there.
func TestWatchExpires(t *testing.T) {
	f := newFakeServer(t)
	f.put(makeService("default", "x", "10.0.0.1"))
	f.put(makeService("default", "y", "10.0.0.2"))
	v, z, _ := openAndRun(t, f.URL)
	poll.Until(t, "the first sync", v.Synced)
	f.setFail(func(req *http.Request) (int, metav1.StatusReason) {
		if req.URL.Query().Get("resourceVersion") != "" {
			return http.StatusGone, metav1.StatusReasonExpired
		}
		return 0, ""
	})
	f.disconnect()
	f.remove(makeService("default", "y", "10.0.0.2"))
	poll.Until(t, "the service that went", func() bool {
		if !resolves(t, z, x, "10.0.0.1") {
			t.Fatal("a service that stayed is gone")
		}
		return resolves(t, z, y)
	})
}

// A server that can't stream lists is asked for pages.
func TestWatchLists(t *testing.T) {
	f := newFakeServer(t)
	f.put(makeService("default", "x", "10.0.0.1"))
	f.setFail(func(req *http.Request) (int, metav1.StatusReason) {
		if req.URL.Query().Get("sendInitialEvents") != "" {
			return http.StatusUnprocessableEntity, metav1.StatusReasonInvalid
		}
		return 0, ""
	})
	v, z, _ := openAndRun(t, f.URL)
	poll.Until(t, "the first sync", v.Synced)
	if !resolves(t, z, x, "10.0.0.1") {
		t.Error("the service does not resolve")
	}
}

// A forbidden resource keeps the view unsynced, and the log names the missing RBAC rule
// once.
func TestWatchForbidden(t *testing.T) {
	f := newFakeServer(t)
	f.put(makeService("default", "x", "10.0.0.1"))
	f.setFail(func(req *http.Request) (int, metav1.StatusReason) {
		if strings.Contains(req.URL.Path, "endpointslices") {
			return http.StatusForbidden, metav1.StatusReasonForbidden
		}
		return 0, ""
	})
	v, z, log := openAndRun(t, f.URL)
	poll.Until(t, "the service", func() bool { return resolves(t, z, x, "10.0.0.1") })
	poll.Until(t, "three tries", func() bool { return f.requests("endpointslices") >= 3 })
	if v.Synced() {
		t.Error("the view says it is synced")
	}
	if _, outcome, _ := ask(t, z, y, dns.TypeA); outcome != NotSynced {
		t.Errorf("a name that may exist: outcome %d, want %d", outcome, NotSynced)
	}
	const rule = `apiGroups: [\\\"discovery.k8s.io\\\"], resources: [\\\"endpointslices\\\"], verbs: [\\\"list\\\", \\\"watch\\\"]`
	got := log.String()
	if strings.Count(got, "API server rejects request") != 1 || !strings.Contains(got, strings.ReplaceAll(rule, `\\\"`, `\"`)) || !strings.Contains(got, "verb=watch") {
		t.Errorf("the log is\n%s", got)
	}
	f.setFail(nil)
	poll.Until(t, "the sync after the rule was added", v.Synced)
}

// A view waits for a server that is not there at the start, and survives invalid events.
func TestWatchStartsLate(t *testing.T) {
	f := newFakeServer(t)
	var mu sync.Mutex
	broken := 0
	f.setFail(func(*http.Request) (int, metav1.StatusReason) {
		mu.Lock()
		defer mu.Unlock()
		broken++
		if broken <= 6 {
			return http.StatusBadGateway, ""
		}
		return 0, ""
	})
	f.put(makeService("default", "x", "10.0.0.1"))
	v, z, _ := openAndRun(t, f.URL)
	poll.Until(t, "the first sync", v.Synced)
	f.mu.Lock()
	f.tell("services", []byte("{\"type\":\"MODIFIED\",\"object\":{\"kind\"]}\n"))
	f.mu.Unlock()
	poll.Until(t, "a new watch", func() bool { return f.requests("/services", "watch=true") > 3 })
	if !resolves(t, z, x, "10.0.0.1") {
		t.Error("what was known is gone")
	}
	f.put(makeService("default", "y", "10.0.0.2"))
	poll.Until(t, "a new service", func() bool { return resolves(t, z, y, "10.0.0.2") })
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	cfg := testConfig(t)
	for _, c := range []struct {
		name   string
		change func()
		want   string
	}{
		{"nothing", func() {}, "no endpoint, kubeconfig or manifests"},
		{"labels", func() { cfg.Labels = "a in (" }, `labels "a in ("`},
		{"kubeconfig", func() { cfg.Kubeconfig = "/nowhere/config" }, "kubeconfig /nowhere/config"},
		{"manifests", func() { cfg.Manifests = []string{"/nowhere/x.yaml"} }, "manifests: finding a manifest: stat /nowhere/x.yaml"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg = testConfig(t)
			c.change()
			if _, err := Open(cfg, Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want it to say %s", err, c.want)
			}
		})
	}
}
