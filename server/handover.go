package server

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/socket"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/udp"
)

// drain is the state of one [Server.Suspend], until the [Server.Resume] that ends it.
type drain struct {
	mu sync.Mutex
	// transfer passes a connection on. It is nil once it has failed or Suspend has
	// returned.
	transfer func(at netip.AddrPort, conn *net.TCPConn, read []byte) error
}

// transferConn passes c on, one connection at a time. It returns false if c stays here.
func (d *drain) transferConn(c *tcpConn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.transfer == nil {
		return false
	}
	if err := d.transfer(c.l.addr.AddrPort, c.conn, c.readBuf[:c.buffered]); err != nil {
		d.transfer = nil
		return false
	}
	return true
}

// stop ends the passing on of connections.
func (d *drain) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.transfer = nil
}

// errSuspended is returned by methods that are not allowed between Suspend and Resume.
var errSuspended = errors.New("the server is suspended: its sockets are handed over to another process")

// drainPollInterval is how often Suspend checks whether everything has ended. It happens
// once in the life of an agent.
const drainPollInterval = time.Millisecond

// drainGrace is how long connections with pending queries are still read from if they do
// not become idle by themselves. Nearly all queries take less.
const drainGrace = time.Second

// Suspend stops reading and accepting while another process reads from the same sockets,
// which stay open here. It then drains the connections:
//
//   - Connections over plain TCP are passed to transfer when they become idle, one at a
//     time and together with the part of a message that has been read. transfer must not
//     keep conn, but may duplicate its descriptor. After an error of transfer the
//     remaining connections are served here.
//   - Connections over TLS, HTTPS and QUIC end as they do in [Server.Shutdown]. Queries in flight are
//     answered first.
//
// Suspend returns nil when there is no connection and no pending query left, or ctx's
// error when ctx ends. In both cases reading has stopped and transfer is not called any
// more; what is left is served until Shutdown.
func (s *Server) Suspend(ctx context.Context, transfer func(at netip.AddrPort, conn *net.TCPConn, read []byte) error) error {
	d := &drain{transfer: transfer}
	leaving, err := s.stopReaders(d)
	if err != nil {
		return err
	}
	defer d.stop()
	tick := time.NewTicker(drainPollInterval)
	defer tick.Stop()
	// Readers and acceptors end within recvTimeout of package udp, so this wait ignores ctx. Resume
	// relies on their having ended.
	for !all(leaving, (*listener).stopped) {
		<-tick.C
	}
	for _, l := range leaving {
		l.drain()
	}
	return s.waitDrained(ctx, leaving, tick.C)
}

// waitDrained blocks until no query is pending and no connection is left, or ctx ends. It
// checks at each tick.
func (s *Server) waitDrained(ctx context.Context, leaving []*listener, tick <-chan time.Time) error {
	late := time.NewTimer(drainGrace)
	defer late.Stop()
	for !s.waiting.Idle() || !all(leaving, (*listener).hasNoConns) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-late.C:
			for _, l := range leaving {
				if l.isPlainDNS() {
					l.tcp.transferConns(true)
				}
			}
		case <-tick:
		}
	}
	return nil
}

// stopReaders tells all readers and acceptors to end and returns their listeners.
func (s *Server) stopReaders(d *drain) ([]*listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.suspended.CompareAndSwap(nil, d) {
		return nil, errSuspended
	}
	s.kernelPath.disable()
	var leaving []*listener
	for _, l := range s.listeners {
		leaving = append(leaving, l)
		for _, p := range l.udp {
			p.Suspend()
		}
		if l.tcp != nil {
			_ = l.tcp.SetDeadline(past)
		}
	}
	return leaving, nil
}

// Resume undoes [Server.Suspend], which must have returned: the server reads and accepts
// again. Connections that were passed on are gone.
func (s *Server) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.suspended.Swap(nil) == nil {
		return
	}
	for _, l := range s.listeners {
		if l.quic != nil {
			close(l.quic.hurry)
			l.quic.shutdown()
			l.quic = newQUICListener(l, l.quic.socket)
			l.start()
			continue
		}
		if l.https != nil {
			l.https = newHTTPSServer(l) // an http.Server cannot be restarted
		}
		_ = l.tcp.SetDeadline(time.Time{})
		for _, p := range l.udp {
			p.Resume()
		}
		udp.Balance(l.udp, l.before)
		l.start()
	}
	s.kernelPath.enable(s.listeners)
}

func all(listeners []*listener, holds func(*listener) bool) bool {
	for _, l := range listeners {
		if !holds(l) {
			return false
		}
	}
	return true
}

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
	err = socket.WithFD(f, func(old int) error {
		fd, err = unix.FcntlInt(uintptr(old), unix.F_DUPFD_CLOEXEC, 0)
		return os.NewSyscallError("fcntl", err)
	})
	if err == nil {
		err = socket.SetUDPOptions(fd, addr.Addr())
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
	_ = socket.WithFD(f, func(fd int) error {
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
	return socket.WithFD(f, func(fd int) error {
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
