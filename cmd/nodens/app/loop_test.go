// These tests use builder, addrs and current, which are not exported.

package app

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// loopingUpstream asks the agent whatever it is asked, while loops is set.
type loopingUpstream struct {
	addr  string
	loops atomic.Bool
}

// startLoopingUpstream starts an upstream that sends queries to the port of loopback.
func startLoopingUpstream(t *testing.T, port uint16) *loopingUpstream {
	t.Helper()
	u := new(loopingUpstream)
	u.loops.Store(true)
	u.addr = fakedns.Start(t, func(q *fakedns.Query) {
		if !u.loops.Load() {
			q.Reply(fakedns.Address(q.Msg, 60, "192.0.2.1"))
			return
		}
		go func() {
			client := dns.Client{Timeout: agenttest.Timeout}
			if m, _, err := client.Exchange(q.Msg, fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
				q.Reply(m)
			}
		}()
	}).Addr().String()
	return u
}

// TestAgentLoop: an agent whose upstream forwards to it goes on running and answers what it
// knows. A reload looks again: while there is a loop nothing is forwarded, and when there
// is none forwarding goes on.
func TestAgentLoop(t *testing.T) {
	p := peer.Ports(t, 2)
	up := startLoopingUpstream(t, p[0])
	corefile := func(more string) string {
		return fmt.Sprintf(".:%d {\n bind 127.0.0.1\n errors\n loop\n %s\n cache\n hosts {\n  192.0.2.9 by.hand\n  fallthrough\n }\n forward . %s\n prometheus 127.0.0.1:%d\n}\n", p[0], more, up.addr, p[1])
	}
	r := startAgent(t, corefile(""))
	detected := func(n string) bool {
		_, text := agenttest.Get(t, p[1], "/metrics")
		return strings.Contains(text, fmt.Sprintf("nodens_loop_detected{server=\"dns://127.0.0.1:%d\",view=\"\",zone=\".\"} %s\n", p[0], n))
	}
	check := func(when, want string) {
		t.Helper()
		if got := agenttest.Ask(t, p[0], "by.hand."); got != "192.0.2.9" {
			t.Errorf("%s: a name in hosts is %s", when, got)
		}
		if got := agenttest.Ask(t, p[0], strings.Fields(when)[0]+".test."); got != want {
			t.Errorf("%s: a name that has to be forwarded is %s, want %s; log:\n%s", when, got, want, r.Log)
		}
	}
	reload := func(more string) {
		t.Helper()
		r.Reload(corefile(more), "new configuration is in force")
	}
	r.Await("forwarding to stop", func() bool { return detected("1") })
	check("loop", "SERVFAIL")
	reload("loadbalance")
	check("reloaded, with the loop", "SERVFAIL")
	if n := strings.Count(r.Log.String(), "forwarding stopped"); n != 1 {
		t.Errorf("the log tells %d times that forwarding stops:\n%s", n, r.Log)
	}
	up.loops.Store(false)
	reload("minimal")
	r.Await("forwarding to go on", func() bool { return detected("0") })
	check("mended", "192.0.2.1")
	if strings.Contains(r.Log.String(), "query failed") {
		t.Errorf("queries that are not forwarded are logged one by one:\n%s", r.Log)
	}
}

// TestLoopSources: probes count from the servers that were asked, from the endpoints
// behind a cluster IP, and from the node itself. They don't from pods.
func TestLoopSources(t *testing.T) {
	manifests := filepath.Join(t.TempDir(), "m.yaml")
	agenttest.WriteFile(t, manifests, `apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], selector: {k8s-app: kube-dns}, ports: [{name: dns, port: 53, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-1, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
ports: [{name: dns, port: 53, protocol: UDP}]
endpoints: [{addresses: [10.244.1.5]}, {addresses: [10.244.2.5]}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.20, clusterIPs: [10.96.0.20], selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 80}]
endpoints: [{addresses: [10.244.1.9]}]
`)
	l := lookedAt(t, fmt.Sprintf("test:%d {\n bind 127.0.0.1\n kubernetes cluster.local {\n  manifests %s\n }\n}\n", peer.Ports(t, 1)[0], manifests))
	l.builder.addrs = &hostAddrs{list: func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: net.IPv4(192, 0, 2, 10), Mask: net.CIDRMask(24, 32)}}, nil
	}}
	expected := loopSources(&l.builder, l.current.Load())([]netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("192.0.2.53")})
	for from, want := range map[string]bool{
		"10.96.0.10": true, "192.0.2.53": true, // the servers
		"10.244.1.5": true, "10.244.2.5": true, // endpoints of the first
		"192.0.2.10": true, "127.0.0.53": true, // this node
		"10.244.1.9": false, "10.244.1.77": false, "10.96.0.20": false, // pods, another Service
		"192.0.2.11": false, // another node
	} {
		if got := expected(netip.MustParseAddr(from)); got != want {
			t.Errorf("%s counts: %v, want %v", from, got, want)
		}
	}
}
