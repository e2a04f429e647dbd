package config

import "testing"

// TestSharedSave holds that blocks whose views are one may name one file.
func TestSharedSave(t *testing.T) {
	c := mustParse(t, `
(cluster) {
	kubernetes cluster.local in-addr.arpa {
		save /view
		scope cluster
	}
}
cluster.local {
	import cluster
}
in-addr.arpa a.test:54 {
	import cluster
}
b.test {
	kubernetes b.test {
		save /view
		scope cluster
		pods insecure
		ttl 30
		topology off
		zonal
		multicluster b.test
		namespaces a
		ignore empty_service
		startup_timeout 1s
		fallthrough
	}
}
c.test {
	kubernetes
}
`)
	if n := len(c.Blocks); n != 5 {
		t.Errorf("%d blocks, want 5", n)
	}
}
