package server

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/wire"
)

// SocketFile is a listening socket that one process hands to another.
type SocketFile struct {
	Addr netip.AddrPort
	// UDP tells an address's UDP sockets from its TCP listener.
	UDP bool
	// File is a duplicate of the socket. Its receiver closes it.
	File *os.File
}

// SocketFiles returns duplicates of all sockets that s listens on, those of an address in
// the order in which they were bound. The caller closes them. On an error it holds none.
//
// A duplicate shares the socket with its mode, options and queue. So no process may shut
// the socket down, nor call [os.File.Fd] on a file made by package net, which makes the
// socket blocking. Calling it on these files is safe.
func (s *Server) SocketFiles() ([]SocketFile, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []SocketFile
	add := func(addr netip.AddrPort, udp bool, file func() (*os.File, error)) error {
		f, err := file()
		if err == nil {
			all = append(all, SocketFile{Addr: addr, UDP: udp, File: f})
		}
		return err
	}
	for _, l := range s.listeners {
		err := l.eachSocket(func(udp bool, file func() (*os.File, error)) error { return add(l.bound, udp, file) })
		if err != nil {
			for _, h := range all {
				_ = h.File.Close()
			}
			return nil, err
		}
	}
	return all, nil
}

// eachSocket calls add with a function that duplicates it for each of l's sockets, until an error.
func (l *listener) eachSocket(add func(udp bool, file func() (*os.File, error)) error) error {
	if l.quic != nil {
		return add(true, func() (*os.File, error) { return Duplicate(l.quic.socket) })
	}
	err := add(false, func() (*os.File, error) { return Duplicate(l.tcp.TCPListener) })
	for _, p := range l.udp {
		if err == nil {
			err = add(true, p.duplicate)
		}
	}
	return err
}

// SetInherited makes the next [Server.Listen] use these sockets instead of binding new
// ones for their addresses. Listen closes those that it does not need. The server takes
// over the files.
func (s *Server) SetInherited(handles []SocketFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inherited == nil {
		s.inherited = make(inheritedSockets)
	}
	for _, h := range handles {
		k := socketKey{h.Addr, h.UDP}
		s.inherited[k] = append(s.inherited[k], h.File)
	}
}

// AdoptConn serves a connection that another process has transferred. read is what that
// process has read of an incomplete message. AdoptConn takes over conn. It returns false,
// with conn closed, if the server does not listen at that address, is suspended, or has
// reached its limits.
func (s *Server) AdoptConn(at netip.AddrPort, conn *net.TCPConn, read []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.listeners[ListenAddr{AddrPort: at}]
	if l == nil || s.suspended.Load() != nil || len(read) > lengthPrefix+wire.MaxMessage {
		_ = conn.Close()
		return false
	}
	v, err := l.newConn(conn, 0)
	if err != nil {
		_ = conn.Close()
		return false
	}
	if c, ok := v.(*tcpConn); ok && len(read) > 0 {
		c.readBuf = make([]byte, max(readBufSize, min(2*len(read), lengthPrefix+wire.MaxMessage+1)))
		c.buffered, c.adopted = copy(c.readBuf, read), true
	}
	return l.serveConn(v, conn)
}

// socketKey is the purpose of a socket.
type socketKey struct {
	addr netip.AddrPort
	udp  bool
}

// inheritedSockets are sockets from another process that no listener has taken yet. The
// nil map is empty.
type inheritedSockets map[socketKey][]*os.File

// take returns the next socket that matches k; nil if there is none. The caller closes it.
func (l inheritedSockets) take(k socketKey) *os.File {
	for len(l[k]) > 0 {
		f := l[k][0]
		l[k] = l[k][1:]
		if k.matches(f) {
			return f
		}
		_ = f.Close()
	}
	return nil
}

// takeUDP returns the descriptor of the next UDP socket for addr; -1 if there is none.
func (l inheritedSockets) takeUDP(addr netip.AddrPort) (fd int, err error) {
	f := l.take(socketKey{addr, true})
	if f == nil {
		return -1, nil
	}
	defer f.Close()
	fd = -1
	err = withFD(f, func(old int) error {
		fd, err = unix.FcntlInt(uintptr(old), unix.F_DUPFD_CLOEXEC, 0)
		return os.NewSyscallError("fcntl", err)
	})
	if err == nil {
		err = setUDPOptions(fd, addr.Addr())
	}
	if err != nil && fd >= 0 {
		_ = unix.Close(fd)
		fd = -1
	}
	return fd, err
}

// takeTCP returns the TCP listener for addr; nil if there is none.
func (l inheritedSockets) takeTCP(addr netip.AddrPort) (*net.TCPListener, error) {
	f := l.take(socketKey{addr, false})
	if f == nil {
		return nil, nil
	}
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	_ = withFD(f, func(fd int) error {
		setTCPBuffers(fd)
		return nil
	})
	return ln.(*net.TCPListener), nil
}

// close closes all sockets that no listener has taken.
func (l inheritedSockets) close() {
	for _, files := range l {
		for _, f := range files {
			_ = f.Close()
		}
	}
}

// matches reports whether f is a socket for k. The sender has the same privileges as this
// process but may be of another version.
func (k socketKey) matches(f *os.File) bool {
	kind, listens := unix.SOCK_STREAM, 1
	if k.udp {
		kind, listens = unix.SOCK_DGRAM, 0
	}
	return withFD(f, func(fd int) error {
		for option, want := range map[int]int{unix.SO_TYPE: kind, unix.SO_ACCEPTCONN: listens} {
			if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option); err != nil || got != want {
				return errMismatch
			}
		}
		at, err := unix.Getsockname(fd)
		if err != nil || !k.hasAddr(at) {
			return errMismatch
		}
		return nil
	}) == nil
}

var errMismatch = errors.New("the inherited socket does not match its description")

// hasAddr reports whether sa is k's address. Zones are ignored: k has the zone's name, sa
// its number.
func (k socketKey) hasAddr(sa unix.Sockaddr) bool {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return k.addr == netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return k.addr.Port() == uint16(sa.Port) && k.addr.Addr().WithZone("") == netip.AddrFrom16(sa.Addr)
	default:
		return false
	}
}

// Duplicate returns another descriptor of c's socket, which the caller closes. Unlike the
// File methods of package net, its file never changes the mode of the socket: a listener
// that [os.File.Fd] has made blocking would keep other processes that accept from it from
// ending.
func Duplicate(c syscall.Conn) (f *os.File, err error) {
	failed := withFD(c, func(fd int) error {
		f, err = duplicateFD(fd, "socket")
		return err
	})
	return f, failed
}

func duplicateFD(fd int, name string) (*os.File, error) {
	other, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(other), name), nil
}

// withFD calls use with c's descriptor and does not change the socket's mode.
func withFD(c syscall.Conn, use func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return control(raw, use)
}
