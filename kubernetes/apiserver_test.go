// Internal: shortens the delays of a view.

package kubernetes

import (
	"bytes"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/miekg/dns"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/poll"
	"github.com/nodens-dns/nodens/test/rig/fakeapi"
	"github.com/nodens-dns/nodens/test/testlog"
)

// openAndRunScoped opens a view of the default scope, on node n1, and runs it until the
// test ends.
func openAndRunScoped(t *testing.T, url string, change func(*config.Kubernetes)) (*View, *Zone, *testlog.Buffer) {
	t.Helper()
	return openAndRunWith(t, url, Options{Node: "n1", Zone: "z1"}, change)
}

// Whichever resource is forbidden, the log names the missing RBAC rule. The view is not synced, except
// without pods: then names that do not exist are denied, because no Service depends on pods.
func TestForbidden(t *testing.T) {
	for plural, group := range map[string]string{
		"services": "", "namespaces": "", "pods": "", "endpointslices": "discovery.k8s.io",
	} {
		t.Run(plural, func(t *testing.T) {
			f := fakeapi.Start(t)
			f.SetFail(func(req *http.Request) (int, metav1.StatusReason) {
				if strings.HasSuffix(req.URL.Path, "/"+plural) {
					return http.StatusForbidden, metav1.StatusReasonForbidden
				}
				return 0, ""
			})
			v, z, log := openAndRunScoped(t, f.URL, nil)
			rule := `apiGroups: [\"` + group + `\"], resources: [\"` + plural + `\"]`
			poll.Until(t, "the rule in the log", func() bool { return strings.Contains(log.String(), rule) })
			poll.Until(t, "three tries", func() bool { return f.Requests("/"+plural) >= 3 })
			if plural == "pods" {
				poll.Until(t, "the sync without pods", v.Synced)
				if m, outcome, _ := ask(t, z, "none.a.svc.cluster.local", dns.TypeA); outcome != Answered || m.Rcode != dns.RcodeNameError {
					t.Errorf("a name that does not exist: outcome %d, %s", outcome, dns.RcodeToString[m.Rcode])
				}
			} else if v.Synced() {
				t.Error("the view says it is synced")
			}
			f.SetFail(nil)
			poll.Until(t, "the sync after the rule was added", v.Synced)
			poll.Until(t, "all lists", func() bool { return len(v.Stats().Gaps.Unlisted) == 0 })
		})
	}
}

// At the default scope slices are listed by the names of their Services: those in the namespaces of the node's pods before the
// view is synced, others when a query needs them.
func TestFollowsByName(t *testing.T) {
	f := fakeapi.Start(t)
	for _, ns := range []string{"a", "b", "c"} {
		f.Put(makeService(ns, "db", "None"))
		f.Put(makeSlice(ns, "db", "db-"+ns, "10.1.0.1"))
	}
	f.Put(makeService("a", "web", "None"))
	f.Put(makePod("a", "p", "10.1.0.1"))
	v, z, _ := openAndRunScoped(t, f.URL, nil)
	poll.Until(t, "the sync", v.Synced)
	if !resolves(t, z, "db.a.svc.cluster.local", "10.1.0.1") {
		t.Error("the namespace of the node's pod is not in view")
	}
	if _, outcome, _ := ask(t, z, "db.b.svc.cluster.local", dns.TypeA); outcome != Incomplete {
		t.Errorf("outcome %d, want %d", outcome, Incomplete)
	}
	poll.Until(t, "the namespace that was asked for", func() bool { return resolves(t, z, "db.b.svc.cluster.local", "10.1.0.1") })
	for path, want := range map[string]int{
		"labelSelector=kubernetes.io%2Fservice-name+in+%28db%2Cweb%29": 1, "labelSelector=kubernetes.io%2Fservice-name+in+%28db%29": 1,
		"/namespaces/": 0, "v1/endpointslices?limit=1": 1,
	} {
		if got := f.Requests(path); got != want {
			t.Errorf("%d requests for %s, want %d", got, path, want)
		}
	}
	ofNode := "spec.nodeName%3Dn1"
	count(t, f.Requests("/pods", ofNode)-f.Requests("/pods", ofNode, "watch=true"), 1, "lists of the node's pods")
	st := v.Stats()
	if st.Level != "node" || st.Sources != 2 || st.Pods != 1 {
		t.Errorf("%+v", st)
	}
}

// Names of other nodes' pods are incomplete, until a caller without another server waits
// for them.
func TestVerifiedPods(t *testing.T) {
	f := fakeapi.Start(t)
	f.Put(makePod("a", "here", "10.1.0.1", "fd00::1"))
	f.Put(makeService("a", "web", "10.0.0.1"))
	verified := func(c *config.Kubernetes) { c.Pods, c.Labels = config.PodsVerified, "!hidden" }
	v, z, _ := openAndRunScoped(t, f.URL, verified)
	poll.Until(t, "the sync", v.Synced)
	poll.Until(t, "the watch of the node's pods", func() bool { return f.Requests("/pods") == 2 })
	for name, want := range map[string]struct {
		qtype   uint16
		outcome Outcome
	}{
		"10-1-0-1.a.pod.cluster.local":    {dns.TypeA, Answered},
		"fd00--1.a.pod.cluster.local":     {dns.TypeAAAA, Answered},
		"10-1-0-2.a.pod.cluster.local":    {dns.TypeA, Incomplete},
		"10-1-0-1.none.pod.cluster.local": {dns.TypeA, Answered}, // such a namespace there is not
	} {
		if _, outcome, _ := ask(t, z, name, want.qtype); outcome != want.outcome {
			t.Errorf("%s: outcome %d, want %d", name, outcome, want.outcome)
		}
	}
	q := parsed(t, "10-1-0-2.a.pod.cluster.local", dns.TypeA)
	noError(t, z.Await(t.Context(), &q))
	msg, outcome, _ := ask(t, z, "10-1-0-2.a.pod.cluster.local", dns.TypeA)
	if outcome != Answered || msg.Rcode != dns.RcodeNameError {
		t.Errorf("outcome %d, %v", outcome, msg)
	}
	hidden := makePod("a", "hidden", "10.1.0.3")
	hidden.Labels = map[string]string{"hidden": "yes"}
	f.Put(hidden)
	shown := makePod("a", "shown", "10.1.0.4")
	f.Put(shown)
	poll.Until(t, "a new pod's name", func() bool { return resolves(t, z, "10-1-0-4.a.pod.cluster.local", "10.1.0.4") })
	if resolves(t, z, "10-1-0-3.a.pod.cluster.local", "10.1.0.3") {
		t.Error("a pod that labels leaves out has a name")
	}
	count(t, f.Requests("/pods"), 3, "requests for pods: a list and a watch of those of the node, and then all")
}

// A saved view answers at once; changes since then come with the first lists.
func TestFollowsFromSaved(t *testing.T) {
	path := t.TempDir() + "/view"
	save := func(c *config.Kubernetes) { c.Save = path }
	f := fakeapi.Start(t)
	f.Put(makeService("a", "db", "None"))
	f.Put(makeService("a", "old", "10.0.0.9"))
	f.Put(makeSlice("a", "db", "db-1", "10.1.0.1"))
	f.Put(makePod("a", "p", "10.1.0.1"))
	t.Run("first", func(t *testing.T) {
		v, z, _ := openAndRunScoped(t, f.URL, save)
		poll.Until(t, "the sync", v.Synced)
		poll.Until(t, "the slices", func() bool { return resolves(t, z, "db.a.svc.cluster.local", "10.1.0.1") })
	})
	f.Remove(makeService("a", "old", "10.0.0.9"))
	f.Put(makeSlice("a", "db", "db-1", "10.1.0.2"))
	f.SetFail(func(*http.Request) (int, metav1.StatusReason) { return http.StatusServiceUnavailable, "" })
	v, z, log := openAndRunScoped(t, f.URL, save)
	if !v.Synced() || !resolves(t, z, "db.a.svc.cluster.local", "10.1.0.1") || !resolves(t, z, "old.a.svc.cluster.local", "10.0.0.9") {
		t.Fatalf("not started from the file: %s", log)
	}
	f.SetFail(nil)
	poll.Until(t, "what has changed", func() bool { return resolves(t, z, "db.a.svc.cluster.local", "10.1.0.2") })
	poll.Until(t, "what has gone", func() bool { return !resolves(t, z, "old.a.svc.cluster.local", "10.0.0.9") })
}

// The faults of a slice without any record are logged once, however often the slice
// arrives.
func TestInvalidSliceIsLoggedOnce(t *testing.T) {
	v := emptyView()
	log := new(testlog.Buffer)
	v.log = slog.New(slog.NewTextHandler(log, nil))
	for range 3 {
		handlerFixture{v, endpointSlices}.put(makeSlice("a", "no.label", "x-1", "10.1.0.1"))
	}
	if n := strings.Count(log.String(), "that DNS can't show"); n != 1 || v.Stats().Faults != 1 {
		t.Errorf("%d lines and %d faults, want one of each:\n%s", n, v.Stats().Faults, log)
	}
}

// When a pod's address may belong to a new pod, it belongs to no namespace.
func TestClientNamespaceOfReusedAddress(t *testing.T) {
	v := emptyView()
	z := NewZone(v, testConfig(t))
	at := netipAddr(t, "10.1.0.1")
	home := func(want string) {
		t.Helper()
		ns, ok := z.ClientNamespace(at)
		if want == "" && ok || want != "" && (!ok || !bytes.Equal(ns, []byte("\x01"+want))) {
			t.Errorf("home %q %v, want %q", ns, ok, want)
		}
	}
	tell := handlerFixture{v, pods}
	tell.setNode("n1")
	home("")
	tell.put(makePod("a", "first", "10.1.0.1"))
	home("a")
	// The next pod is put on the node. It may get the address as soon as the first one
	// ends, which the view may not have heard of.
	tell.put(makePod("b", "second"))
	home("")
	tell.put(makePod("b", "second", "10.1.0.2"))
	home("a") // it has got another one
	tell.put(makePod("c", "third"))
	tell.put(makePod("c", "third", "10.1.0.1"))
	home("") // two have it
	ending := makePod("a", "first", "10.1.0.1")
	ending.DeletionTimestamp = &metav1.Time{Time: testClock()}
	tell.put(ending)
	home("")
	tell.drop(ending)
	home("c")
	done := makePod("c", "third", "10.1.0.1")
	done.Status.Phase = "Succeeded"
	tell.put(done)
	home("")
	host := makePod("d", "host", "10.1.0.1")
	host.Spec.HostNetwork = true
	tell.put(host)
	home("") // that is the node's own address
	other := makePod("e", "other", "10.1.0.3")
	other.Spec.NodeName = "n2"
	tell.put(other)
	at = netipAddr(t, "10.1.0.3")
	home("")
}
