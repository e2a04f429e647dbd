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

// Handle is a listening socket of a server, as another process may take it over.
type Handle struct {
	Addr netip.AddrPort
	// UDP tells the UDP sockets of an address from its TCP listener.
	UDP bool
	// File is the socket; whoever gets it closes it.
	File *os.File
}

// Handles gives duplicates of all sockets that s listens with, those of an address in
// the order in which they were bound. The caller closes them. On an error none is open.
//
// What is shared is the socket with all its settings: whether it waits, its options,
// its queue. So nobody may shut it down, and [os.File.Fd] of a file that package net
// has made, which makes a socket wait, is not to be called. These files leave it alone.
func (s *Server) Handles() ([]Handle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Handle
	add := func(addr netip.AddrPort, udp bool, file func() (*os.File, error)) error {
		f, err := file()
		if err == nil {
			all = append(all, Handle{Addr: addr, UDP: udp, File: f})
		}
		return err
	}
	for addr, l := range s.listeners {
		err := add(addr, false, func() (*os.File, error) { return Duplicate(l.tcp.TCPListener) })
		for _, p := range l.udp {
			if err == nil {
				err = add(addr, true, p.file)
			}
		}
		if err != nil {
			for _, h := range all {
				_ = h.File.Close()
			}
			return nil, err
		}
	}
	return all, nil
}

// Adopt makes the next [Server.Listen] take these sockets for their addresses instead
// of binding new ones. Those it has no use for it closes. The files are the server's
// from here on.
func (s *Server) Adopt(handles []Handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.legacy == nil {
		s.legacy = make(legacy)
	}
	for _, h := range handles {
		k := seat{h.Addr, h.UDP}
		s.legacy[k] = append(s.legacy[k], h.File)
	}
}

// Admit serves a connection that another process has passed on, of which read was read
// already. It is false if nobody listens at that address, or the limits are reached; the
// connection is closed then.
func (s *Server) Admit(at netip.AddrPort, conn *net.TCPConn, read []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.listeners[at]
	if l == nil || s.away.Load() != nil || len(read) > framing+wire.MaxMessage {
		_ = conn.Close()
		return false
	}
	v, err := s.receive(l, conn, 0)
	if err != nil {
		_ = conn.Close()
		return false
	}
	if c, ok := v.(*stream); ok && len(read) > 0 {
		c.in = make([]byte, max(inboxSize, min(2*len(read), framing+wire.MaxMessage+1)))
		c.had, c.handed = copy(c.in, read), true
	}
	return s.welcome(l, v, conn)
}

// seat is what a socket is for.
type seat struct {
	addr netip.AddrPort
	udp  bool
}

// legacy are sockets that another process has handed down and nobody has taken yet. A
// nil legacy is none.
type legacy map[seat][]*os.File

// take gives the next socket that is fit for k; nil if there is none. The caller closes
// it.
func (l legacy) take(k seat) *os.File {
	for len(l[k]) > 0 {
		f := l[k][0]
		l[k] = l[k][1:]
		if k.fits(f) {
			return f
		}
		_ = f.Close()
	}
	return nil
}

// takeUDP is take for a UDP socket, of which it gives a descriptor; -1 is none.
func (l legacy) takeUDP(addr netip.AddrPort) (fd int, err error) {
	f := l.take(seat{addr, true})
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
		err = prepareUDP(fd, addr.Addr())
	}
	if err != nil && fd >= 0 {
		_ = unix.Close(fd)
		fd = -1
	}
	return fd, err
}

// takeTCP is take for a TCP listener; nil is none.
func (l legacy) takeTCP(addr netip.AddrPort) (*net.TCPListener, error) {
	f := l.take(seat{addr, false})
	if f == nil {
		return nil, nil
	}
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	_ = withFD(f, func(fd int) error {
		prepareTCP(fd)
		return nil
	})
	return ln.(*net.TCPListener), nil
}

// close closes what nobody has taken.
func (l legacy) close() {
	for _, files := range l {
		for _, f := range files {
			_ = f.Close()
		}
	}
}

// fits reports whether f is a socket for k. Who hands sockets down has the same rights
// as this process, but may be of another version.
func (k seat) fits(f *os.File) bool {
	kind, listens := unix.SOCK_STREAM, 1
	if k.udp {
		kind, listens = unix.SOCK_DGRAM, 0
	}
	return withFD(f, func(fd int) error {
		for option, want := range map[int]int{unix.SO_TYPE: kind, unix.SO_ACCEPTCONN: listens} {
			if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option); err != nil || got != want {
				return errUnfit
			}
		}
		at, err := unix.Getsockname(fd)
		if err != nil || !k.at(at) {
			return errUnfit
		}
		return nil
	}) == nil
}

var errUnfit = errors.New("not the socket that it is said to be")

// at reports whether sa is k's address. A zone is known by its name here and by its
// number there, and is left out.
func (k seat) at(sa unix.Sockaddr) bool {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return k.addr == netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return k.addr.Port() == uint16(sa.Port) && k.addr.Addr().WithZone("") == netip.AddrFrom16(sa.Addr)
	default:
		return false
	}
}

// Duplicate gives another descriptor of c's socket, which the caller closes. Unlike the
// File methods of package net it gives one that leaves the socket as it is, whatever is
// asked of it: a listener that waits because of [os.File.Fd] would keep whoever else
// accepts from it from ending.
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

// withFD calls use with c's descriptor, and leaves the socket as it is.
func withFD(c syscall.Conn, use func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return control(raw, use)
}
