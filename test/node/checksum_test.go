package node

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// TestKernelChecksums checks the checksums of the kernel's replies as they enter the pod: complete if the
// query's was, and otherwise what the sender of a packet leaves to the network device. A raw socket sends
// complete ones, and so does every socket where the interface does not compute them.
func TestKernelChecksums(t *testing.T) {
	t.Parallel()
	l := newKernelNetwork(t)
	p := l.startInKernel()
	queries := [][]byte{
		pack(question("web.shop.svc.cluster.local.", dns.TypeA)),
		pack(question("set.shop.svc.cluster.local.", dns.TypeA, edns(1232))),
		pack(question("nosuch.shop.svc.cluster.local.", dns.TypeAAAA, edns(4096, &dns.EDNS0_PADDING{Padding: make([]byte, 61)}))),
	}
	check := func(t *testing.T, offload bool) {
		for _, door := range []string{local4, local6} {
			a := newComparer(t, l, p, door)
			a.pod.t, a.node.t = t, t
			tap := l.openTap(t, a.pod.LocalAddr())
			raw := l.rawSocket(t, a.pod.LocalAddr(), a.pod.RemoteAddr())
			for _, query := range queries {
				a.askUntilKernelAnswers(query)
				a.checkChecksum(t, tap, query, a.pod.write, offload)
				a.checkChecksum(t, tap, query, raw, false)
			}
		}
	}
	t.Run("with offload", func(t *testing.T) { check(t, true) })
	t.Run("without offload", func(t *testing.T) {
		for _, end := range [][2]string{{l.pod, "eth0"}, {l.node, "vpod"}} {
			if err := disableOffload(end[0], end[1]); err != nil {
				t.Skip(err)
			}
		}
		check(t, false)
	})
}

// checkChecksum sends the query until the kernel has answered it, and checks the checksums of its reply.
// partial says that it is left to the device.
func (a *comparer) checkChecksum(t *testing.T, tap *tap, query []byte, send func([]byte), partial bool) {
	t.Helper()
	for range quickTries {
		before := a.l.kernelAnswers()
		a.pod.id++
		query = bytes.Clone(query)
		binary.BigEndian.PutUint16(query, a.pod.id)
		send(query)
		if m := a.pod.read(); !bytes.Equal(m[:2], query[:2]) {
			t.Fatalf("%x is no reply to %x", m, query)
		}
		frame, unfinished := tap.read(t, query[:2])
		if a.l.kernelAnswers() == before {
			continue // the agent's, which renews the admission
		}
		if err := checkFrame(frame, unfinished); err != nil {
			t.Errorf("%v: %v: %x", a.pod.RemoteAddr(), err, frame)
		}
		if unfinished != partial {
			t.Errorf("%v: the checksum is left to the device: %v, want %v", a.pod.RemoteAddr(), unfinished, partial)
		}
		return
	}
	t.Errorf("the kernel has answered none of %d queries", quickTries)
}

// tap sees the packets of the pod's interface as the kernel has them.
type tap struct {
	fd   int
	port uint16 // of the pod's socket
}

// auxdataSize is that of struct tpacket_auxdata (packet(7)), which begins with the status.
const auxdataSize = 20

// openTap returns a tap for the replies to a socket in the pod.
func (l *network) openTap(t *testing.T, addr net.Addr) *tap {
	t.Helper()
	fd := -1
	err := testbed.InNamespace(l.pod, func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: link.Index})
	})
	if fd >= 0 {
		t.Cleanup(func() { unix.Close(fd) })
	}
	patience := unix.NsecToTimeval(answerTimeout.Nanoseconds())
	for _, err := range []error{
		err,
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience),
	} {
		check.NoError(t, err)
	}
	return &tap{fd, netip.MustParseAddrPort(addr.String()).Port()}
}

func networkOrder(v uint16) uint16 { return v<<8 | v>>8 }

// read returns the frame of the reply with this ID, and whether its checksum is left to the device.
func (c *tap) read(t *testing.T, id []byte) (frame []byte, unfinished bool) {
	t.Helper()
	b, control := make([]byte, 2048), make([]byte, unix.CmsgSpace(auxdataSize))
	for deadline := time.Now().Add(answerTimeout); time.Now().Before(deadline); {
		n, m, _, _, err := unix.Recvmsg(c.fd, b, control, 0)
		check.NoError(t, err)
		udp := udpOf(b[:n])
		if len(udp) < 10 || binary.BigEndian.Uint16(udp[2:]) != c.port || !bytes.Equal(udp[8:10], id) {
			continue
		}
		list, err := unix.ParseSocketControlMessage(control[:m])
		if err != nil || len(list) != 1 {
			t.Fatalf("%v: %v", list, err)
		}
		return b[:n], binary.NativeEndian.Uint32(list[0].Data)&unix.TP_STATUS_CSUMNOTREADY != 0
	}
	t.Fatalf("no reply with the ID %x", id)
	return nil, false
}

// udpOf returns a frame from its UDP header on; nil if it has none.
func udpOf(frame []byte) []byte {
	switch {
	case len(frame) > 42 && frame[12] == 8 && frame[14] == 0x45 && frame[23] == unix.IPPROTO_UDP:
		return frame[34:]
	case len(frame) > 62 && frame[12] == 0x86 && frame[20] == unix.IPPROTO_UDP:
		return frame[54:]
	}
	return nil
}

// rawSocket returns a function that sends a message from the pod as a packet whose checksum is complete.
func (l *network) rawSocket(t *testing.T, fromAddr, toAddr net.Addr) func([]byte) {
	t.Helper()
	from, to := netip.MustParseAddrPort(fromAddr.String()), netip.MustParseAddrPort(toAddr.String())
	family, dest := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		family, dest = unix.AF_INET, &unix.SockaddrInet4{Addr: to.Addr().As4()}
	}
	fd := -1
	if err := testbed.InNamespace(l.pod, func() (err error) {
		fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return func(m []byte) {
		t.Helper()
		b := binary.BigEndian.AppendUint16(nil, from.Port())
		b = binary.BigEndian.AppendUint16(b, to.Port())
		b = binary.BigEndian.AppendUint16(b, uint16(8+len(m)))
		b = append(append(b, 0, 0), m...)
		sum := ^onesSum(append(pseudoHeader(from.Addr().AsSlice(), to.Addr().AsSlice(), len(b)), b...))
		if sum == 0 {
			sum = 0xffff
		}
		binary.BigEndian.PutUint16(b[6:], sum)
		check.NoError(t, unix.Sendto(fd, b, 0, dest))
	}
}

// pseudoHeader is what a UDP checksum covers beside the datagram (RFC 768; RFC 8200, 8.1).
func pseudoHeader(from, to []byte, length int) []byte {
	return binary.BigEndian.AppendUint16(append(append(bytes.Clone(from), to...), 0, unix.IPPROTO_UDP), uint16(length))
}

// onesSum is the sum of RFC 1071.
func onesSum(b []byte) uint16 {
	sum := uint32(0)
	for i, v := range b {
		sum += uint32(v) << (8 * (1 - i&1))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// checkFrame returns an error if a checksum of the frame is wrong. unfinished says that the sum of the
// pseudo header is in place of the UDP checksum.
func checkFrame(frame []byte, unfinished bool) error {
	udp := udpOf(frame)
	size := 4
	if frame[12] == 0x86 {
		size = 16
	} else if sum := onesSum(frame[14:34]); sum != 0xffff {
		return fmt.Errorf("the IPv4 header's sum is %x", sum)
	}
	addrs := frame[len(frame)-len(udp)-2*size:]
	pseudo := pseudoHeader(addrs[:size], addrs[size:2*size], len(udp))
	if unfinished {
		if got, want := binary.BigEndian.Uint16(udp[6:]), onesSum(pseudo); got != want {
			return fmt.Errorf("the checksum is %x, want the pseudo header's sum %x", got, want)
		}
		return nil
	}
	if sum := onesSum(append(pseudo, udp...)); sum != 0xffff || binary.BigEndian.Uint16(udp[6:]) == 0 {
		return fmt.Errorf("the datagram's sum is %x", sum)
	}
	return nil
}
