//go:build linux

package main

import (
	"fmt"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/fakeapi"
)

// TestHandoverOfView: an agent that takes over has the view of the one before it, and asks the API server only for what
// has changed since. That one has not saved it before, because it has just started.
func TestHandoverOfView(t *testing.T) {
	api := fakeapi.Start(t)
	put := func(name, ip string) {
		api.Put(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip}}})
	}
	api.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	put("web", "10.96.0.1")
	dir, port := t.TempDir(), peer.Ports(t, 1)[0]
	start := func() *process {
		p := newAgentProcess(t, fmt.Sprintf("cluster.local:%d {\n bind 127.0.0.1\n kubernetes {\n  endpoint %s\n  save %s\n }\n}\n", port, api.URL, filepath.Join(dir, "view")),
			nil, "-handover-dir", filepath.Join(dir, "handover"))
		p.AwaitLog("msg=serving")
		return p
	}
	last := start()
	for i := range 3 {
		name, ip := fmt.Sprint("new", i), fmt.Sprint("10.96.1.", i)
		next := start()
		last.awaitExit(0)
		put(name, ip)
		next.Await("the change", func() bool { return agenttest.Ask(t, port, name+".shop.svc.cluster.local.") == ip })
		agenttest.Expect(t, port, "web.shop.svc.cluster.local.", "10.96.0.1")
		last = next
	}
	last.end()
	for _, resource := range []string{"services", "namespaces"} {
		if n := api.Lists(resource); n != 1 {
			t.Errorf("%d lists of %s, want one", n, resource)
		}
	}
}
