package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// denyPolicy denies a pod DNS, in one of the ways in which network policies are implemented.
type denyPolicy struct {
	name string
	addr string
	// apply and lift are commands in the node, with PORT for the pod's link; put may say
	// that the node has no such thing.
	apply, remove [][]string
	// program has the ban be one of somebody else's program at that hook.
	program ebpf.AttachType
}

// splitCommands splits text into commands, one a line.
func splitCommands(text string) (commands [][]string) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 0 {
			commands = append(commands, f)
		}
	}
	return commands
}

func denyPolicies() []denyPolicy {
	return []denyPolicy{
		{name: "iptables raw", addr: local4,
			apply:  splitCommands("iptables -w -t raw -I PREROUTING -i PORT -p udp --dport 53 -j DROP"),
			remove: splitCommands("iptables -w -t raw -D PREROUTING -i PORT -p udp --dport 53 -j DROP")},
		{name: "iptables INPUT", addr: local4,
			apply:  splitCommands("iptables -w -I INPUT -i PORT -j DROP"),
			remove: splitCommands("iptables -w -D INPUT -i PORT -j DROP")},
		{name: "ip6tables raw", addr: local6,
			apply:  splitCommands("ip6tables -w -t raw -I PREROUTING -i PORT -p udp --dport 53 -j DROP"),
			remove: splitCommands("ip6tables -w -t raw -D PREROUTING -i PORT -p udp --dport 53 -j DROP")},
		{name: "replies by iptables OUTPUT", addr: local4,
			apply:  splitCommands("iptables -w -I OUTPUT -o PORT -p udp --sport 53 -j DROP"),
			remove: splitCommands("iptables -w -D OUTPUT -o PORT -p udp --sport 53 -j DROP")},
		{name: "nftables prerouting", addr: local6,
			apply: splitCommands(`nft add table inet PORT
				nft add chain inet PORT in { type filter hook prerouting priority -310 ; }
				nft add rule inet PORT in iifname PORT udp dport 53 drop`),
			remove: splitCommands("nft delete table inet PORT")},
		{name: "nftables at the link", addr: local4,
			apply: splitCommands(`nft add table netdev PORT
				nft add chain netdev PORT in { type filter hook ingress device PORT priority 0 ; }
				nft add rule netdev PORT in udp dport 53 drop`),
			remove: splitCommands("nft delete table netdev PORT")},
		{name: "a program behind ours", addr: local4, program: ebpf.AttachTCXIngress},
		{name: "a program that drops replies", addr: local6, program: ebpf.AttachTCXEgress},
	}
}

// deniedPod is a pod with its policy.
type deniedPod struct {
	denyPolicy
	*client
	l    *network
	ns   string
	port string
	drop *program
}

// setDenied applies the policy or removes it.
func (b *deniedPod) setDenied(on bool) {
	b.l.t.Helper()
	if b.program != ebpf.AttachNone {
		// As one that is there before the agent comes, so that it knows of no other order:
		// ours lets queries go on, and looks at the replies that are left.
		if !on {
			b.drop.detach()
			return
		}
		anchor := link.Tail()
		if b.program == ebpf.AttachTCXEgress {
			anchor = link.Head()
		}
		b.l.attach(b.drop, b.port, b.program, anchor)
		return
	}
	commands := b.apply
	if !on {
		commands = b.remove
	}
	for _, c := range commands {
		args := strings.Split(strings.ReplaceAll(strings.Join(c, "\x00"), "PORT", b.port), "\x00")
		b.l.in(b.l.node, args...)
	}
}

// TestKernelPolicy: the kernel does not answer a pod that a policy denies the agent, although it knows
// the answer from other pods' queries: neither from the start, nor in reply to queries with another
// pod's address, nor for longer than two seconds after it has answered the pod. When the policy is
// removed it answers again. The pods are added while the agent runs.
func TestKernelPolicy(t *testing.T) {
	t.Parallel()
	l := newKernelNetwork(t)
	p := l.startInKernel()
	query := pack(question("web.shop.svc.cluster.local.", dns.TypeA))
	for _, door := range []string{local4, local6} {
		newComparer(t, l, p, door).askUntilKernelAnswers(query)
	}
	var pods []*deniedPod
	for i, b := range denyPolicies() {
		ns, err := l.AddPod(i + 1)
		check.NoError(t, err)
		pod := &deniedPod{denyPolicy: b, l: l, ns: ns, port: fmt.Sprintf("vpod%d", i+1), drop: l.loadProgram(fmt.Sprintf("ban%d", i+1), tcxDrop)}
		pod.client = l.client(ns, b.addr)
		pods = append(pods, pod)
	}
	for _, pod := range pods {
		p.Must(t, "the new pod's link to be followed", func(context.Context) error {
			if got := l.ingressPrograms(pod.port); !slices.Contains(got, answerProgram) {
				return fmt.Errorf("it has the programs %q", got)
			}
			return nil
		})
	}
	for _, pod := range pods {
		pod.setDenied(true)
		pod.wantNoKernelAnswers(t, query)
	}
	l.sendForged(t, pods[0].ns, query)
	for _, pod := range pods {
		pod.setDenied(false)
		pod.waitForKernelAnswer(t, p, query)
	}
	streams := make([]*queryStream, len(pods))
	for i, pod := range pods {
		streams[i] = pod.startQueries(query)
	}
	for i, pod := range pods {
		pod.setDenied(true)
		streams[i].denied <- time.Now()
	}
	for i, pod := range pods {
		streams[i].checkLastAnswer(t, pod.name)
		pod.drain()
		pod.setDenied(false)
		pod.waitForKernelAnswer(t, p, query)
	}
}

// kernelQueries returns how many queries the program in the kernel has seen.
func (l *network) kernelQueries() int { return l.metric("nodens_kernel_path_queries_total") }

// wantNoKernelAnswers sends queries, waits until the kernel has seen all of them, and checks that no
// reply has arrived.
func (b *deniedPod) wantNoKernelAnswers(t *testing.T, query []byte) {
	t.Helper()
	known, seen := b.l.kernelAnswers(), b.queriesSeen()
	for range repeats {
		b.write(query)
	}
	if err := peer.Await(t.Context(), "the queries to be seen", func(context.Context) error {
		if n := b.queriesSeen() - seen; n < repeats {
			return fmt.Errorf("%d of %d so far", n, repeats)
		}
		return nil
	}); err != nil {
		t.Fatalf("%s: %v", b.name, err)
	}
	if n := b.l.kernelAnswers() - known; n != 0 {
		t.Errorf("%s: the kernel has answered %d queries", b.name, n)
	}
	if n := b.drain(); n != 0 {
		t.Errorf("%s: %d replies have come", b.name, n)
	}
}

// queriesSeen returns how many queries have reached our program in the kernel, or the program that drops
// them or their replies, which then runs before ours.
func (b *deniedPod) queriesSeen() int {
	if b.program != ebpf.AttachNone {
		return int(b.l.packets(b.drop))
	}
	return b.l.kernelQueries()
}

// waitForKernelAnswer waits until the kernel answers the pod.
func (b *deniedPod) waitForKernelAnswer(t *testing.T, p *peer.Process, query []byte) {
	t.Helper()
	before := b.l.kernelAnswers()
	tries := 0
	p.Must(t, b.name+": an answer from the kernel", func(context.Context) error {
		if tries++; tries > quickTries {
			time.Sleep(scrapeInterval)
		}
		b.try(query, 1, replyWait, nil)
		if b.l.kernelAnswers() == before {
			return errors.New("the kernel has not answered")
		}
		return nil
	})
	b.drain()
}

// try sends one query and returns the time of the reply; the zero time if none arrives in time. It
// passes the IDs of replies to earlier queries to late, which may be nil.
func (c *client) try(query []byte, id uint16, wait time.Duration, late func(id uint16)) (came time.Time) {
	packet := append([]byte{byte(id >> 8), byte(id)}, query[2:]...)
	var buf [dns.MinMsgSize]byte
	_ = c.SetDeadline(time.Now().Add(wait))
	if _, err := c.Write(packet); err != nil {
		return came
	}
	for {
		n, err := c.Read(buf[:])
		if err != nil || n < 2 {
			return came
		}
		of := uint16(buf[0])<<8 | uint16(buf[1])
		if of == id {
			return time.Now()
		}
		if late != nil {
			late(of)
		}
	}
}

const (
	// replyWait is for how long a pod waits for an answer before it asks the next query, where
	// one that comes later is not lost.
	replyWait = time.Second / 50
	// admissionTime is for how long the kernel answers a client after the agent has last.
	admissionTime = 2 * time.Second
	// extraTime is for how long a pod asks after that: an answer would come at once.
	extraTime = time.Second / 4
)

// queryStream is a pod that sends one query after the other.
type queryStream struct {
	denied chan time.Time // when it was banned
	done   chan struct{}
	// limit is until when the kernel may answer, last when the last query was asked that
	// was answered, and n how many were.
	limit, last time.Time
	n           int
}

// startQueries starts sending, with increasing IDs. The agent's last reply is to a query that was sent
// before the policy was applied; the kernel's last one is at most two seconds later.
func (b *deniedPod) startQueries(query []byte) *queryStream {
	s := &queryStream{denied: make(chan time.Time, 1), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		var under uint16 // the last query of before the ban
		late := func(id uint16) {
			if id <= under {
				s.limit = time.Now().Add(admissionTime)
			}
		}
		for id := uint16(1); s.limit.IsZero() || time.Since(s.limit) < extraTime; id++ {
			asked := time.Now()
			came := b.try(query, id, replyWait, late)
			if !came.IsZero() {
				s.last = asked
				s.n++
			}
			if len(s.denied) > 0 {
				s.limit, under = (<-s.denied).Add(admissionTime), id
				if limit := came.Add(admissionTime); limit.After(s.limit) {
					s.limit = limit
				}
			}
		}
	}()
	return s
}

// checkLastAnswer waits for the end of the stream and checks when the last answer arrived.
func (s *queryStream) checkLastAnswer(t *testing.T, name string) {
	t.Helper()
	<-s.done
	t.Logf("%s: %d answers, the last to a query %v before the time that is left", name, s.n, s.limit.Sub(s.last))
	if s.n == 0 || s.last.After(s.limit) {
		t.Errorf("%s: an answer after the time that is left, or none at all", name)
	}
}

// drain reads the packets that have arrived, without blocking, and returns their number.
func (c *client) drain() (n int) {
	c.t.Helper()
	raw, err := c.Conn.(*net.UDPConn).SyscallConn()
	if err != nil {
		c.t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		for {
			if _, _, err := unix.Recvfrom(int(fd), make([]byte, dns.MinMsgSize), unix.MSG_DONTWAIT); err != nil {
				return
			}
			n++
		}
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

// sendForged sends queries with the pod's address from another pod, which is denied, and checks that
// the kernel answers none.
func (l *network) sendForged(t *testing.T, ns string, query []byte) {
	t.Helper()
	var fd int
	err := testbed.InNamespace(ns, func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	check.NoError(t, err)
	defer unix.Close(fd)
	known, seen := l.kernelAnswers(), l.kernelQueries()
	from, to := netip.MustParseAddr(testbed.PodIP4), netip.MustParseAddr(local4)
	packet := datagram(from, to, 4242, 53, query)
	for range repeats {
		check.NoError(t, unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: to.As4()}))
	}
	if err := peer.Await(t.Context(), "the forged queries to be seen", func(context.Context) error {
		if n := l.kernelQueries() - seen; n < repeats {
			return fmt.Errorf("%d of %d so far", n, repeats)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if n := l.kernelAnswers() - known; n != 0 {
		t.Errorf("the kernel has answered %d forged queries", n)
	}
}

// datagram returns an IPv4 packet with a UDP datagram without a checksum.
func datagram(from, to netip.Addr, sport, dport uint16, payload []byte) []byte {
	b := make([]byte, 28, 28+len(payload))
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP
	copy(b[12:], from.AsSlice())
	copy(b[16:], to.AsSlice())
	put := func(at int, v uint16) { b[at], b[at+1] = byte(v>>8), byte(v) }
	put(2, uint16(len(b)+len(payload)))
	put(20, sport)
	put(22, dport)
	put(24, uint16(8+len(payload)))
	return append(b, payload...)
}
