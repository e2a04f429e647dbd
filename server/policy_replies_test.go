package server

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/udp"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// Inside the package: it inspects what is copied.

// hotPolicies makes a policy with these names bind the clients of a batch of [hotReader] whose numbers are given.
func hotPolicies(tb testing.TB, l *listener, id uint32, names []string, clients ...int) {
	tb.Helper()
	p := &dnspolicy.Policy{Namespace: "ns", Name: fmt.Sprint("p", id)}
	for _, name := range names {
		p.Add(resolvertest.ZoneName(tb, name), false, false)
	}
	rt := l.config.Load().Routes
	table := rt.Policies()
	if table == nil {
		table = dnspolicy.NewTable()
		table.Mark = func() epoch.Mark { return epoch.Mark{Index: 1} }
		rt.BindPolicies(table)
	}
	class, byAddr := dnspolicy.NewClass(id, []*dnspolicy.Policy{p}), make(map[netip.Addr]*dnspolicy.Class)
	for _, n := range clients {
		byAddr[netip.AddrFrom4([4]byte{10, 0, 0, byte(n)})] = class
	}
	table.Set(byAddr, true, func() {})
}

// TestKeptRepliesOfClasses: clients of one class get the replies that are kept for it, and a client that gets other policies none of
// those of before.
func TestKeptRepliesOfClasses(t *testing.T) {
	_, l, packet := hotServer(t, true)
	hotPolicies(t, l, 2, []string{"hot.test."}, 1, 3)
	u := hotReader(l, 0, packet)
	for range 5 {
		_ = u.keptHits()
	}
	check := func(when string, kept int, denied ...int) {
		t.Helper()
		if n := u.keptHits(); n != kept {
			t.Errorf("%s: %d of %d queries are answered without the path, want %d", when, n, udp.BatchSize, kept)
		}
		for i := range u.batch.Packets[:u.batch.N] {
			want := dns.RcodeSuccess
			for _, n := range denied {
				if n == i {
					want = dns.RcodeRefused
				}
			}
			var m dns.Msg
			if err := m.Unpack(u.batch.Packets[i].Reply); err != nil || m.Rcode != want {
				t.Errorf("%s: client %d gets %v, %v", when, i, err, m.Rcode)
			}
		}
	}
	check("all may ask", udp.BatchSize)
	hotPolicies(t, l, 3, []string{"other.test."}, 1, 3)
	check("two may not", udp.BatchSize-2, 1, 3)
	check("nor later", udp.BatchSize-2, 1, 3)
	hotPolicies(t, l, 4, []string{"hot.test."}, 3)
	for range 3 {
		_ = u.keptHits()
	}
	check("all may again", udp.BatchSize)
}

// boundPods are policies of the namespaces of twoPods.
const boundPods = twoPods + `
---
apiVersion: nodens.dev/v1alpha1
kind: DNSPolicy
metadata: {name: own, namespace: shop}
spec: {podSelector: {}, allowServices: [{}]}
---
apiVersion: nodens.dev/v1alpha1
kind: DNSPolicy
metadata: {name: nothing, namespace: info}
spec: {podSelector: {}}
`

// TestGroupsOfPolicies: answers have the number of the group whose clients are bound by the same policies, and no answer is for all
// clients.
func TestGroupsOfPolicies(t *testing.T) {
	s, k, _ := withKernel(t)
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(file, []byte(boundPods), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := &config.Kubernetes{Manifests: []string{file}, TTL: 30, Zones: []wire.Name{resolvertest.ZoneName(t, "cluster.local.")}}
	view, err := kubernetes.Open(cfg, kubernetes.Options{Node: "n1", Epochs: k.cluster, Policies: dnspolicy.NewTable()})
	if err != nil {
		t.Fatal(err)
	}
	for name, autopath := range map[string]bool{"alone": false, "with autopath": true} {
		t.Run(name, func(t *testing.T) {
			z := &resolver.Zone{Name: resolvertest.ZoneName(t, "cluster.local."), Cluster: kubernetes.NewZone(view, cfg), Stats: resolver.NewStats()}
			if autopath {
				z.Autopath = resolver.NewAutopath(&config.Autopath{Kubernetes: true}, z.Cluster)
			}
			rt := resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())
			rt.BindPolicies(view.Policies())
			addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
			if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: addr}: {Routes: rt}}); err != nil {
				t.Fatal(err)
			}
			want := map[netip.Addr]int{shopPod: dns.RcodeSuccess, infoPod: dns.RcodeNameError, noPod: dns.RcodeSuccess}
			for range 2 {
				for client, rcode := range want {
					if m := queryFrom(t, client, addr, "api.shop.svc.cluster.local."); m.Rcode != rcode {
						t.Errorf("%s gets %v", client, m)
					}
				}
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			groups := make(map[string]bool)
			for client, g := range k.groups {
				groups[client.String()] = g.Number != 0 && g.Mark == view.Policies().Mark()
			}
			if diff := cmp.Diff(map[string]bool{shopPod.String(): true, noPod.String(): true}, groups); diff != "" {
				t.Errorf("clients with a group (-want +got):\n%s", diff)
			}
			if k.groups[shopPod].Number == k.groups[noPod].Number {
				t.Error("clients with other policies are in one group")
			}
			for i, a := range k.copies {
				if a.Group.Number != k.groups[shopPod].Number && a.Group.Number != k.groups[noPod].Number {
					t.Errorf("%s is copied for the group %d", k.names[i], a.Group.Number)
				}
			}
			k.copies, k.names, k.groups = nil, nil, nil
		})
	}
}

// BenchmarkHotPolicies is [BenchmarkHotName] with kept replies: without policies, with a table that binds nobody, and with policies that
// bind all clients: 1,000 with 100 names each, 10 for each client.
func BenchmarkHotPolicies(b *testing.B) {
	for _, c := range []struct {
		name  string
		table bool
		bound int // clients
	}{{"no table", false, 0}, {"no policy", true, 0}, {"1000 policies", true, 100}} {
		b.Run(c.name, func(b *testing.B) {
			_, l, packet := hotServer(b, true)
			rt := l.config.Load().Routes
			if c.table {
				table, byAddr := dnspolicy.NewTable(), make(map[netip.Addr]*dnspolicy.Class)
				table.Mark = func() epoch.Mark { return epoch.Mark{Index: 1} }
				for n := range c.bound {
					var list []*dnspolicy.Policy
					for i := range 10 {
						p := &dnspolicy.Policy{Namespace: "ns", Name: fmt.Sprint(n, i)}
						p.Add(resolvertest.ZoneName(b, "hot.test."), false, false)
						for j := range 99 {
							p.Add(resolvertest.ZoneName(b, fmt.Sprintf("n%d-%d-%d.example.com.", n, i, j)), j%2 == 0, false)
						}
						list = append(list, p)
					}
					byAddr[netip.AddrFrom4([4]byte{10, 0, 0, byte(n)})] = dnspolicy.NewClass(uint32(dnspolicy.FirstID+n), list)
				}
				table.Set(byAddr, true, func() {})
				rt.BindPolicies(table)
			}
			u := hotReader(l, 0, packet)
			for range 4 {
				u.answerBatch()
			}
			b.ReportAllocs()
			b.ResetTimer()
			for n := 0; n < b.N; n += udp.BatchSize {
				u.answerBatch()
			}
		})
	}
}
