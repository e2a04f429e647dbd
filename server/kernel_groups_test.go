package server

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/kernelpath"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// Inside the package: it inspects what is copied.

// twoPods is a cluster with a Service, and with pods of two namespaces on the node n1.
const twoPods = `
apiVersion: v1
kind: Service
metadata: {name: api, namespace: shop}
spec: {clusterIP: 10.96.0.9}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec: {nodeName: n1}
status: {podIPs: [{ip: 127.0.1.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: info}
spec: {nodeName: n1}
status: {podIPs: [{ip: 127.0.1.2}]}
`

var shopPod, infoPod, noPod = netip.MustParseAddr("127.0.1.1"), netip.MustParseAddr("127.0.1.2"), netip.MustParseAddr("127.0.1.3")

// searchZone returns a zone that follows the search paths of the pods in twoPods.
func (k *register) searchZone(t *testing.T) *resolver.Zone {
	t.Helper()
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(file, []byte(twoPods), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := &config.Kubernetes{Manifests: []string{file}, TTL: 30, Zones: []wire.Name{resolvertest.ZoneName(t, "cluster.local.")}}
	view, err := kubernetes.Open(cfg, kubernetes.Options{Node: "n1", Epochs: k.cluster})
	if err != nil {
		t.Fatal(err)
	}
	cluster := kubernetes.NewZone(view, cfg)
	return &resolver.Zone{
		Name: resolvertest.ZoneName(t, "cluster.local."), Cluster: cluster,
		Autopath: resolver.NewAutopath(&config.Autopath{Kubernetes: true}, cluster), Stats: resolver.NewStats(),
	}
}

// queryFrom asks for the IPv4 addresses of a name from an address.
func queryFrom(t *testing.T, from netip.Addr, to netip.AddrPort, name string) *dns.Msg {
	t.Helper()
	return askFrom(t, from, to, question(name, dns.TypeA))
}

// askFrom sends a query from an address.
func askFrom(t *testing.T, from netip.Addr, to netip.AddrPort, q *dns.Msg) *dns.Msg {
	t.Helper()
	c := dns.Client{Timeout: patience, Dialer: &net.Dialer{LocalAddr: &net.UDPAddr{IP: from.AsSlice()}, Timeout: patience}}
	m, _, err := c.Exchange(q, to.String())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestGroupsOfClients: answers for the clients of a namespace have the number of their group, and the client that has
// asked gets into it. Another configuration has other numbers.
func TestGroupsOfClients(t *testing.T) {
	s, k, _ := withKernel(t)
	addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	const own, search = "api.shop.svc.cluster.local.", "api.shop.shop.svc.cluster.local."
	type copied struct {
		Name  string
		Group uint32
	}
	var got []copied
	members := make(map[netip.Addr]uint32)
	for range 2 { // configurations
		if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: addr}: {Routes: resolver.NewRoutes([]*resolver.Zone{k.searchZone(t)}, resolver.NewStats())}}); err != nil {
			t.Fatal(err)
		}
		for _, client := range []netip.Addr{shopPod, infoPod, noPod, shopPod} {
			want := dns.RcodeSuccess
			if client != shopPod {
				want = dns.RcodeNameError
			}
			if m := queryFrom(t, client, addr, search); m.Rcode != want {
				t.Errorf("%s gets %v", client, m)
			}
			queryFrom(t, client, addr, own)
		}
		k.mu.Lock()
		for i, a := range k.copies {
			got = append(got, copied{k.names[i], a.Group.Number})
			if a.Group.Number != 0 && a.Group.Mark.Index == 0 || a.FromCache {
				t.Errorf("%s is copied as %+v", k.names[i], a)
			}
		}
		for client, g := range k.groups {
			members[client] = g.Number
		}
		if len(k.groups) != 2 {
			t.Errorf("the groups of clients are %v", k.groups)
		}
		k.copies, k.names, k.groups = nil, nil, nil
		k.mu.Unlock()
	}
	var want []copied
	for _, first := range []uint32{1, 3} {
		want = append(want, copied{search, first}, copied{own, 0}, copied{search, first + 1}, copied{own, 0}, copied{own, 0}, copied{search, first}, copied{own, 0})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("copies (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]uint32{shopPod.String(): 3, infoPod.String(): 4}, texts(members)); diff != "" {
		t.Errorf("groups of clients (-want +got):\n%s", diff)
	}
}

// texts returns m with its keys as texts.
func texts(m map[netip.Addr]uint32) map[string]uint32 {
	out := make(map[string]uint32)
	for addr, n := range m {
		out[addr.String()] = n
	}
	return out
}

// TestGroupNumbers: a namespace has one number, and no number is given twice, however many namespaces there are.
func TestGroupNumbers(t *testing.T) {
	var c kernelPath
	of := []*resolver.Autopath{new(resolver.Autopath), new(resolver.Autopath)}
	number := func(of *resolver.Autopath, namespace string) uint32 {
		return c.group(&resolver.ClientGroup{Of: of, Namespace: []byte(namespace)}).Number
	}
	if g := c.group(&resolver.ClientGroup{}); g != (kernelpath.Group{}) {
		t.Errorf("all clients have the group %+v", g)
	}
	a, b := number(of[0], "\x01a"), number(of[0], "\x01b")
	if other := number(of[1], "\x01a"); a == 0 || a == b || other == a || other == b {
		t.Errorf("the numbers %d, %d and %d", a, b, other)
	}
	if number(of[0], "\x01a") != a || number(of[0], "\x01b") != b {
		t.Error("a namespace has another number the second time")
	}
	given := map[uint32]bool{a: true, b: true}
	for i := range 2 * maxGroups {
		n := number(of[0], "\x03n"+string(rune(i)))
		if given[n] {
			t.Fatalf("the number %d twice", n)
		}
		given[n] = true
	}
	if len(c.groups) > maxGroups {
		t.Errorf("%d groups", len(c.groups))
	}
	c.forgetGroups()
	if n := number(of[0], "\x01a"); given[n] {
		t.Errorf("the number %d twice, after all were forgotten", n)
	}
}
