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

// TestAAAANeeds: aaaa needs a view of the cluster, in its own block or in another, and no dns64 beside it.
func TestAAAANeeds(t *testing.T) {
	const aaaa = ". {\naaaa auto\nforward . 192.0.2.53\n}\n"
	for _, c := range []struct{ name, text, want string }{
		{"own", ". {\naaaa auto\nkubernetes cluster.local\n}\n", ""},
		{"another's", aaaa + "cluster.local {\nkubernetes\n}\n", ""},
		{"nobody's", aaaa, "Corefile:1: aaaa: the pods' addresses are those that a kubernetes directive sees, and no block has one"},
		{"dns64", ". {\naaaa auto\ndns64\nkubernetes cluster.local\n}\n", "Corefile:1: aaaa: aaaa keeps IPv6 addresses from pods without one, and dns64 makes some"},
		{"dns64 elsewhere", ". {\naaaa auto\nkubernetes cluster.local\n}\nsix.test {\ndns64\nforward . 192.0.2.53\n}\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse(t, c.text)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}
