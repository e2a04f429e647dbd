package node

import (
	"net"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// TestKernelACL: in a block with acl, the kernel answers the pods that may ask, and never one that may not, although it
// knows the answer. A denied pod gets other answers from the kernel.
func TestKernelACL(t *testing.T) {
	t.Parallel()
	l := newKernelNetwork(t)
	ns, err := l.AddPod(1)
	check.NoError(t, err)
	denied := l.client(ns, local4)
	addr, _, _ := net.SplitHostPort(denied.LocalAddr().String())
	args := l.agentArgs("-kernel-path=on")
	l.addDirectives("    acl {\n        block type A net " + addr + "/32\n    }\n")
	p := l.startAgentWith(args...)
	allowedPod := &comparer{l: l, p: p, pod: l.client(l.pod, local4)}
	deniedPod := &comparer{l: l, p: p, pod: denied}
	a, aaaa := pack(question("web.shop.svc.cluster.local.", dns.TypeA)), pack(question("web.shop.svc.cluster.local.", dns.TypeAAAA))
	const address, address6 = "NOERROR 10.96.7.1 1", "NOERROR fd00:96::7:1 1"
	for range 3 {
		if got := summary(allowedPod.askUntilKernelAnswers(a)); got != address {
			t.Errorf("the kernel's reply is %s", got)
		}
		if got := summary(deniedPod.askUntilKernelAnswers(aaaa)); got != address6 {
			t.Errorf("the kernel's reply to another type is %s", got)
		}
		before := l.kernelAnswers()
		for range repeats {
			if got := summary(denied.ask(a, false)); got != "REFUSED" {
				t.Errorf("the denied pod gets %s", got)
			}
		}
		if n := l.kernelAnswers() - before; n != 0 {
			t.Errorf("the kernel has answered %d queries of the denied pod", n)
		}
	}
}
