package node

import (
	"fmt"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// dnsPolicy is a DNSPolicy of all pods of a namespace, with these fields in its spec.
func dnsPolicy(namespace, fields string) string {
	return fmt.Sprintf("---\napiVersion: nodens.dev/v1alpha1\nkind: DNSPolicy\nmetadata: {name: p, namespace: %s}\nspec: {podSelector: {}, %s}\n", namespace, fields)
}

// TestKernelPolicies: the kernel gives each pod only what its policies allow: also after a policy has changed, and after the addresses
// of pods with other policies have changed hands.
func TestKernelPolicies(t *testing.T) {
	t.Parallel()
	n := newKernelNetwork(t)
	args := n.allAddrArgs(testbed.KernelPathFlag, "-node-name=n1", "-dns-policies=open")
	l := n.withSearchers(func() *peer.Process { return n.startAgentWith(args...) })
	const found, denied = "NOERROR 10.96.7.1 1", "NXDOMAIN"
	query := pack(question("web.shop.svc.cluster.local.", dns.TypeA))
	a, b := l.pods[0], l.pods[1]
	step := func(name, wantA, wantB string, objects ...string) {
		t.Helper()
		l.setObjects(objects...)
		a.awaitAgent(query, wantA)
		b.awaitAgent(query, wantB)
		t.Log(name)
		for _, s := range []struct {
			*searcher
			want string
		}{{a, wantA}, {b, wantB}, {a, wantA}} {
			if s.want == found {
				s.expect(query)
				continue
			}
			before := l.kernelAnswers()
			for range repeats {
				if got := summary(s.pod.ask(query, false)); got != denied {
					t.Errorf("%s: %s gets %s", name, s.addr, got)
				}
			}
			if got := l.kernelAnswers() - before; got != 0 {
				t.Errorf("%s: the kernel has answered %d queries of %s", name, got, s.addr)
			}
		}
	}
	const none, shop = "allow: []", "allowServices: [{namespace: shop}]"
	first, second := podObject("info", a.addr), podObject("shop", b.addr)
	step("no policy", found, found, first, second)
	step("one pod may not", denied, found, first, second, dnsPolicy("info", none))
	step("both may", found, found, first, second, dnsPolicy("info", shop))
	step("the other one may not", found, denied, first, second, dnsPolicy("info", shop), dnsPolicy("shop", none))
	step("the addresses change hands", denied, found, podObject("info", b.addr), podObject("shop", a.addr), dnsPolicy("info", shop), dnsPolicy("shop", none))
	step("no policy any more", found, found, first, second)
}
