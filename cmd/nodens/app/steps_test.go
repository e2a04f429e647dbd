package app

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
)

// TestClusterSteps: the steps that go with a cluster stand in the path where the Corefile
// puts them, and are counted by their names.
func TestClusterSteps(t *testing.T) {
	p := peer.Ports(t, 3)
	dnsPort, web, up := p[0], p[1], p[2]
	startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts {\n 192.0.2.1 www.example.org\n }\n}\n", up))
	dir := t.TempDir()
	manifests, search := filepath.Join(dir, "m.yaml"), filepath.Join(dir, "resolv.conf")
	agenttest.WriteFile(t, manifests, `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9], externalIPs: [203.0.113.9]}
`)
	agenttest.WriteFile(t, search, "search shop.svc.cluster.local svc.cluster.local\n")
	startAgent(t, fmt.Sprintf(`.:%d {
    bind 127.0.0.1
    prometheus 127.0.0.1:%d
    autopath cluster.local %s
    k8s_external example.com
    kubernetes cluster.local {
        manifests %s
    }
    forward . 127.0.0.1:%d
}
`, dnsPort, web, search, manifests, up))
	for name, want := range map[string]string{
		"web.shop.example.com.": "203.0.113.9", "web.shop.svc.cluster.local.": "10.96.0.9",
		"www.example.org.shop.svc.cluster.local.": "192.0.2.1", "no.shop.svc.cluster.local.": "SERVFAIL",
	} {
		agenttest.Expect(t, dnsPort, name, want)
	}
	srv := fmt.Sprintf(`server="dns://127.0.0.1:%d"`, dnsPort)
	agenttest.ExpectMetrics(t, web,
		`coredns_autopath_success_total{`+srv+`} 1`,
		`coredns_dns_responses_total{plugin="autopath",rcode="NOERROR",`+srv+`,view="",zone="."} 1`,
		`coredns_dns_responses_total{plugin="k8s_external",rcode="NOERROR",`+srv+`,view="",zone="."} 1`,
		`coredns_dns_requests_total{family="1",proto="udp",`+srv+`,type="A",view="",zone="."} 4`,
		`coredns_plugin_enabled{name="k8s_external",`+srv+`,view="",zone="."} 1`,
	)
}
