package node

import (
	"bytes"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// setSocketOption sets an option of the client's socket.
func (c *client) setSocketOption(set func(fd int) error) {
	c.t.Helper()
	raw, err := c.Conn.(*net.UDPConn).SyscallConn()
	if err != nil {
		c.t.Fatal(err)
	}
	var bad error
	if err := raw.Control(func(fd uintptr) { bad = set(int(fd)) }); err != nil || bad != nil {
		c.t.Fatal(err, bad)
	}
}

// socketOption returns a function that sets a socket option.
func socketOption(level, name int, value string) func(fd int) error {
	return func(fd int) error { return unix.SetsockoptString(fd, level, name, value) }
}

// TestKernelFrames: a query in an unusual packet gets the same answer as any other. The kernel leaves
// packets with unknown headers to the agent.
func TestKernelFrames(t *testing.T) {
	t.Parallel()
	l := newKernelNetwork(t)
	p := l.startInKernel()
	plain := pack(question("web.shop.svc.cluster.local.", dns.TypeA))
	large := pack(question("web.shop.svc.cluster.local.", dns.TypeA, edns(1232, &dns.EDNS0_PADDING{Padding: make([]byte, 2000)})))
	nothing := func(int) error { return nil }
	four := string([]byte{1, 1, 1, 1})            // no operation, four times (RFC 791)
	six := string([]byte{0, 0, 1, 4, 0, 0, 0, 0}) // an option that pads (RFC 8200, 4.2)
	for _, c := range []struct {
		name, door string
		set        func(fd int) error
		query      []byte
		in         bool
	}{
		{"no options", local4, nothing, plain, true},
		{"IP options", local4, socketOption(unix.IPPROTO_IP, unix.IP_OPTIONS, four), plain, false},
		{"destination options", local6, socketOption(unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS, six), plain, false},
		{"hop-by-hop options", local6, socketOption(unix.IPPROTO_IPV6, unix.IPV6_HOPOPTS, six), plain, false},
		{"no checksum", local4, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1) }, plain, true},
		{"fragments", local4, nothing, large, false},
		{"fragments over IPv6", local6, nothing, large, false},
		{"traffic class", local4, func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, 0xb8) }, plain, true},
		{"flow label and class", local6, func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 0xb8) }, plain, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newComparer(t, l, p, c.door)
			a.pod.setSocketOption(c.set)
			a.check(t, c.query, c.in, false)
		})
	}
	for _, door := range []string{local4, local6} {
		t.Run("segments "+door, func(t *testing.T) { newComparer(t, l, p, door).checkSegments(t, plain) })
	}
	t.Run("without offload", func(t *testing.T) {
		for _, end := range [][2]string{{l.pod, "eth0"}, {l.node, "vpod"}} {
			if err := disableOffload(end[0], end[1]); err != nil {
				t.Skip(err)
			}
		}
		for _, door := range []string{local4, local6} {
			newComparer(t, l, p, door).check(t, plain, true, false)
		}
	})
	t.Run("VLAN", func(t *testing.T) { l.checkVLAN(t, newComparer(t, l, p, local4), plain) })
}

// checkVLAN sends queries in frames with the tag of an unknown VLAN, and without: only the latter are
// answered.
func (l *network) checkVLAN(t *testing.T, a *comparer, query []byte) {
	t.Helper()
	a.pod.t, a.node.t = t, t
	packet := datagram(netip.MustParseAddr(testbed.PodIP4), netip.MustParseAddr(local4), 4242, 53, query)
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(packet[i])<<8 | uint32(packet[i+1])
	}
	sum = ^(sum&0xffff + sum>>16)
	packet[10], packet[11] = byte(sum>>8), byte(sum)
	tags := [][]byte{{0x81, 0, 0, 5, 0x08, 0}, {0x08, 0}}
	for i, tag := range tags {
		a.askUntilKernelAnswers(query)
		before := l.kernelAnswers()
		l.inject(t, slices.Concat(l.mac(l.node, "vpod"), l.mac(l.pod, "eth0"), tag, packet))
		a.pod.ask(pack(question("fence.test.", dns.TypeTXT, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS })), false)
		if n := l.kernelAnswers() - before; n > 0 != (i == 1) {
			t.Errorf("of %d frames of the type %x the kernel has answered %d", repeats, tag, n)
		}
	}
}

// mac returns the hardware address of an interface.
func (l *network) mac(ns, name string) []byte {
	l.t.Helper()
	mac, err := net.ParseMAC(strings.TrimSpace(l.in(ns, "cat", "/sys/class/net/"+name+"/address")))
	if err != nil {
		l.t.Fatal(err)
	}
	return mac
}

// inject sends a frame from the pod repeatedly.
func (l *network) inject(t *testing.T, frame []byte) {
	t.Helper()
	err := testbed.InNamespace(l.pod, func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		for range repeats {
			if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Index}); err != nil {
				return err
			}
		}
		return nil
	})
	check.NoError(t, err)
}

// checkSegments sends many queries as one packet that the kernel segments (UDP GSO), not before it
// reaches the node over a veth.
func (a *comparer) checkSegments(t *testing.T, query []byte) {
	t.Helper()
	a.pod.t, a.node.t = t, t
	a.askUntilKernelAnswers(query)
	want := a.node.ask(query, false)
	a.pod.setSocketOption(func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, len(query)) })
	var all []byte
	missing := map[byte]bool{}
	for id := range byte(repeats) {
		all = append(all, 0x77, id)
		all = append(all, query[2:]...)
		missing[id] = true
	}
	a.pod.write(all)
	for len(missing) > 0 {
		m := a.pod.read()
		if len(m) < 2 || m[0] != 0x77 || !missing[m[1]] || !bytes.Equal(m[2:], want[2:]) {
			t.Fatalf("%x, want %x with one of the IDs %v", m, want, missing)
		}
		delete(missing, m[1])
	}
}

// disableOffload makes an interface send packets with complete checksums.
func disableOffload(ns, name string) error {
	const setTX, setSegments = 0x17, 0x24 // ETHTOOL_STXCSUM, ETHTOOL_SGSO
	return testbed.InNamespace(ns, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, command := range []uint32{setTX, setSegments} {
			value := struct{ command, data uint32 }{command, 0}
			request := struct {
				name [unix.IFNAMSIZ]byte
				data unsafe.Pointer
				_    [16]byte
			}{data: unsafe.Pointer(&value)}
			copy(request.name[:], name)
			if _, _, code := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); code != 0 {
				return code
			}
		}
		return nil
	})
}
