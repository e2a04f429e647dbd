// Internal: shortens the delays of a view, and compares indexes.

package kubernetes

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/file"
	"github.com/nodens-dns/nodens/test/poll"
	"github.com/nodens-dns/nodens/test/rig/fakeapi"
	"github.com/nodens-dns/nodens/test/testlog"
)

// savingCluster is an API server at one address, and a view of it that is saved.
type savingCluster struct {
	t    *testing.T
	url  string
	path string
	// lists and watches are the servers that answer them.
	lists, watches atomic.Pointer[fakeapi.Server]
	now            time.Time
	marks          int
	// nodeZone is the zone that the API server gives for the Node; nil is none, and the view is told that it is z1.
	nodeZone  atomic.Pointer[string]
	podLabels []string // see [Options.PodLabels]
}

func newSavingCluster(t *testing.T) *savingCluster {
	c := &savingCluster{t: t, path: t.TempDir() + "/view", now: testClock()}
	c.replace(fakeapi.New())
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if zone := c.nodeZone.Load(); strings.HasPrefix(req.URL.Path, "/api/v1/nodes/") && zone != nil {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1","labels":{%q:%q}}}`, zoneLabelKey, *zone)
			return
		}
		if q := req.URL.Query(); q.Get("watch") != "" && q.Get("sendInitialEvents") == "" {
			c.watches.Load().ServeHTTP(w, req)
			return
		}
		c.lists.Load().ServeHTTP(w, req)
	}))
	c.url = front.URL
	t.Cleanup(front.Close)
	return c
}

// replace puts another API server at the address, and returns it.
func (c *savingCluster) replace(s *fakeapi.Server) *fakeapi.Server {
	c.t.Cleanup(s.Close)
	c.lists.Store(s)
	c.watches.Store(s)
	return s
}

// savingView is a view that runs.
type savingView struct {
	*View
	zone *Zone
	log  *testlog.Buffer
	stop func()

	observing sync.Mutex
	pods      map[netip.Addr]NodePod // as reported
}

// observed returns the pods that v has reported.
func (v *savingView) observed() map[netip.Addr]NodePod {
	v.observing.Lock()
	defer v.observing.Unlock()
	return maps.Clone(v.pods)
}

// observePod is [Options.ObservePod].
func (v *savingView) observePod(a netip.Addr, p NodePod) {
	v.observing.Lock()
	defer v.observing.Unlock()
	if v.pods[a] = p; p == (NodePod{}) {
		delete(v.pods, a)
	}
}

// start opens a view and runs it until the test ends.
func (c *savingCluster) start(change func(*config.Kubernetes)) *savingView {
	c.t.Helper()
	cfg := testConfig(c.t)
	cfg.Endpoint, cfg.Save = c.url, c.path
	if change != nil {
		change(cfg)
	}
	log, zone := new(testlog.Buffer), "z1"
	if c.nodeZone.Load() != nil {
		zone = ""
	}
	s := &savingView{log: log, pods: make(map[netip.Addr]NodePod)}
	v, err := Open(cfg, Options{
		Node: "n1", Zone: zone, Log: slog.New(slog.NewTextHandler(log, nil)), Now: func() time.Time { return c.now },
		ObserveNamespace: func(string, string) {}, ObservePod: s.observePod, PodLabels: c.podLabels,
	})
	noError(c.t, err)
	shortenDelays(v)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { v.Run(ctx); close(done) }()
	s.View, s.zone, s.stop = v, NewZone(v, cfg), func() { cancel(); <-done }
	c.t.Cleanup(s.stop)
	return s
}

// fillCluster writes a cluster of three Services.
func fillCluster(s *fakeapi.Server) {
	s.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{ClientMetricsAnnotation: "off"}}})
	s.Put(makeService("a", "db", "None"))
	s.Put(makeService("a", "old", "10.0.0.9"))
	s.Put(makeService("a", "web", "10.0.0.1"))
	faulty := makeService("a", "faulty", "10.0.0.8")
	faulty.Spec.ClusterIPs = []string{"10.0.0.8", "none"}
	s.Put(faulty)
	s.Put(makeSlice("a", "web", "web-0", "10.1.0.5"))
	s.Put(makeSlice("a", "db", "db-0", "10.1.0.9"))
	s.Put(makeSlice("a", "db", "db-1", "10.1.0.1"))
	s.Put(makeSlice("a", "db", "db-2")) // which stays as it is
	s.Put(makePod("a", "p", "10.1.0.1"))
}

// changeCluster changes it.
func changeCluster(s *fakeapi.Server) {
	s.Remove(makeService("a", "old", "10.0.0.9"))
	s.Put(makeService("a", "new", "10.0.0.2"))
	s.Remove(makeSlice("a", "db", "db-0"))
	s.Put(makeSlice("a", "db", "db-1", "10.1.0.2"))
}

// await waits until the view answers with the last change of the cluster.
func (v *savingView) await(t *testing.T) {
	t.Helper()
	for name, want := range map[string][]string{"db": {"10.1.0.2"}, "web": {"10.0.0.1"}, "new": {"10.0.0.2"}} {
		poll.Until(t, name+" to change", func() bool { return resolves(t, v.zone, name+".a.svc.cluster.local", want...) })
	}
	poll.Until(t, "a Service to be deleted", func() bool {
		m, outcome, _ := ask(t, v.zone, "old.a.svc.cluster.local", dns.TypeA)
		return outcome == Answered && m.Rcode == dns.RcodeNameError
	})
}

// stopFollowing stops the view when it has listed everything.
func (v *savingView) stopFollowing(t *testing.T) {
	t.Helper()
	poll.Until(t, "the sync", v.Synced)
	poll.Until(t, "the positions", func() bool {
		v.mu.RLock()
		defer v.mu.RUnlock()
		return len(v.index.sources) > 0 && len(v.positions()) == 3+len(v.index.sources)
	})
	v.stop()
}

// stopSynced stops the view, which saves it, when it has all of the cluster.
func (v *savingView) stopSynced(t *testing.T) {
	t.Helper()
	poll.Until(t, "the namespace", func() bool { return v.Stats().Namespaces == 1 })
	poll.Until(t, "the endpoints", func() bool { return resolves(t, v.zone, "db.a.svc.cluster.local", "10.1.0.1", "10.1.0.9") })
	v.stopFollowing(t)
}

// lists counts the lists of s so far, by resource.
func lists(s *fakeapi.Server) map[string]int {
	n := map[string]int{}
	for _, plural := range []string{"services", "namespaces", "endpointslices", "pods"} {
		if k := s.Lists(plural); k > 0 {
			n[plural] = k
		}
	}
	return n
}

// once is a list of each resource.
var once = map[string]int{"services": 1, "namespaces": 1, "endpointslices": 1, "pods": 1}

// A view goes on from its file without lists. Whenever that could give wrong answers, it lists.
func TestResume(t *testing.T) {
	restored := func(c *savingCluster, more int) {
		s := c.replace(fakeapi.New())
		s.Put(makeService("a", "web", "10.0.0.1"))
		for range more {
			s.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
		}
		s.Put(makeService("a", "db", "None"))
		s.Put(makeService("a", "new", "10.0.0.2"))
		s.Put(makeSlice("a", "db", "db-1", "10.1.0.2"))
		s.Put(makePod("a", "p", "10.1.0.1"))
	}
	for name, tt := range map[string]struct {
		// prepare is done between the two runs, beside the change.
		prepare func(*savingCluster, *fakeapi.Server)
		config  func(*config.Kubernetes)
		lists   map[string]int
		log     string
	}{
		"goes on": {lists: map[string]int{}, log: "watching on"},
		"set back": {
			prepare: func(c *savingCluster, _ *fakeapi.Server) { restored(c, 0) },
			lists:   once, log: "were set back",
		},
		"set back, and beyond since": {
			prepare: func(c *savingCluster, _ *fakeapi.Server) { restored(c, 100) },
			lists:   once, log: "has not the data of the saved view",
		},
		"another cluster": {
			prepare: func(c *savingCluster, _ *fakeapi.Server) {
				s := c.replace(fakeapi.New())
				for i := range 100 {
					s.Put(makeService("z", fmt.Sprint("s", i), "10.9.0.1"))
				}
				s.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
				s.Put(makeService("a", "web", "10.0.0.1"))
				changeCluster(s)
				s.Put(makeService("a", "db", "None"))
				s.Put(makePod("a", "p", "10.1.0.1"))
			},
			lists: once,
		},
		"expired": {
			prepare: func(_ *savingCluster, s *fakeapi.Server) { s.Forget() },
			lists:   once, log: "watching on",
		},
		"all objects that tell have changed": {
			prepare: func(_ *savingCluster, s *fakeapi.Server) {
				for _, name := range []string{"db", "web", "faulty"} {
					s.Remove(makeService("a", name, ""))
				}
				s.Put(makeService("a", "web", "10.0.0.1"))
				s.Put(makeService("a", "db", "None"))
			},
			lists: map[string]int{"services": 1}, log: "watches=3",
		},
		"too old":         {prepare: func(c *savingCluster, _ *fakeapi.Server) { c.now = c.now.Add(maxResumeAge + time.Second) }, lists: once},
		"from the future": {prepare: func(c *savingCluster, _ *fakeapi.Server) { c.now = c.now.Add(-time.Second) }, lists: once},
		"damaged": {
			prepare: func(c *savingCluster, _ *fakeapi.Server) {
				b, err := os.ReadFile(c.path)
				noError(c.t, err)
				b[len(b)/2] ^= 1
				noError(c.t, os.WriteFile(c.path, b, 0o600))
			},
			lists: once, log: "wrong checksum",
		},
		"another selector": {config: func(cfg *config.Kubernetes) { cfg.Labels = "!hidden" }, lists: once, log: "other options"},
		"another scope": {
			config: func(cfg *config.Kubernetes) { cfg.Scope, cfg.AllEndpoints = config.ScopeCluster, true },
			lists:  map[string]int{"endpointslices": 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newSavingCluster(t)
			s := c.lists.Load()
			fillCluster(s)
			v := c.start(nil)
			v.stopSynced(t)
			changeCluster(s)
			if tt.prepare != nil {
				tt.prepare(c, s)
			}
			before := map[string]int{}
			if c.lists.Load() == s {
				before = lists(s)
			}
			v = c.start(tt.config)
			v.await(t)
			since := func() map[string]int {
				got := lists(c.lists.Load())
				for plural, n := range before {
					if got[plural] -= n; got[plural] == 0 {
						delete(got, plural)
					}
				}
				return got
			}
			poll.Until(t, "the lists", func() bool { return len(since()) >= len(tt.lists) })
			equal(t, tt.lists, since(), "lists; the log is\n%s", v.log)
			if !strings.Contains(v.log.String(), tt.log) {
				t.Errorf("the log lacks %q:\n%s", tt.log, v.log)
			}
		})
	}
}

// A watch that begins at an API server that is behind misses nothing, and shows nothing that is older.
func TestResumeAtStaleServer(t *testing.T) {
	c := newSavingCluster(t)
	s, behind := c.lists.Load(), fakeapi.New()
	t.Cleanup(behind.Close)
	fillCluster(s)
	c.start(nil).stopSynced(t)
	c.watches.Store(behind)
	changeCluster(s)
	v := c.start(nil)
	poll.Until(t, "the watches", func() bool { return behind.Requests("watch=true") >= 3 })
	fillCluster(behind)
	if !resolves(t, v.zone, "old.a.svc.cluster.local", "10.0.0.9") || resolves(t, v.zone, "new.a.svc.cluster.local", "10.0.0.2") {
		t.Error("the view is not as it was saved")
	}
	changeCluster(behind)
	v.await(t)
	equal(t, once, lists(s), "lists")
}

// What is known of objects besides the index is as after a list.
func TestResumeKeepsFaultsAndAnnotations(t *testing.T) {
	c := newSavingCluster(t)
	s := c.lists.Load()
	fillCluster(s)
	for range 3 {
		v := c.start(nil)
		poll.Until(t, "the faults and annotations", func() bool { return v.Stats().Faulty == 1 && v.annotations.get("a") == "off" })
		v.stopSynced(t)
	}
	equal(t, once, lists(s), "lists")
	count(t, s.Requests("/endpointslices?", "limit=1"), 1, "questions whether slices may be listed")
	mended := makeService("a", "faulty", "10.0.0.8")
	s.Put(mended)
	s.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	v := c.start(nil)
	poll.Until(t, "the end of both", func() bool { return v.Stats().Faulty == 0 && v.annotations.get("a") == "" })
}

// A restored view is as old as its file until the API server has sent something.
func TestResumeAge(t *testing.T) {
	c := newSavingCluster(t)
	s := c.lists.Load()
	fillCluster(s)
	s.Remove(makePod("a", "p", "10.1.0.1")) // a list of pods would be a sign of life
	v := c.start(func(cfg *config.Kubernetes) { cfg.Scope, cfg.AllEndpoints = config.ScopeCluster, true })
	v.stopSynced(t)
	saved := c.now
	c.now = c.now.Add(time.Minute)
	s.SetFail(func(req *http.Request) (int, metav1.StatusReason) {
		if strings.HasSuffix(req.URL.Path, "/pods") {
			return http.StatusForbidden, metav1.StatusReasonForbidden
		}
		return 0, ""
	})
	v = c.start(func(cfg *config.Kubernetes) { cfg.Scope, cfg.AllEndpoints = config.ScopeCluster, true })
	poll.Until(t, "the watches", func() bool { return s.Requests("resourceVersion=some", "watch=true") >= 3 })
	if at := v.Stats().LastEvent; !at.Equal(saved) || !v.Synced() {
		t.Errorf("synced %v, last event %v, want %v", v.Synced(), at, saved)
	}
	s.Put(makeService("a", "new", "10.0.0.2"))
	poll.Until(t, "a sign of life", func() bool { return v.Stats().LastEvent.Equal(c.now) })
}

// After random changes a view that has gone on, again and again, is the same as one that has listed.
func TestResumeEqualsList(t *testing.T) {
	for seed := range uint64(10) {
		random := rand.New(rand.NewPCG(seed, 0))
		c := newSavingCluster(t)
		c.podLabels = []string{"app", "none"}
		s := c.lists.Load()
		fillCluster(s)
		scope := func(cfg *config.Kubernetes) { // at each level
			switch seed % 3 {
			case 1:
				cfg.Scope = config.ScopeCluster
			case 2:
				cfg.Scope, cfg.AllEndpoints = config.ScopeCluster, true
			}
		}
		for range 4 {
			v := c.start(scope)
			for range 20 {
				randomChange(random, s)
			}
			c.awaitLast(t, v)
			v.stopFollowing(t)
			for range 20 {
				randomChange(random, s)
			}
		}
		v := c.start(scope)
		c.awaitLast(t, v)
		if n := lists(s); n["services"] != 1 || n["namespaces"] != 1 || n["pods"] != 1 {
			t.Errorf("seed %d: lists %v\n%s", seed, n, v.log)
		}
		c.path += "-other"
		w := c.start(scope)
		c.awaitLast(t, w)
		poll.Until(t, "the views to be the same", func() bool { // one may drop slices before the other
			for _, v := range []*savingView{v, w} { // which Services were in use before does not count
				v.scope.tick.Add(idleTicks + 1)
				v.requestReconcile()
			}
			a, b := v.Stats(), w.Stats()
			return v.indexDump() == w.indexDump() && a.Faulty == b.Faulty && a.Slices == b.Slices && maps.Equal(v.observed(), w.observed())
		})
		v.stop()
		w.stop()
	}
}

func (v *View) indexDump() string {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.index.dump()
}

// randomChange writes or deletes an object.
func randomChange(random *rand.Rand, s *fakeapi.Server) {
	ns, i := string("ab"[random.IntN(2)]), random.IntN(6)
	ip := fmt.Sprintf("10.%d.0.%d", random.IntN(4), i+1)
	if i%2 == 0 && random.IntN(2) == 0 {
		ip = "None"
	}
	service := makeService(ns, fmt.Sprint("s", i), ip)
	slice := makeSlice(ns, fmt.Sprint("s", random.IntN(6)), fmt.Sprint("s", i), "10.1.1."+fmt.Sprint(1+random.IntN(9)))
	pod := makePod(ns, fmt.Sprint("p", i), fmt.Sprint("10.2.0.", 1+random.IntN(4)))
	pod.UID, pod.Labels = types.UID(fmt.Sprint("u", random.IntN(3))), map[string]string{"app": fmt.Sprint("a", random.IntN(3))}
	switch random.IntN(4) {
	case 0:
		pod.Status.PodIPs = nil // it waits for its address
	case 1:
		pod.Status.Phase = corev1.PodSucceeded
	}
	switch random.IntN(11) {
	case 0, 1:
		s.Put(service)
	case 2, 3:
		s.Put(slice)
	case 4:
		s.Remove(service)
	case 5:
		s.Remove(slice)
	case 6, 7, 8:
		s.Put(pod)
	case 9:
		s.Remove(pod)
	default:
		s.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	}
}

// awaitLast waits until v has what the API server has now, by objects that are written last.
func (c *savingCluster) awaitLast(t *testing.T, v *savingView) {
	t.Helper()
	c.marks++
	mark, s := fmt.Sprint("mark-", c.marks), c.lists.Load() // never changed: tells the history
	s.Put(makeService("a", mark, "None"))
	s.Put(makeSlice("a", mark, mark, "10.3.0.1"))
	s.Put(makePod("a", mark))
	s.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: mark}})
	poll.Until(t, mark, func() bool { return resolves(t, v.zone, mark+".a.svc.cluster.local", "10.3.0.1") })
	poll.Until(t, "its namespace and pod", func() bool {
		v.mu.RLock()
		defer v.mu.RUnlock()
		if v.index.pods["a/"+mark] == nil {
			return false
		}
		ns := v.index.namespaces[fmt.Sprintf("%c%s", len(mark), mark)]
		return ns != nil && ns.hasObject
	})
}

// Slices that were saved without the node's zone are listed once it is known.
func TestResumeInAnotherZone(t *testing.T) {
	c := newSavingCluster(t)
	s := c.lists.Load()
	fillCluster(s)
	for i, want := range []int{1, 2, 2} {
		zone := []string{"", "z1", "z1"}[i]
		c.nodeZone.Store(&zone)
		v := c.start(nil)
		poll.Until(t, "the zone", func() bool { return v.sliceConverter().zone == zone })
		poll.Until(t, "the lists", func() bool { return lists(s)["endpointslices"] >= want })
		v.stopSynced(t)
		equal(t, map[string]int{"services": 1, "namespaces": 1, "endpointslices": want, "pods": 1}, lists(s), "lists in run %d", i)
	}
}

// The position of a source that is not needed at the start is of no use later: its slices have been dropped.
func TestResumeForgetsUnusedPositions(t *testing.T) {
	c := newSavingCluster(t)
	s := c.lists.Load()
	fillCluster(s)
	c.start(func(cfg *config.Kubernetes) { cfg.Scope = config.ScopeCluster }).stopFollowing(t)
	v := c.start(nil)
	poll.Until(t, "the end of the positions", func() bool {
		if v.Stats().Level != "node" {
			return false
		}
		v.mu.RLock()
		defer v.mu.RUnlock()
		return len(v.saved) == 0
	})
}

// Without a position of slices, their versions are of no known history.
func TestResumeForgetsVersions(t *testing.T) {
	path := t.TempDir() + "/view"
	v, _ := openSaved(t, savedConfig(t, path))
	es := makeSlice("a", "web", "web-1", "10.1.0.1")
	es.ResourceVersion = "77"
	(&handler{view: v, resource: endpointSlices, source: &sliceSource{view: v}}).Upsert(es, true)
	noError(t, file.Replace(path, savedView{v}.writeSaved))
	back, _ := openSaved(t, savedConfig(t, path))
	count(t, back.index.slices["a/web-1"].version, 77, "is the version in the file")
	back.source.(*apiSource).verifySaved(t.Context())
	count(t, back.index.slices["a/web-1"].version, 0, "is the version")
}

// Pods are listed if the file lacks what the view reports of them, and those of other nodes are forgotten in any case.
func TestResumePods(t *testing.T) {
	c := newSavingCluster(t)
	s := c.lists.Load()
	fillCluster(s)
	labelled := makePod("a", "p", "10.1.0.1")
	labelled.Labels = map[string]string{"app": "web"}
	s.Put(labelled)
	at := netip.MustParseAddr("10.1.0.1")
	for i, tt := range []struct {
		labels []string
		values string
		lists  int
	}{
		{[]string{"app"}, "web\x00", 1},
		{[]string{"app"}, "web\x00", 1},
		{[]string{"none", "app"}, "\x00web\x00", 2},
		{nil, "", 3},
		{nil, "", 3},
	} {
		c.podLabels = tt.labels
		v := c.start(nil)
		poll.Until(t, "the pod, and none of another node", func() bool {
			seen := v.observed()[at]
			v.mu.RLock()
			defer v.mu.RUnlock()
			return seen.Labels == tt.values && seen.Name == "p" && v.index.pods["a/elsewhere"] == nil
		})
		v.mu.Lock()
		v.index.putPod(&pod{name: "a/elsewhere", ns: "\x01a", label: []byte("\x01a"), ips: []string{"\x0a\x09\x00\x01"}})
		v.mu.Unlock()
		v.stopSynced(t)
		count(t, lists(s)["pods"], tt.lists, fmt.Sprint("lists of pods after run ", i))
	}
}

// What policies and metrics need of pods is in the file, or they are listed.
func TestHasPods(t *testing.T) {
	for name, tt := range map[string]struct {
		opts Options
		head savedHead
		want bool
	}{
		"nothing to know":       {want: true},
		"observed":              {Options{ObservePod: func(netip.Addr, NodePod) {}}, savedHead{Observed: true}, true},
		"not observed":          {Options{ObservePod: func(netip.Addr, NodePod) {}}, savedHead{}, false},
		"other labels":          {Options{ObservePod: func(netip.Addr, NodePod) {}, PodLabels: []string{"a"}}, savedHead{Observed: true}, false},
		"policies":              {Options{Policies: dnspolicy.NewTable()}, savedHead{Policies: true}, true},
		"policies not all read": {Options{Policies: dnspolicy.NewTable()}, savedHead{}, false},
	} {
		if got := newView(tt.opts).hasPods(&tt.head); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// Only a complete view of this version, in time, is resumed.
func TestResumable(t *testing.T) {
	v := emptyView()
	v.now = testClock
	for name, tt := range map[string]struct {
		head savedHead
		want bool
	}{
		"just now":           {savedHead{Conversion: conversionVersion, At: testClock()}, true},
		"an earlier version": {savedHead{At: testClock()}, false},
		"a later version":    {savedHead{Conversion: conversionVersion + 1, At: testClock()}, false},
		"the oldest":         {savedHead{Conversion: conversionVersion, At: testClock().Add(-maxResumeAge)}, true},
		"older":              {savedHead{Conversion: conversionVersion, At: testClock().Add(-maxResumeAge - 1)}, false},
	} {
		if got := v.resumable(&tt.head); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// What handlers make of objects changes only with conversionVersion: a resumed view keeps the records of the agent
// before.
func TestConversionVersion(t *testing.T) {
	v, _ := openSaved(t, savedConfig(t, t.TempDir()+"/view"))
	w := newWorld(1)
	for range 500 {
		w.step(v)
	}
	_, records := savedView{v}.savedRecords()
	var lines []string
	for _, record := range records {
		r := record()
		line := ""
		for _, o := range []any{r.Namespace, r.Service, r.Slice, r.Pod, r.Fault} {
			line += fmt.Sprintf("%+q\n", o)
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	const want = "2 04f6a6e53b99717b"
	got := fmt.Sprintf("%d %.8x", conversionVersion, sha256.Sum256([]byte(strings.Join(lines, "\n"))))
	if got != want {
		t.Errorf("version and hash of the records are %q, want %q: increase conversionVersion, unless only this test has changed", got, want)
	}
}
