package server

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// udpBufferSize is asked for in both directions: a node's pods may send some
// thousand queries within the milliseconds that the reader isn't scheduled, and
// each takes about a KiB of the kernel's accounting.
const udpBufferSize = 4 << 20

// openUDP opens a socket that is bound to addr, which others of this process, or
// of an agent that takes over, may share.
func openUDP(addr netip.AddrPort) (fd int, err error) {
	family, to, err := sockaddr(addr)
	if err != nil {
		return -1, err
	}
	fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err = setUDPOptions(fd, addr.Addr()); err == nil {
		err = setReuseport(fd, addr.Addr())
	}
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, to))
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, explainBindError(err, addr)
	}
	return fd, nil
}

// openReplySocket opens a socket to send from addr when its port is closed and others may read
// there, whom that must not cost a packet. The kernel takes a socket that is closed out of
// its group first and off its list of sockets only then: what comes between the two goes to
// the best of that list, the first one if they are equally good, and is lost with it. IPv4's
// sockets join the list in front, IPv6's behind; and one of IPv6 that is bound to an address
// of IPv4 is worse than any of IPv4, and in a group of its own (udp_lib_get_port and
// compute_score in net/ipv4/udp.c).
func openReplySocket(addr netip.AddrPort) (fd int, err error) {
	if a := addr.Addr(); a.Is4() {
		if fd, err = openUDP(netip.AddrPortFrom(netip.AddrFrom16(a.As16()), addr.Port())); err == nil {
			return fd, nil
		}
		// A machine without IPv6.
	}
	return openUDP(addr)
}

// setUDPOptions sets what can be set at any time.
func setUDPOptions(fd int, addr netip.Addr) error {
	if addr.IsUnspecified() {
		if err := enablePktinfo(fd, addr.Is4()); err != nil {
			return err
		}
	}
	// Wishes: where the process may not go over the kernel's own maximum it gets
	// that.
	for _, opt := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt[0], udpBufferSize) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt[1], udpBufferSize)
		}
	}
	return nil
}

// sockaddr is addr as system calls take it, and its family.
func sockaddr(addr netip.AddrPort) (family int, sa unix.Sockaddr, err error) {
	a := addr.Addr()
	if a.Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: a.As4()}, nil
	}
	sa6 := &unix.SockaddrInet6{Port: int(addr.Port()), Addr: a.As16()}
	if zone := a.Zone(); zone != "" {
		link, err := net.InterfaceByName(zone)
		if err != nil {
			return 0, nil, fmt.Errorf("looking up the interface of %s: %w", a, err)
		}
		sa6.ZoneId = uint32(link.Index)
	}
	return unix.AF_INET6, sa6, nil
}

// network is net's name for a transport and the family of addr. The unspecified
// IPv6 address stands for both families.
func network(transport string, addr netip.Addr) string {
	switch {
	case addr.Is4():
		return transport + "4"
	case addr.IsUnspecified():
		return transport
	default:
		return transport + "6"
	}
}

func control(c syscall.RawConn, set func(fd int) error) error {
	var failed error
	if err := c.Control(func(fd uintptr) { failed = set(int(fd)) }); err != nil {
		return err
	}
	return failed
}

func setReuseport(fd int, addr netip.Addr) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return fmt.Errorf("setting SO_REUSEPORT: %w", err)
	}
	if addr.Is6() {
		only := 1
		if addr.IsUnspecified() || addr.Is4In6() {
			only = 0
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only); err != nil {
			return fmt.Errorf("setting IPV6_V6ONLY to %d: %w", only, err)
		}
	}
	return nil
}

// enablePktinfo makes the kernel hand over the address each packet was sent to.
func enablePktinfo(fd int, is4 bool) error {
	err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	if err == nil && !is4 {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	}
	if err != nil {
		return fmt.Errorf("setting IP_PKTINFO: %w", err)
	}
	return nil
}

// explainBindError says what to do about the errors of bind(2) that operators meet.
func explainBindError(err error, addr netip.AddrPort) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w: another program listens there; stop it, or choose another address (-localip, bind) or port (-dns.port)", err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%w: no interface has %s; leave -setupinterface on, or add the address yourself", err, addr.Addr())
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%w: ports below 1024 need NET_BIND_SERVICE; grant it, or choose another port (-dns.port)", err)
	default:
		return err
	}
}

// openUDPSockets opens every UDP socket of addr, or none. Those that were handed down come
// first, all of them: a queue that nobody reads is lost packets. Their order is the one
// in which the kernel counts them (reuseport.go).
func openUDPSockets(addr netip.AddrPort, limits Limits, legacy inheritedSockets) ([]udpSocket, error) {
	ports := make([]udpSocket, 0, limits.Readers)
	for {
		fd, err := legacy.takeUDP(addr)
		var p udpSocket
		switch {
		case err != nil:
		case fd >= 0:
			p, err = newUDPSocket(fd, addr, limits)
		case len(ports) < limits.Readers:
			p, err = openUDPSocket(addr, limits)
		default:
			balance(ports)
			return ports, nil
		}
		if err != nil {
			closeAll(ports)
			return nil, err
		}
		ports = append(ports, p)
	}
}

func openUDPSocket(addr netip.AddrPort, limits Limits) (udpSocket, error) {
	fd, err := openUDP(addr)
	if err != nil {
		return nil, err
	}
	return newUDPSocket(fd, addr, limits)
}

// newUDPSocket makes a port of a socket that is bound to addr, and has the descriptor from
// here on.
func newUDPSocket(fd int, addr netip.AddrPort, limits Limits) (udpSocket, error) {
	if limits.Poller {
		return newPolledSocket(fd, addr)
	}
	return newBlockingSocket(fd, addr, limits.noMmsg)
}

func closeAll(ports []udpSocket) {
	for _, p := range ports {
		p.close()
	}
}
