//go:build deps

package deps

import (
	_ "github.com/coredns/caddy/caddyfile"
	_ "github.com/coreos/go-iptables/iptables"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/hashicorp/golang-lru/v2/simplelru"
	_ "github.com/miekg/dns"
	_ "github.com/prometheus/client_golang/prometheus/collectors"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/prometheus/client_golang/prometheus/testutil"
	_ "github.com/vishvananda/netlink"
	_ "golang.org/x/sys/unix"
	_ "k8s.io/apimachinery/pkg/util/yaml"
	_ "k8s.io/client-go/informers"
	_ "k8s.io/client-go/kubernetes/fake"
	_ "k8s.io/client-go/metadata"
	_ "k8s.io/client-go/metadata/fake"
	_ "k8s.io/client-go/tools/clientcmd"
)
