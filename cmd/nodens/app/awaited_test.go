// These tests use startAgent and lookedAt, which are not exported.

package app

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/fakeapi"
)

// clusterUnderChange is an agent whose view of the cluster is synced, and its API server, which can go away.
type clusterUnderChange struct {
	*agenttest.Agent
	api       *fakeapi.Server
	dns, http uint16
	elsewhere uint16 // nobody listens there
}

// clusterName is a name that the API server knows.
const (
	clusterName = "web.shop.svc.cluster.local."
	clusterIP   = "10.96.0.1"
)

// startUnderChange returns an agent that answers clusterName.
func startUnderChange(t *testing.T, changes ...func(*options.Agent)) *clusterUnderChange {
	api := fakeapi.Start(t)
	api.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	api.Put(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIP: clusterIP, ClusterIPs: []string{clusterIP}}})
	p := peer.Ports(t, 3)
	x := &clusterUnderChange{api: api, dns: p[0], http: p[1], elsewhere: p[2]}
	x.Agent = startAgent(t, x.corefile("", ""), append(changes, func(o *options.Agent) { o.NodeName = "n1" })...)
	x.Await("the view", func() bool { return agenttest.Metric(t, x.http, "nodens_kubernetes_synced") == "1" })
	return x
}

// corefile returns a Corefile with options of kubernetes, and further directives.
func (x *clusterUnderChange) corefile(options, directives string) string {
	if !strings.Contains(options, "endpoint ") {
		options += "\n  endpoint " + x.api.URL
	}
	return fmt.Sprintf("cluster.local:%d {\n bind 127.0.0.1\n prometheus 127.0.0.1:%d\n kubernetes {\n  startup_timeout 1ms\n  %s\n }\n %s\n}\n", x.dns, x.http, options, directives)
}

// setAway makes the API server refuse everything, or answer again.
func (x *clusterUnderChange) setAway(away bool) {
	if !away {
		x.api.SetFail(nil)
		return
	}
	x.api.SetFail(func(*http.Request) (int, metav1.StatusReason) {
		return http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable
	})
	x.api.Disconnect()
}

// expect checks the answer for clusterName, and whether a configuration is said to wait.
func (x *clusterUnderChange) expect(what string, awaited string) {
	x.T.Helper()
	if got := agenttest.Ask(x.T, x.dns, clusterName); got != clusterIP {
		x.T.Errorf("%s: the name is %s, want %s", what, got, clusterIP)
	}
	if got := agenttest.Metric(x.T, x.http, "nodens_config_awaited"); got != awaited {
		x.T.Errorf("%s: nodens_config_awaited is %s, want %s", what, got, awaited)
	}
}

const (
	saysAwaited = "the new configuration waits for its view of the cluster"
	saysInForce = "the new configuration is in force"
)

// TestChangeWithoutAPIServer: whatever changes in a configuration while the API server is away, the names that
// the agent knows stay. A change for which the view stays the same is in force at once.
func TestChangeWithoutAPIServer(t *testing.T) {
	x := startUnderChange(t)
	x.setAway(true)
	for _, c := range []struct {
		name, options, directives string
		says                      string
	}{
		{"labels", "labels app", "", saysAwaited},
		{"namespace_labels", "namespace_labels app", "", saysAwaited},
		{"noendpoints", "noendpoints", "", saysAwaited},
		{"endpoint_pod_names", "endpoint_pod_names", "", saysAwaited},
		{"multicluster", "multicluster cluster.local", "", saysAwaited},
		{"zonal", "zonal", "", saysAwaited},
		{"topology", "topology off", "", saysAwaited},
		{"scope", "scope cluster", "", saysAwaited},
		{"endpoints", "endpoints all", "", saysAwaited},
		{"apiserver_qps", "apiserver_qps 7", "", saysAwaited},
		{"apiserver_burst", "apiserver_burst 7", "", saysAwaited},
		{"another API server", fmt.Sprintf("endpoint http://127.0.0.1:%d", x.elsewhere), "", saysAwaited},
		{"another zone with another view", "", fmt.Sprintf("}\nother.test:%d {\n bind 127.0.0.1\n kubernetes {\n  labels app\n  endpoint %s\n }", x.dns, x.api.URL), saysAwaited},
		{"pods verified", "pods verified", "", saysAwaited},
		{"ignore", "ignore empty_service", "", saysAwaited},
		{"scope_idle", "scope_idle 2h", "", saysInForce},
		{"scope_max", "scope_max 7", "", saysInForce},
		{"ttl", "ttl 7", "", saysInForce},
		{"namespaces", "namespaces shop", "", saysInForce},
		{"fallthrough", "fallthrough", "", saysInForce},
		{"startup_timeout", "startup_timeout 2ms", "", saysInForce},
		{"k8s_external", "", "k8s_external example.org", saysAwaited},
		{"autopath", "pods verified", "autopath @kubernetes", saysAwaited},
		{"cache", "", "cache 30", saysInForce},
	} {
		awaited := "0"
		if c.says == saysAwaited {
			awaited = "1"
		}
		x.Reload(x.corefile(c.options, c.directives), c.says)
		x.expect(c.name, awaited)
	}
}

// TestChangeAwaitsAPIServer: a change is in force once its view has synced; one that follows takes its place, and
// one that is undone is forgotten. An invalid one leaves nothing waiting.
func TestChangeAwaitsAPIServer(t *testing.T) {
	x := startUnderChange(t)
	x.setAway(true)
	x.Reload(x.corefile("labels app", ""), saysAwaited)
	x.expect("one that would hide the name", "1")
	x.Reload(x.corefile("", ""), "the configuration is unchanged")
	x.expect("undone", "0")
	x.Reload(x.corefile("labels app", ""), saysAwaited)
	x.Reload(x.corefile("lables app", ""), "the old configuration stays")
	x.expect("an invalid one", "0")
	x.Reload(x.corefile("labels app", ""), saysAwaited)
	x.Reload(x.corefile("noendpoints", ""), saysAwaited)
	x.expect("the next one", "1")
	before := strings.Count(x.Log.String(), saysInForce)
	x.setAway(false)
	x.Await("the change to be in force", func() bool { return strings.Count(x.Log.String(), saysInForce) > before })
	x.expect("in force", "0")
	x.Reload(x.corefile("labels app", ""), saysInForce)
}

// TestFirstViewNotAwaited: a change is in force at once while the agent has no data that it could lose: the change
// may be what lets it reach the API server.
func TestFirstViewNotAwaited(t *testing.T) {
	p := peer.Ports(t, 2)
	corefile := func(option string) string {
		return fmt.Sprintf("cluster.local:%d {\n bind 127.0.0.1\n kubernetes {\n  startup_timeout 1ms\n  endpoint http://127.0.0.1:%d\n  %s\n }\n}\n", p[0], p[1], option)
	}
	x := startAgent(t, corefile(""))
	x.Reload(corefile("noendpoints"), saysInForce)
}

// TestAwaitedDuringHandover: a configuration that waits does not come into force while a successor has the
// sockets.
func TestAwaitedDuringHandover(t *testing.T) {
	api := fakeapi.Start(t)
	p := peer.Ports(t, 1)
	corefile := func(option string) string {
		return fmt.Sprintf("cluster.local:%d {\n bind 127.0.0.1\n kubernetes {\n  endpoint %s\n  %s\n }\n}\n", p[0], api.URL, option)
	}
	l := lookedAt(t, corefile(""))
	api.SetFail(func(*http.Request) (int, metav1.StatusReason) {
		return http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable
	})
	agenttest.WriteFile(t, l.conf, corefile("noendpoints"))
	if l.look() || l.awaited.next == nil {
		t.Fatalf("the change does not wait:\n%s", l.log)
	}
	before := l.current.Load()
	api.SetFail(nil)
	awaitViews(t.Context(), agenttest.Timeout, l.awaited.next, before)
	l.yielded.Store(true)
	l.checkAwaited(context.Background())
	if l.current.Load() != before {
		t.Error("it is in force although a successor serves")
	}
	l.yielded.Store(false)
	l.checkAwaited(context.Background())
	if l.current.Load() == before {
		t.Error("it is not in force when the handover has ended")
	}
}
