package netsetup

// Inside the package: other tests inside use these helpers.

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

const (
	// nftLabEnv marks a process that runs a single test in a network namespace of its
	// own.
	nftLabEnv = "NODENS_TEST_NFT_LAB"

	// waitLimit is when a test gives up on something that has to come, on a machine however busy.
	waitLimit = 3 * time.Minute
)

// inNftNamespace runs body in a process with a network namespace of its own: this test binary
// again, told to run the calling test only. What body leaves there goes with it. As with
// inNamespace, such tests run side by side.
func inNftNamespace(t *testing.T, body func(t *testing.T)) {
	t.Helper()
	if os.Getenv(nftLabEnv) != "" {
		body(t)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	for _, program := range []string{"nft", "ip", "conntrack", "iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs the programs of nftables, iptables and iproute2:", err)
		}
	}
	t.Parallel()
	rerunInNetns(t, nftLabEnv+"=1")
}

// sh runs a script in the namespace of the calling thread.
func sh(t *testing.T, script string) string {
	t.Helper()
	out, err := exec.Command("sh", "-ec", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s\n%v\n%s", script, err, out)
	}
	return string(out)
}

// netns is another network namespace.
type netns struct {
	file *os.File
	path string // for other programs, while file is open
}

// newNetns makes a namespace that lasts until its file is closed, at the end of the test at the latest.
func newNetns(t *testing.T) netns {
	t.Helper()
	file, err := testbed.NewNamespace()
	check.NoError(t, err)
	t.Cleanup(func() { file.Close() })
	return netns{file, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd())}
}

// do runs f there, on a thread that nothing else runs on meanwhile. f ends no test.
func (p netns) do(f func()) {
	if err := testbed.InNamespaceFile(p.file, func() error { f(); return nil }); err != nil {
		panic(err)
	}
}

// sh runs a script there.
func (p netns) sh(t *testing.T, script string) {
	t.Helper()
	var out []byte
	var err error
	p.do(func() { out, err = exec.Command("sh", "-ec", script).CombinedOutput() })
	if err != nil {
		t.Fatalf("%s\n%v\n%s", script, err, out)
	}
}

// nftTestbed is a node, whose namespace is that of the process, with a pod and a cluster DNS
// behind a veth each.
type nftTestbed struct {
	pod, dns netns
}

// The lab's addresses.
var (
	labLocals    = []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::10")}
	labDiversion = []netip.AddrPort{
		netip.MustParseAddrPort("10.9.2.2:53"), netip.MustParseAddrPort("10.9.2.3:5353"),
		netip.MustParseAddrPort("[fd09:2::2]:53"), netip.MustParseAddrPort("[fd09:2::3]:5353"),
	}
)

func newNftTestbed(t *testing.T) *nftTestbed {
	t.Helper()
	l := &nftTestbed{pod: newNetns(t), dns: newNetns(t)}
	sh(t, `
ip link set lo up
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
for a in 169.254.20.10 10.96.0.10; do ip addr add $a/32 dev lo; done
ip addr add fd00:96::10/128 dev lo nodad
i=1
for to in `+l.pod.path+` `+l.dns.path+`; do
	ip link add veth$i type veth peer name eth$i
	ip addr add 10.9.$i.1/24 dev veth$i
	ip addr add fd09:$i::1/64 dev veth$i nodad
	ip link set veth$i up
	ip link set eth$i netns $to
	i=2
done`)
	for i, p := range []netns{l.pod, l.dns} {
		p.sh(t, strings.ReplaceAll(`
ip link set lo up
for n in 2 3; do
	ip addr add 10.9.N.$n/24 dev ethN
	ip addr add fd09:N::$n/64 dev ethN nodad
done
ip link set ethN up
ip route add default via 10.9.N.1
ip -6 route add default via fd09:N::1`, "N", fmt.Sprint(i+1)))
	}
	// Its node has local addresses of its own: an answer to one of them never comes back.
	l.dns.sh(t, `
for a in 169.254.20.10 10.96.0.10; do ip addr add $a/32 dev lo; done
ip addr add fd00:96::10/128 dev lo nodad`)
	for _, d := range labDiversion {
		l.dns.do(func() { serve(t, d, "cluster "+d.String()) })
	}
	return l
}

// listen is the agent: it serves at the local addresses, until stop is called.
func (l *nftTestbed) listen(t *testing.T) (stop func()) {
	t.Helper()
	var stops []func()
	for _, a := range labLocals {
		stops = append(stops, serve(t, netip.AddrPortFrom(a, 53), "local"))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// wantFailOpen has somebody listen at the local addresses and go, three times: queries are
// answered there, untracked, or else by the cluster DNS.
func (l *nftTestbed) wantFailOpen(t *testing.T) {
	t.Helper()
	for range 3 {
		stop := l.listen(t)
		run(t, "conntrack", "-F")
		l.wantAnswers(t, l.pod, "local")
		if got := tracked(t); len(got) > 0 {
			t.Errorf("tracked while the agent listens:\n%s", strings.Join(got, ""))
		}
		stop()
		l.wantAnswers(t, l.pod, "cluster")
		l.wantAnswers(t, netns{}, "cluster")
	}
	if len(tracked(t)) == 0 {
		t.Error("diverted queries are not tracked: this test sees nothing")
	}
}

// serve answers says over UDP and TCP, in the namespace of the calling thread, until stop
// is called or the test ends.
func serve(t *testing.T, at netip.AddrPort, says string) (stop func()) {
	udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		t.Error(err)
		return func() {}
	}
	tcp, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		t.Error(err)
		return func() { udp.Close() }
	}
	go func() {
		buf := make([]byte, 512)
		for {
			_, from, err := udp.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil { // else a client's port was closed
				_, _ = udp.WriteToUDPAddrPort([]byte(says), from)
			}
		}
	}()
	go func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			_ = conn.SetDeadline(time.Now().Add(waitLimit))
			if _, err := io.ReadFull(conn, make([]byte, 1)); err == nil {
				_, _ = io.WriteString(conn, says)
			}
			conn.Close()
		}
	}()
	stop = func() { udp.Close(); tcp.Close() }
	t.Cleanup(stop)
	return stop
}

// askOnce sends one query from the namespace of the calling thread, and returns the answer's
// text, or the error's.
func askOnce(network string, at netip.AddrPort) string { return askEvery(waitLimit, network, at) }

// ask is askOnce, but sends a datagram again after a while: the kernel drops those that wait for a
// neighbor whose address it does not learn in time.
func ask(network string, at netip.AddrPort) string {
	if network == "udp" {
		return askEvery(2*time.Second, network, at)
	}
	return askOnce(network, at)
}

// askEvery sends the query every interval until an answer comes.
func askEvery(interval time.Duration, network string, at netip.AddrPort) string {
	conn, err := (&net.Dialer{Timeout: waitLimit}).Dial(network, at.String())
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	buf := make([]byte, 64)
	for end := time.Now().Add(waitLimit); ; {
		_ = conn.SetDeadline(time.Now().Add(interval))
		if _, err := conn.Write([]byte("?")); err != nil {
			return err.Error()
		}
		n, err := conn.Read(buf)
		switch {
		case err == nil:
			return string(buf[:n])
		case !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(end):
			return err.Error()
		}
	}
}

// askFrom asks from a place, the zero netns for the node.
func askFrom(from netns, network string, at netip.AddrPort) (answer string) {
	if from.file == nil {
		return ask(network, at)
	}
	from.do(func() { answer = ask(network, at) })
	return answer
}

// wantAnswers asks at every local address over UDP and TCP, and wants an answer that begins
// so.
func (l *nftTestbed) wantAnswers(t *testing.T, from netns, prefix string) {
	t.Helper()
	for _, local := range labLocals {
		for _, network := range []string{"udp", "tcp"} {
			got := askFrom(from, network, netip.AddrPortFrom(local, 53))
			if !strings.HasPrefix(got, prefix) {
				t.Errorf("%s to %v: %q, want %q", network, local, got, prefix)
			}
		}
	}
}

// tracked lists the connections of DNS that are tracked.
func tracked(t *testing.T) []string {
	t.Helper()
	table, err := os.ReadFile("/proc/self/net/nf_conntrack")
	check.NoError(t, err)
	var lines []string
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, "dport=53 ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// waitUntil waits for a condition.
func waitUntil(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(waitLimit); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("what has to come does not")
		}
	}
}
