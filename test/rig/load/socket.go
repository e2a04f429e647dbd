package load

import (
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls below are raw: the scheduler is not told of them, which would cost
// more than most of them do. That is right only because no descriptor here
// blocks.

// address is an IPv4 address and port in the kernel's form.
type address = unix.RawSockaddrInet4

// receiveBuffer is the size in bytes of the receive buffer of a socket that gets all answers: it keeps what arrives while the
// loop has lost its core.
const receiveBuffer = 4 << 20

// open opens a UDP socket that does not block, at the first address if it is valid, connected to the second if that
// is, and otherwise on 127.0.0.1; the caller closes it. The kernel may grant less than the receive buffer.
func open(from netip.Addr, to netip.AddrPort, buffer int) (int, error) {
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("opening a socket: %w", err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buffer)
	if !to.IsValid() {
		from = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	if from.IsValid() {
		err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(from, 0)))
	}
	if err == nil && to.IsValid() {
		err = unix.Connect(fd, sockaddr(to))
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("opening a socket: %w", err)
	}
	return fd, nil
}

func sockaddr(at netip.AddrPort) unix.Sockaddr {
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
}

// openStream opens a TCP socket that does not block, at the address if it is valid. The caller closes it.
func openStream(from netip.Addr) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err == nil && from.IsValid() {
		err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(from, 0)))
	}
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return -1, fmt.Errorf("opening a socket: %w", err)
	}
	return fd, nil
}

// connect begins a connection to the address. A nil address ends the socket's connection by a reset, after
// which the socket can be connected again.
func connect(fd int, to *address) unix.Errno {
	if to == nil {
		to = &address{Family: unix.AF_UNSPEC}
	}
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(to)), unix.SizeofSockaddrInet4)
	return errno
}

// receive reads one datagram into buf, which may not be empty. From is filled in
// if it is not nil.
func receive(fd int, buf []byte, from *address) (int, unix.Errno) {
	size := uint32(unix.SizeofSockaddrInet4)
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0,
		uintptr(unsafe.Pointer(from)), uintptr(unsafe.Pointer(&size)))
	return int(n), errno
}

// stamp has the kernel note when a datagram arrives at the socket, or not.
func stamp(fd int, on bool) error {
	value := 0
	if on {
		value = 1
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, value)
}

// stampMessage is the control message that says when a datagram arrived.
type stampMessage struct {
	unix.Cmsghdr
	at unix.Timespec
}

// receiveStamped is receive, of either family if from is nil, and also returns when the datagram arrived, as Unix time. It is the present time if the kernel
// has not noted it.
func receiveStamped(fd int, buf []byte, from *address) (int, time.Duration, unix.Errno) {
	var control stampMessage
	iov := unix.Iovec{Base: &buf[0]}
	iov.SetLen(len(buf))
	msg := unix.Msghdr{Name: (*byte)(unsafe.Pointer(from)), Namelen: unix.SizeofSockaddrInet4, Iov: &iov, Control: (*byte)(unsafe.Pointer(&control))}
	msg.SetIovlen(1)
	msg.SetControllen(int(unsafe.Sizeof(control)))
	n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), 0)
	at := time.Duration(time.Now().UnixNano())
	if errno == 0 && control.Level == unix.SOL_SOCKET && control.Type == unix.SCM_TIMESTAMPNS {
		at = time.Duration(control.at.Nano())
	}
	return int(n), at, errno
}

// send sends one datagram, which may not be empty. To is nil on a connected socket.
func send(fd int, buf []byte, to *address) unix.Errno {
	size := uintptr(0)
	if to != nil {
		size = unix.SizeofSockaddrInet4
	}
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0,
		uintptr(unsafe.Pointer(to)), size)
	return errno
}

// look asks which descriptors have something to read, and does not wait.
func look(epoll int, events []unix.EpollEvent) int {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0 // a signal came
	}
	return int(n)
}

// watch adds a descriptor to those that look asks about.
func watch(epoll, fd int) error {
	return unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

// clock is the time since the loop was opened.
type clock struct{ epoch time.Time }

func (c clock) now() time.Duration { return time.Since(c.epoch) }
