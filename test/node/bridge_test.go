package node

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/node/testbed"
)

// TestKernelBridge: a pod whose link is a bridge's port, and whose gateway is the bridge,
// is answered by the kernel, too: its packets are for another link than the one they come
// in on.
func TestKernelBridge(t *testing.T) {
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

// TestKernelReplies: no program on the node's end of the link sees what the kernel answers
// on its way out. One that belongs to a policy would: it has not seen the query, which came
// no further than to ours, and would take the reply for a packet that nobody has asked for.
func TestKernelReplies(t *testing.T) {
	l := newKernelNetwork(t)
	p := l.startInKernel()
	a := newComparer(t, l, p, local4)
	query := pack(question("web.shop.svc.cluster.local.", dns.TypeA))
	a.askUntilKernelAnswers(query)
	out := l.loadProgram("out", tcxNext)
	l.attach(out, "vpod", ebpf.AttachTCXEgress, link.Head()) // behind ours nothing would be answered
	known := l.kernelAnswers()
	for range repeats {
		a.pod.ask(query, false)
	}
	known = l.kernelAnswers() - known
	if n := int(l.packets(out)); n != repeats-known || known == 0 {
		t.Errorf("%d replies have left, the kernel has answered %d of %d queries", n, known, repeats)
	}
}
