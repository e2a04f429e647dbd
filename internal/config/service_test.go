package config

import (
	"strings"
	"testing"
)

// TestServices: an upstream that is a Service needs a view of the cluster, in its own
// block or in another.
func TestServices(t *testing.T) {
	const forward = ". {\nforward . k8s:kube-system/kube-dns\n}\n"
	for _, c := range []struct{ name, text, want string }{
		{"own", ". {\nkubernetes cluster.local\nforward . k8s:kube-system/kube-dns:8053\n}\n", ""},
		{"another's", forward + "cluster.local {\nkubernetes\n}\n", ""},
		{"nobody's", forward, "Corefile:1: forward: the endpoints of k8s:kube-system/kube-dns are those that a kubernetes directive sees, and no block has one"},
		{"no endpoints", forward + "cluster.local {\nkubernetes {\nnoendpoints\n}\n}\n", "sees, which has noendpoints"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse(t, c.text)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}
