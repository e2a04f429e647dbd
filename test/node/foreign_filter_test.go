package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// foreignFilter is a foreign program that the kernel's answers would bypass: it runs after ours, and
// drops all queries from a pod or all replies to it.
type foreignFilter struct {
	name, addr string
	// side is the hook of a tcx program; parent that of a tc filter, at a qdisc.
	side   ebpf.AttachType
	qdisc  string
	parent uint32
	// remaining are our programs at the ingress while the filter exists; nil: ours run after it.
	remaining []string
}

func foreignFilters() []foreignFilter {
	watched := []string{watchProgram}
	return []foreignFilter{
		{name: "clsact egress", addr: local4, qdisc: "clsact", parent: netlink.HANDLE_MIN_EGRESS, remaining: watched},
		{name: "clsact ingress", addr: local6, qdisc: "clsact", parent: netlink.HANDLE_MIN_INGRESS, remaining: watched},
		{name: "the ingress qdisc", addr: local4, qdisc: "ingress", parent: netlink.MakeHandle(0xffff, 0), remaining: watched},
		{name: "an egress qdisc", addr: local6, qdisc: "htb", parent: netlink.MakeHandle(1, 0), remaining: watched},
		{name: "tcx egress", addr: local4, side: ebpf.AttachTCXEgress},
		{name: "tcx ingress", addr: local6, side: ebpf.AttachTCXIngress},
	}
}

// attach has the program drop the packets of an interface of the node.
func (b foreignFilter) attach(l *network, p *program, port string) {
	l.t.Helper()
	if b.qdisc == "" {
		l.attach(p, port, b.side, link.Tail())
		return
	}
	index := l.ifindex(port)
	err := testbed.InNamespace(l.node, func() error {
		return errors.Join(netlink.QdiscReplace(b.newQdisc(index)), netlink.FilterReplace(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: b.parent, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
			Fd:          p.FD(), Name: "policy", DirectAction: true,
		}))
	})
	if err != nil {
		l.t.Fatal(err)
	}
}

// newQdisc returns the qdisc of the filter.
func (b foreignFilter) newQdisc(index int) netlink.Qdisc {
	if b.qdisc == "htb" {
		return netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: index, Handle: b.parent, Parent: netlink.HANDLE_ROOT})
	}
	attrs := netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
	return &netlink.GenericQdisc{QdiscAttrs: attrs, QdiscType: b.qdisc}
}

// detach removes the program, and its qdisc unless that is harmless.
func (b foreignFilter) detach(l *network, p *program, port string) {
	l.t.Helper()
	switch b.qdisc {
	case "":
		p.detach()
	case "clsact":
		side := map[uint32]string{netlink.HANDLE_MIN_EGRESS: "egress", netlink.HANDLE_MIN_INGRESS: "ingress"}[b.parent]
		l.in(l.node, "tc", "filter", "del", "dev", port, side)
	case "ingress":
		l.in(l.node, "tc", "qdisc", "del", "dev", port, "ingress")
	default:
		l.in(l.node, "tc", "qdisc", "del", "dev", port, "root")
	}
}

// filteredPod is a pod whose interface has a foreign filter.
type filteredPod struct {
	deniedPod
	foreignFilter
	p *program
}

// waitForAgent waits until our programs answer nothing that the filter does not see.
func (b *filteredPod) waitForAgent(t *testing.T, agent *peer.Process) {
	t.Helper()
	agent.Must(t, b.foreignFilter.name+": the agent to check the interface", func(context.Context) error {
		got := b.l.ingressPrograms(b.port)
		if b.remaining != nil && slices.Equal(got, b.remaining) {
			return nil
		}
		if b.remaining == nil && b.agentIsBehind() {
			return nil
		}
		return fmt.Errorf("it has the programs %q", got)
	})
}

// agentIsBehind reports whether the agent's program at the same hook runs after the filter.
func (b *filteredPod) agentIsBehind() bool {
	names := b.l.programs(b.port, b.side)
	at := slices.Index(names, b.p.name)
	return at >= 0 && strings.HasPrefix(names[len(names)-1], "nodens_") && at < len(names)-1 && slices.Contains(b.l.ingressPrograms(b.port), answerProgram)
}

// wantAllDropped sends queries, waits until the filter has dropped them or the agent's replies, and
// checks that no reply arrives.
func (b *filteredPod) wantAllDropped(t *testing.T, query []byte) {
	t.Helper()
	answered, seen := b.l.kernelAnswers(), b.l.packets(b.p)
	_ = b.SetDeadline(time.Time{}) // see try
	for range repeats {
		b.write(query)
	}
	if err := peer.Await(t.Context(), "the program to drop all", func(context.Context) error {
		if n := b.l.packets(b.p) - seen; n < repeats {
			return fmt.Errorf("%d of %d so far", n, repeats)
		}
		return nil
	}); err != nil {
		t.Errorf("%s: %v", b.foreignFilter.name, err)
	}
	if n := b.l.kernelAnswers() - answered; n != 0 {
		t.Errorf("%s: the kernel has answered %d queries", b.foreignFilter.name, n)
	}
	if n := b.drain(); n != 0 {
		t.Errorf("%s: %d replies have come", b.foreignFilter.name, n)
	}
}

// TestKernelBypass: the kernel's answers do not bypass a foreign program after ours, a tc filter or a
// tcx program, whether it is added before the agent starts or later. When it is removed the kernel
// answers again, even if an empty clsact is left.
func TestKernelBypass(t *testing.T) {
	t.Parallel()
	l := newKernelNetwork(t)
	query := pack(question("web.shop.svc.cluster.local.", dns.TypeA))
	var pods []*filteredPod
	for i, c := range foreignFilters() {
		ns, err := l.AddPod(i + 1)
		check.NoError(t, err)
		pod := &filteredPod{foreignFilter: c, p: l.loadProgram(fmt.Sprintf("policy%d", i+1), tcxDrop)}
		pod.deniedPod = deniedPod{denyPolicy: denyPolicy{name: c.name}, l: l, ns: ns, port: fmt.Sprintf("vpod%d", i+1), client: l.client(ns, c.addr)}
		pod.attach(l, pod.p, pod.port)
		pods = append(pods, pod)
	}
	p := l.startInKernel()
	for _, door := range []string{local4, local6} {
		newComparer(t, l, p, door).askUntilKernelAnswers(query)
	}
	for _, when := range []string{"before the agent", "after it"} {
		t.Log("programs that come", when)
		for _, pod := range pods {
			pod.waitForAgent(t, p)
		}
		for _, pod := range pods {
			pod.wantAllDropped(t, query)
		}
		for _, pod := range pods {
			pod.detach(l, pod.p, pod.port)
		}
		for _, pod := range pods {
			pod.waitForKernelAnswer(t, p, query)
		}
		if when == "before the agent" {
			for _, pod := range pods {
				pod.attach(l, pod.p, pod.port)
			}
		}
	}
}

// TestKernelForged: a pod that a policy denies gets no answers because another pod sends queries with
// its address. When the policy is removed it gets answers again.
func TestKernelForged(t *testing.T) {
	t.Parallel()
	l := newKernelNetwork(t)
	p := l.startInKernel()
	query := pack(question("web.shop.svc.cluster.local.", dns.TypeA))
	newComparer(t, l, p, local4).askUntilKernelAnswers(query)
	var spaces []string
	for n := range 2 {
		ns, err := l.AddPod(n + 1)
		check.NoError(t, err)
		spaces = append(spaces, ns)
	}
	b := &deniedPod{denyPolicy: denyPolicies()[1], l: l, ns: spaces[1], port: "vpod2", client: l.client(spaces[1], local4)}
	b.waitForKernelAnswer(t, p, query)
	b.setDenied(true)
	forge, end := l.forgedSender(spaces[0], b.LocalAddr().String(), query)
	defer end()
	replies := func() string { return l.in(l.node, "cat", "/sys/class/net/vpod2/statistics/tx_packets") }
	before := replies()
	forge()
	if err := peer.Await(t.Context(), "a reply to the pod that has not asked", func(context.Context) error {
		if replies() == before {
			return errors.New("none so far")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	answered := l.kernelAnswers()
	for id := range uint16(3 * repeats) {
		forge()
		b.try(query, id, replyWait, nil)
	}
	if n := l.kernelAnswers() - answered; n != 0 {
		t.Errorf("the kernel has answered %d queries of a denied pod", n)
	}
	b.setDenied(false)
	b.waitForKernelAnswer(t, p, query)
}

// forgedSender returns a function that sends the query from a pod with another one's address.
func (l *network) forgedSender(ns, client string, query []byte) (send, end func()) {
	l.t.Helper()
	var fd int
	err := testbed.InNamespace(ns, func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	from, to := netip.MustParseAddrPort(client), netip.MustParseAddr(local4)
	// Not from the client's own port, which would receive the reply.
	packet := datagram(from.Addr(), to, from.Port()-1, 53, query)
	send = func() {
		if err := unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: to.As4()}); err != nil {
			l.t.Error(err)
		}
	}
	return send, func() { unix.Close(fd) }
}
