package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/test/peer"
)

// many is the number of endpoints of the large Service.
const many = 120

// bed is an agent and a CoreDNS that answer the same names.
type bed struct {
	dir            string
	nodens, other  string // their addresses, at port 53
	agent, coredns *peer.Process
}

// startBed starts a bed with files in dir. The variable AGENT may name the binary of nodens.
func startBed(ctx context.Context, dir string) (b *bed, err error) {
	block := fmt.Sprintf("127.53.%d.", rand.IntN(256))
	b = &bed{dir: dir, nodens: block + "1", other: block + "2"}
	files := map[string]string{
		"objects.yaml": objects(), "zone": zone(),
		"agent.conf": fmt.Sprintf("cluster.local in-addr.arpa {\n bind %s\n kubernetes cluster.local in-addr.arpa {\n  manifests %s/objects.yaml\n  fallthrough in-addr.arpa\n }\n forward . %s\n cache\n loadbalance\n}\n", b.nodens, dir, b.other) +
			fmt.Sprintf("broken.test {\n bind %s\n template ANY ANY {\n  rcode SERVFAIL\n }\n}\n", b.nodens),
		"reverse":      "$ORIGIN 10.in-addr.arpa.\n$TTL 5\n@ SOA ns.dns.cluster.local. h.cluster.local. 1 7200 1800 86400 5\n@ NS ns.dns.cluster.local.\n1.0.4 PTR web.shop.svc.cluster.local.\n",
		"coredns.conf": fmt.Sprintf(".:53 {\n bind %[1]s\n file %[2]s/zone cluster.local\n file %[2]s/reverse 10.in-addr.arpa\n template ANY ANY broken.test {\n  rcode SERVFAIL\n }\n loadbalance\n}\n", b.other, dir),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return b, err
		}
	}
	agent := os.Getenv("AGENT")
	if agent == "" {
		if agent, err = peer.Binary(ctx, "nodens", dir); err != nil {
			return b, err
		}
	}
	coredns, err := peer.Binary(ctx, "coredns", dir)
	if err != nil {
		return b, err
	}
	if b.coredns, err = peer.Spawn(peer.Command{Name: "CoreDNS", Path: coredns, Args: []string{"-conf", dir + "/coredns.conf"}, Dir: dir}); err != nil {
		return b, err
	}
	args := append(peer.ServerArgs("nodens", dir+"/agent.conf"), "-localip", b.nodens)
	if b.agent, err = peer.Spawn(peer.Command{Name: "nodens", Path: agent, Dir: dir, Args: args}); err != nil {
		return b, err
	}
	for p, addr := range map[*peer.Process]string{b.agent: b.nodens, b.coredns: b.other} {
		if err := p.Await(ctx, "an address", func(ctx context.Context) error {
			_, err := resolver(addr).LookupHost(ctx, "web.shop.svc.cluster.local.")
			return err
		}); err != nil {
			return b, err
		}
	}
	return b, nil
}

// close stops the servers.
func (b *bed) close() {
	for _, p := range []*peer.Process{b.agent, b.coredns} {
		if p != nil {
			p.Stop()
		}
	}
}

// resolver returns Go's resolver, which asks the server at addr.
func resolver(addr string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		d := net.Dialer{Timeout: 5 * time.Second}
		return d.DialContext(ctx, network, net.JoinHostPort(addr, "53"))
	}}
}

// objects returns the objects of the cluster: a Service with one address, one with many, and an alias.
func objects() string {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n")
	b.WriteString("---\napiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.4.0.1, ports: [{name: http, port: 80, protocol: TCP}]}\n")
	b.WriteString("---\napiVersion: v1\nkind: Service\nmetadata: {name: alias, namespace: shop}\nspec: {type: ExternalName, externalName: web.shop.svc.cluster.local}\n")
	b.WriteString("---\napiVersion: v1\nkind: Service\nmetadata: {name: many, namespace: shop}\nspec: {clusterIP: None, ports: [{name: http, port: 80, protocol: TCP}]}\n")
	b.WriteString("---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: many-1, namespace: shop, labels: {kubernetes.io/service-name: many}}\naddressType: IPv4\nports: [{name: http, port: 80, protocol: TCP}]\nendpoints:\n")
	for i := range many {
		fmt.Fprintf(&b, "- {addresses: [10.4.1.%d], conditions: {ready: true}}\n", i+1)
	}
	return b.String()
}

// zone returns the same names as a zone file.
func zone() string {
	var b strings.Builder
	b.WriteString("$ORIGIN shop.svc.cluster.local.\n$TTL 5\ncluster.local. SOA ns.dns.cluster.local. h.cluster.local. 1 7200 1800 86400 5\ncluster.local. NS ns.dns.cluster.local.\n")
	b.WriteString("web A 10.4.0.1\nalias CNAME web\n")
	for i := range many {
		fmt.Fprintf(&b, "many A 10.4.1.%d\n_http._tcp.many SRV 0 1 80 10-4-1-%d.many\n10-4-1-%d.many A 10.4.1.%d\n", i+1, i+1, i+1, i+1)
	}
	return b.String()
}
