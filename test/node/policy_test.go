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

	"github.com/nodens-dns/nodens/test/node/testbed"
	"github.com/nodens-dns/nodens/test/peer"
)

// ban keeps a pod from the DNS, in one of the ways that network policies take.
type ban struct {
	name string
	door string
	// put and lift are commands in the node, with PORT for the pod's link; put may say
	// that the node has no such thing.
	put, lift [][]string
	// program has the ban be one of somebody else's program at that hook.
	program ebpf.AttachType
}

// words are the commands, one a line.
func words(text string) (commands [][]string) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 0 {
			commands = append(commands, f)
		}
	}
	return commands
}

func bans() []ban {
	return []ban{
		{name: "iptables raw", door: local4,
			put:  words("iptables -w -t raw -I PREROUTING -i PORT -p udp --dport 53 -j DROP"),
			lift: words("iptables -w -t raw -D PREROUTING -i PORT -p udp --dport 53 -j DROP")},
		{name: "iptables INPUT", door: local4,
			put:  words("iptables -w -I INPUT -i PORT -j DROP"),
			lift: words("iptables -w -D INPUT -i PORT -j DROP")},
		{name: "ip6tables raw", door: local6,
			put:  words("ip6tables -w -t raw -I PREROUTING -i PORT -p udp --dport 53 -j DROP"),
			lift: words("ip6tables -w -t raw -D PREROUTING -i PORT -p udp --dport 53 -j DROP")},
		{name: "replies by iptables OUTPUT", door: local4,
			put:  words("iptables -w -I OUTPUT -o PORT -p udp --sport 53 -j DROP"),
			lift: words("iptables -w -D OUTPUT -o PORT -p udp --sport 53 -j DROP")},
		{name: "nftables prerouting", door: local6,
			put: words(`nft add table inet PORT
				nft add chain inet PORT in { type filter hook prerouting priority -310 ; }
				nft add rule inet PORT in iifname PORT udp dport 53 drop`),
			lift: words("nft delete table inet PORT")},
		{name: "nftables at the link", door: local4,
			put: words(`nft add table netdev PORT
				nft add chain netdev PORT in { type filter hook ingress device PORT priority 0 ; }
				nft add rule netdev PORT in udp dport 53 drop`),
			lift: words("nft delete table netdev PORT")},
		{name: "a program behind ours", door: local4, program: ebpf.AttachTCXIngress},
		{name: "a program that drops replies", door: local6, program: ebpf.AttachTCXEgress},
	}
}

// banned is a pod with its ban.
type banned struct {
	ban
	*client
	l    *lab
	ns   string
	port string
	drop *program
}

// set puts the ban in place, or lifts it.
func (b *banned) set(on bool) {
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
	commands := b.put
	if !on {
		commands = b.lift
	}
	for _, c := range commands {
		args := strings.Split(strings.ReplaceAll(strings.Join(c, "\x00"), "PORT", b.port), "\x00")
		b.l.in(b.l.node, args...)
	}
}

// TestKernelPolicy: a pod that is kept from the agent by whatever means is not answered by
// the kernel either, although other pods' queries have taught it the answer: not from the
// start, not in another pod's name, and not for longer than two seconds where it was
// answered before. When the ban is lifted it is answered again. Pods may come while the
// agent runs.
func TestKernelPolicy(t *testing.T) {
	l := newKernelLab(t)
	p := l.startInKernel()
	query := pack(question("web.shop.svc.cluster.local.", dns.TypeA))
	for _, door := range []string{local4, local6} {
		newAsker(t, l, p, door).known(query)
	}
	var pods []*banned
	for i, b := range bans() {
		ns, err := l.AddPod(i + 1)
		if err != nil {
			t.Fatal(err)
		}
		pod := &banned{ban: b, l: l, ns: ns, port: fmt.Sprintf("vpod%d", i+1), drop: l.program(fmt.Sprintf("ban%d", i+1), drop)}
		pod.client = l.client(ns, b.door)
		pods = append(pods, pod)
	}
	for _, pod := range pods {
		p.Must(t, "the new pod's link to be followed", func(context.Context) error {
			if got := l.chain(pod.port); !slices.Contains(got, ours) {
				return fmt.Errorf("it has the programs %q", got)
			}
			return nil
		})
	}
	for _, pod := range pods {
		pod.set(true)
		pod.unanswered(t, query)
	}
	l.spoof(t, pods[0].ns, query)
	for _, pod := range pods {
		pod.set(false)
		pod.answered(t, p, query)
	}
	streams := make([]*stream, len(pods))
	for i, pod := range pods {
		streams[i] = pod.stream(query)
	}
	for i, pod := range pods {
		pod.set(true)
		streams[i].put <- time.Now()
	}
	for i, pod := range pods {
		streams[i].end(t, pod.name)
		pod.drain()
		pod.set(false)
		pod.answered(t, p, query)
	}
}

// results is how many queries the program in the kernel has looked at.
func (l *lab) results() (n int) {
	l.t.Helper()
	m, err := l.Metrics()
	if err != nil {
		l.t.Fatal(err)
	}
	for series, v := range m {
		if strings.HasPrefix(series, "nodens_kernel_path_queries_total{") {
			n += int(v)
		}
	}
	return n
}

// unanswered asks some times, and looks for an answer when the kernel has looked at all of
// the queries, and let them go on: there is nothing to wait for.
func (b *banned) unanswered(t *testing.T, query []byte) {
	t.Helper()
	known, seen := b.l.answered(), b.seen()
	for range asks {
		b.write(query)
	}
	if err := peer.Await(t.Context(), "the queries to be seen", func(context.Context) error {
		if n := b.seen() - seen; n < asks {
			return fmt.Errorf("%d of %d so far", n, asks)
		}
		return nil
	}); err != nil {
		t.Fatalf("%s: %v", b.name, err)
	}
	if n := b.l.answered() - known; n != 0 {
		t.Errorf("%s: the kernel has answered %d queries", b.name, n)
	}
	if n := b.drain(); n != 0 {
		t.Errorf("%s: %d replies have come", b.name, n)
	}
}

// seen is how many queries have come to the program in the kernel, or to the one that drops them
// or their replies: ours moves behind that, and sees none.
func (b *banned) seen() int {
	if b.program != ebpf.AttachNone {
		return int(b.l.packets(b.drop))
	}
	return b.l.results()
}

// answered waits until the kernel answers the pod.
func (b *banned) answered(t *testing.T, p *peer.Process, query []byte) {
	t.Helper()
	before := b.l.answered()
	p.Must(t, b.name+": an answer from the kernel", func(context.Context) error {
		b.try(query, 1, usual, nil)
		if b.l.answered() == before {
			return errors.New("the kernel has not answered")
		}
		return nil
	})
	b.drain()
}

// try asks once, and gives the moment at which the answer came; the zero one if none came in
// time. Answers to earlier queries go to late, which may be nil.
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
	// usual is for how long a pod waits for an answer before it asks the next query, where
	// one that comes later is not lost.
	usual = time.Second / 50
	// admitted is for how long the kernel answers a client after the agent has last.
	admitted = 2 * time.Second
	// beyond is for how long a pod asks after that: an answer would come at once.
	beyond = time.Second / 4
)

// stream is a pod that asks, one query after the other.
type stream struct {
	put  chan time.Time // when it was banned
	done chan struct{}
	// limit is until when the kernel may answer, last when the last query was asked that
	// was answered, and n how many were.
	limit, last time.Time
	n           int
}

// stream starts asking, with IDs that go up. The agent's last reply is to a query that was
// under way when the ban came, or came before; two seconds later the kernel's is.
func (b *banned) stream(query []byte) *stream {
	s := &stream{put: make(chan time.Time, 1), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		var under uint16 // the last query of before the ban
		late := func(id uint16) {
			if id <= under {
				s.limit = time.Now().Add(admitted)
			}
		}
		for id := uint16(1); s.limit.IsZero() || time.Since(s.limit) < beyond; id++ {
			asked := time.Now()
			came := b.try(query, id, usual, late)
			if !came.IsZero() {
				s.last = asked
				s.n++
			}
			if len(s.put) > 0 {
				s.limit, under = (<-s.put).Add(admitted), id
				if limit := came.Add(admitted); limit.After(s.limit) {
					s.limit = limit
				}
			}
		}
	}()
	return s
}

// end looks at the last answer, when that must have come.
func (s *stream) end(t *testing.T, name string) {
	t.Helper()
	<-s.done
	t.Logf("%s: %d answers, the last to a query %v before the time that is left", name, s.n, s.limit.Sub(s.last))
	if s.n == 0 || s.last.After(s.limit) {
		t.Errorf("%s: an answer after the time that is left, or none at all", name)
	}
}

// drain reads what has come, without waiting, and says how many packets it was.
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

// spoof asks in the pod's name from another one, which is banned: nothing comes back to
// either.
func (l *lab) spoof(t *testing.T, ns string, query []byte) {
	t.Helper()
	var fd int
	err := testbed.Inside(ns, func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	known, seen := l.answered(), l.results()
	from, to := netip.MustParseAddr(testbed.PodIP4), netip.MustParseAddr(local4)
	packet := datagram(from, to, 4242, 53, query)
	for range asks {
		if err := unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: to.As4()}); err != nil {
			t.Fatal(err)
		}
	}
	if err := peer.Await(t.Context(), "the forged queries to be seen", func(context.Context) error {
		if n := l.results() - seen; n < asks {
			return fmt.Errorf("%d of %d so far", n, asks)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if n := l.answered() - known; n != 0 {
		t.Errorf("the kernel has answered %d forged queries", n)
	}
}

// datagram is a UDP packet over IPv4 without a checksum, with its IP header.
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
