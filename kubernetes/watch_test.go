// Internal: the delays of a view are shared with tests of internals.

package kubernetes

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/poll"
	"github.com/nodens-dns/nodens/test/rig/fakeapi"
	"github.com/nodens-dns/nodens/test/testlog"
)

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
	noError(t, err)
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
	f := fakeapi.Start(t)
	f.Put(makeService("default", "x", "10.0.0.1"))
	f.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "bare"}})
	v, z, _ := openAndRun(t, f.URL)
	poll.Until(t, "the first sync", v.Synced)
	if !resolves(t, z, x, "10.0.0.1") {
		t.Error("a service of the first list does not resolve")
	}
	f.Put(makeService("default", "y", "None"))
	es := makeSlice("default", "y", "y-1", "10.1.0.1")
	es.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: testClock().Add(-3 * time.Second).Format(time.RFC3339)}
	poll.Until(t, "the new service", func() bool { return v.Stats().Services == 2 })
	f.Put(es)
	poll.Until(t, "its endpoint", func() bool { return resolves(t, z, y, "10.1.0.1") })
	f.Put(makeSlice("default", "y", "y-1", "10.1.0.2"))
	poll.Until(t, "its new endpoint", func() bool { return resolves(t, z, y, "10.1.0.2") })
	f.Remove(makeSlice("default", "y", "y-1"))
	poll.Until(t, "an endpoint to go", func() bool { return resolves(t, z, y) })
	f.Remove(makeService("default", "x", "10.0.0.1"))
	poll.Until(t, "a service to go", func() bool { return resolves(t, z, x) })

	st := v.Stats()
	if h := st.Programming["headless_with_selector"]; h.Count != 1 || h.Sum != 3 {
		t.Errorf("programming duration: %d values of %v s together, want one of 3 s", h.Count, h.Sum)
	}
	count(t, f.Requests("sendInitialEvents=true"), 2, "streamed lists")
	count(t, f.Requests("/services"), 2, "requests for services: a list and a watch")
	want := []Requests{{Code: "200", Method: "GET", Host: strings.TrimPrefix(f.URL, "http://"), Count: 4}}
	equal(t, want, st.Requests, "requests")
}

// A broken connection loses no event: the watch resumes.
func TestWatchResumes(t *testing.T) {
	f := fakeapi.Start(t)
	f.Put(makeService("default", "x", "10.0.0.1"))
	v, z, log := openAndRun(t, f.URL)
	poll.Until(t, "the first sync", v.Synced)
	f.SetFail(func(*http.Request) (int, metav1.StatusReason) {
		return http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable
	})
	f.Disconnect()
	poll.Until(t, "a failed request", func() bool { return strings.Contains(log.String(), "API server unavailable") })
	if !resolves(t, z, x, "10.0.0.1") || !v.Synced() {
		t.Error("what was known is gone with the connection")
	}
	f.SetFail(nil)
	poll.Until(t, "the watch to come back", func() bool { return strings.Contains(log.String(), "API server available again") })
	poll.Until(t, "all watches", func() bool { return f.Requests("/services", "watch=true") >= 2 })
	f.Put(makeService("default", "y", "10.0.0.2"))
	poll.Until(t, "a new service", func() bool { return resolves(t, z, y, "10.0.0.2") })
}

// An expired resourceVersion leads to a new list: deleted objects disappear, and the others
// are always there.
func TestWatchExpires(t *testing.T) {
	f := fakeapi.Start(t)
	f.Put(makeService("default", "x", "10.0.0.1"))
	f.Put(makeService("default", "y", "10.0.0.2"))
	v, z, _ := openAndRun(t, f.URL)
	poll.Until(t, "the first sync", v.Synced)
	f.SetFail(func(req *http.Request) (int, metav1.StatusReason) {
		if req.URL.Query().Get("resourceVersion") != "" {
			return http.StatusGone, metav1.StatusReasonExpired
		}
		return 0, ""
	})
	f.Disconnect()
	f.Remove(makeService("default", "y", "10.0.0.2"))
	poll.Until(t, "the service that went", func() bool {
		if !resolves(t, z, x, "10.0.0.1") {
			t.Fatal("a service that stayed is gone")
		}
		return resolves(t, z, y)
	})
	if g := v.Stats().Gaps; g.Relists == 0 || !g.LastRelist.Equal(testClock()) {
		t.Errorf("%d lists after the first, the last at %v", g.Relists, g.LastRelist)
	}
}

// A server that can't stream lists is asked for pages.
func TestWatchLists(t *testing.T) {
	f := fakeapi.Start(t)
	f.Put(makeService("default", "x", "10.0.0.1"))
	f.SetFail(func(req *http.Request) (int, metav1.StatusReason) {
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

// A view waits for a server that is not there at the start, and survives invalid events.
func TestWatchStartsLate(t *testing.T) {
	f := fakeapi.Start(t)
	var mu sync.Mutex
	broken := 0
	f.SetFail(func(*http.Request) (int, metav1.StatusReason) {
		mu.Lock()
		defer mu.Unlock()
		broken++
		if broken <= 6 {
			return http.StatusBadGateway, ""
		}
		return 0, ""
	})
	f.Put(makeService("default", "x", "10.0.0.1"))
	v, z, _ := openAndRun(t, f.URL)
	poll.Until(t, "the first sync", v.Synced)
	// How many of the failures were requests for Services is chance.
	before := f.Requests("/services", "watch=true")
	f.SendRaw("services", []byte("{\"type\":\"MODIFIED\",\"object\":{\"kind\"]}\n"))
	poll.Until(t, "a new watch", func() bool { return f.Requests("/services", "watch=true") > before })
	f.SendRaw("services", []byte("{\"type\":\"MODIFIED\",\"object\":{\"kind\":7}}\n"))
	poll.Until(t, "an unreadable object", func() bool { return v.Stats().Gaps.Unreadable == 1 })
	if !resolves(t, z, x, "10.0.0.1") {
		t.Error("what was known is gone")
	}
	f.Put(makeService("default", "y", "10.0.0.2"))
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
