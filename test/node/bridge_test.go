package node

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// TestKernelBridge: the kernel also answers a pod whose interface is a bridge port and whose gateway is
// the bridge. Its packets are addressed to another interface than the one they enter by.
func TestKernelBridge(t *testing.T) {
	t.Parallel()
	l := newKernelNetwork(t)
	for _, command := range splitCommands(`ip link add bridge0 type bridge
		ip link set bridge0 up
		ip addr flush dev vpod
		ip link set vpod master bridge0
		ip addr add ` + testbed.NodeIP4 + `/24 dev bridge0
		ip addr add ` + testbed.NodeIP6 + `/64 dev bridge0 nodad`) {
		l.in(l.node, command...)
	}
	l.in(l.pod, "ip", "neigh", "flush", "all")
	p := l.startInKernel()
	for _, door := range []string{local4, local6} {
		newComparer(t, l, p, door).check(t, pack(question("web.shop.svc.cluster.local.", dns.TypeA)), true, false)
	}
}

// TestKernelReplies: no program at the egress of the node's end of the veth sees the kernel's replies. A
// policy's program there, which has not seen the query, would drop an unexpected reply.
func TestKernelReplies(t *testing.T) {
	t.Parallel()
	l := newKernelNetwork(t)
	p := l.startInKernel()
	a := newComparer(t, l, p, local4)
	query := pack(question("web.shop.svc.cluster.local.", dns.TypeA))
	a.askUntilKernelAnswers(query)
	out := l.loadProgram("out", tcxNext)
	l.attach(out, "vpod", ebpf.AttachTCXEgress, link.Head()) // after ours, the kernel would not answer
	known := l.kernelAnswers()
	for range repeats {
		a.pod.ask(query, false)
	}
	known = l.kernelAnswers() - known
	if n := int(l.packets(out)); n != repeats-known || known == 0 {
		t.Errorf("%d replies have passed, the kernel has answered %d of %d queries", n, known, repeats)
	}
}
