package testbed

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
)

// TestKubeProxyModes: every way of kube-proxy leads from the pod, and from the node itself, to
// the cluster's DNS, over both families and protocols; and nothing is left behind.
func TestKubeProxyModes(t *testing.T) {
	for _, way := range ProxyModes {
		t.Run(way, func(t *testing.T) {
			l := ForTest(t, "")
			if err := l.KubeProxy(way); err != nil {
				t.Fatal(err)
			}
			for _, ns := range []string{l.Pod, l.Node} {
				for _, service := range []string{Service4, Service6} {
					for _, over := range []string{"udp", "tcp"} {
						if err := l.Answers(ns, FromCluster, over, net.JoinHostPort(service, "53"))(t.Context()); err != nil {
							t.Error(err)
						}
					}
				}
			}
		})
	}
	// Other processes have namespaces, too.
	if list, err := Run("ip", "netns", "list"); err != nil || strings.Contains(list, fmt.Sprintf("nodens-%d-", os.Getpid())) {
		t.Errorf("namespaces are left: %q, %v", list, err)
	}
}
