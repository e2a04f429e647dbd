// Package socket opens listening sockets, sets their options, and duplicates their descriptors. It explains what an
// operator can do about an address that can't be bound.
package socket

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/tentative"
)

// udpBufferSize is requested for both directions of a UDP socket. A node's pods can send
// some thousand queries in the milliseconds in which the reader is not scheduled, and each
// is accounted with about 1 KiB.
const udpBufferSize = 4 << 20

// OpenUDP opens a UDP socket bound to addr and returns its descriptor. The port can be
// shared with other sockets of this process or of another agent. On an error no socket is
// held.
func OpenUDP(addr netip.AddrPort) (fd int, err error) {
	family, to, err := sockaddr(addr)
	if err != nil {
		return -1, err
	}
	fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, ExplainBindError(os.NewSyscallError("socket", err), addr)
	}
	if err = SetUDPOptions(fd, addr.Addr()); err == nil {
		err = SetReuseport(fd, addr.Addr())
	}
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, to))
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, ExplainBindError(err, addr)
	}
	return fd, nil
}

// DialUDP opens a non-blocking UDP socket that is connected to an address, and bound to a port of the local address from, which the
// kernel chooses; from may be invalid. It returns the descriptor and the address of the socket. On an error no socket is held.
func DialUDP(from netip.Addr, to netip.AddrPort) (fd int, local netip.AddrPort, err error) {
	family, remote, err := sockaddr(to)
	if err != nil {
		return -1, local, err
	}
	if fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return -1, local, os.NewSyscallError("socket", err)
	}
	if from.IsValid() {
		err = bind(fd, netip.AddrPortFrom(from, 0))
	}
	if err == nil {
		err = os.NewSyscallError("connect", unix.Connect(fd, remote))
	}
	if err == nil {
		local, err = localAddr(fd)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, local, err
	}
	return fd, local, nil
}

// bind binds a socket to addr.
func bind(fd int, addr netip.AddrPort) error {
	_, sa, err := sockaddr(addr)
	if err != nil {
		return err
	}
	return os.NewSyscallError("bind", unix.Bind(fd, sa))
}

// localAddr returns the address of an IP socket.
func localAddr(fd int) (netip.AddrPort, error) {
	name, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, os.NewSyscallError("getsockname", err)
	}
	switch sa := name.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)), nil
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port)), nil
	}
	return netip.AddrPort{}, fmt.Errorf("a socket of the type %T", name)
}

// OpenReply opens a socket for sending a reply from addr after its listening socket
// is closed, without taking packets from other sockets at that address.
//
// The kernel removes a closing socket first from its reuseport group and only then from
// its list of sockets. A packet that arrives between the two goes to the best match in the
// list, the first of equals, and would be lost if that were the reply socket. IPv4 sockets
// are added at the head of the list, IPv6 sockets at its end. An IPv6 socket bound to an
// IPv4-mapped address is a worse match than any IPv4 socket and has a group of its own, so
// it is used for IPv4, too (udp_lib_get_port and compute_score in net/ipv4/udp.c).
func OpenReply(addr netip.AddrPort) (fd int, err error) {
	if a := addr.Addr(); a.Is4() {
		if fd, err = OpenUDP(netip.AddrPortFrom(netip.AddrFrom16(a.As16()), addr.Port())); err == nil {
			return fd, nil
		}
		// The machine has no IPv6.
	}
	return OpenUDP(addr)
}

// SetUDPOptions sets the options that can be changed on a bound socket.
func SetUDPOptions(fd int, addr netip.Addr) error {
	if addr.IsUnspecified() {
		if err := enablePktinfo(fd, addr.Is4()); err != nil {
			return err
		}
	}
	// Best effort: without the privilege to exceed the kernel's maximum, the socket
	// gets that maximum.
	for _, opt := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt[0], udpBufferSize) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt[1], udpBufferSize)
		}
	}
	return nil
}

// sockaddr returns the address family of addr and addr in the form for system calls.
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

// BindAddr returns the address to bind sockets for addr to: addr, but all IPv4 addresses in place of all addresses of
// both families on a machine whose kernel has no IPv6 (ipv6.disable=1).
func BindAddr(addr netip.AddrPort) netip.AddrPort {
	if addr.Addr() != netip.IPv6Unspecified() {
		return addr
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), addr.Port())
	}
	if err == nil {
		_ = unix.Close(fd)
	}
	return addr
}

// Network returns package net's name for a transport and the family of addr. The
// unspecified IPv6 address stands for both families.
func Network(transport string, addr netip.Addr) string {
	switch {
	case addr.Is4():
		return transport + "4"
	case addr.IsUnspecified():
		return transport
	default:
		return transport + "6"
	}
}

// Control calls set with the descriptor of c and returns set's error.
func Control(c syscall.RawConn, set func(fd int) error) error {
	var failed error
	if err := c.Control(func(fd uintptr) { failed = set(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// Acknowledge acknowledges at once what has arrived on a TCP connection, and for a while what comes next (TCP_QUICKACK, tcp(7)).
// It has no error: without it, what the other side sends next may come later.
func Acknowledge(fd int) { _ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) }

// SetReuseport sets SO_REUSEPORT. On IPv6 sockets it also sets whether they accept IPv4.
func SetReuseport(fd int, addr netip.Addr) error {
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

// enablePktinfo makes the kernel pass the destination address of each packet.
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

// ExplainBindError adds to an error of bind(2) what the operator can do about it.
func ExplainBindError(err error, addr netip.AddrPort) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w: another program listens there; stop it, or choose another address (--localip, bind) or port (--dns.port)", err)
	case errors.Is(err, syscall.EAFNOSUPPORT):
		return fmt.Errorf("%w: the kernel has no IPv6 (ipv6.disable=1); take %s out of --localip or bind", err, addr.Addr())
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		if problem := tentative.Of(addr.Addr()).Problem(); problem != "" {
			return fmt.Errorf("%w: %s: %s", err, addr.Addr(), problem)
		}
		return fmt.Errorf("%w: no interface has %s; leave --setupinterface on, or add the address yourself", err, addr.Addr())
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%w: ports below 1024 need NET_BIND_SERVICE; grant it, or choose another port (--dns.port)", err)
	default:
		return err
	}
}

// Duplicate returns another descriptor of c's socket, which the caller closes. Unlike the
// File methods of package net, its file never changes the mode of the socket: a listener
// that [os.File.Fd] has made blocking would keep other processes that accept from it from
// ending.
func Duplicate(c syscall.Conn) (f *os.File, err error) {
	failed := WithFD(c, func(fd int) error {
		f, err = DuplicateFD(fd, "socket")
		return err
	})
	return f, failed
}

func DuplicateFD(fd int, name string) (*os.File, error) {
	other, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(other), name), nil
}

// randomOffset is where a classic BPF program loads a random number
// (SKF_AD_OFF + SKF_AD_RANDOM in linux/filter.h).
const randomOffset = ^uint32(0x1000-56) + 1

// Distribute makes the kernel distribute what arrives at the address of fd, a socket with SO_REUSEPORT, at random over n of its
// sockets. These come behind the first before ones, in the order in which they were bound or, over TCP, began to listen. A socket that
// does not exist any more stands for a choice by the kernel's hash.
func Distribute(fd, before, n int) error {
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: randomOffset},
		{Code: unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K, K: uint32(n)},
		{Code: unix.BPF_ALU | unix.BPF_ADD | unix.BPF_K, K: uint32(before)},
		{Code: unix.BPF_RET | unix.BPF_A},
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

// WithFD calls use with c's descriptor and does not change the socket's mode.
func WithFD(c syscall.Conn, use func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return Control(raw, use)
}
