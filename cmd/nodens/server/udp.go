package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// maxUDPQuery is the longest query read from UDP. A question and its OPT take
	// 300 bytes; cookies, client subnets and padding stay far below this. What is
	// longer is cut, and so malformed.
	maxUDPQuery = 4096
	// replyBuffer is where reply buffers start. Nearly all replies stay below
	// 1,232 bytes, what fits into one packet everywhere (DNS flag day 2020).
	replyBuffer = 2048
	// socketBuffer is asked for in both directions: a node's pods may send some
	// thousand queries within the milliseconds that the reader isn't scheduled,
	// and each takes about a KiB of the kernel's accounting.
	socketBuffer = 4 << 20
)

// udpSocket is one of the sockets that share an address.
type udpSocket struct {
	conn *net.UDPConn
	// wildcard sockets learn from the kernel which address was asked, so that
	// the reply comes from it.
	wildcard bool
}

// listenUDP opens one socket on addr, which others of this process, or of an
// agent that takes over, may share.
func listenUDP(addr netip.AddrPort) (udpSocket, error) {
	sock := udpSocket{wildcard: addr.Addr().IsUnspecified()}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return control(c, func(fd int) error {
			if sock.wildcard {
				if err := askDestination(fd, addr.Addr().Is4()); err != nil {
					return err
				}
			}
			return sharePort(fd, addr.Addr())
		})
	}}
	conn, err := lc.ListenPacket(context.Background(), network("udp", addr.Addr()), addr.String())
	if err != nil {
		return sock, explain(err, addr)
	}
	sock.conn = conn.(*net.UDPConn)
	// Both are wishes: the kernel cuts them to its own maximum.
	_ = sock.conn.SetReadBuffer(socketBuffer)
	_ = sock.conn.SetWriteBuffer(socketBuffer)
	return sock, nil
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

func sharePort(fd int, addr netip.Addr) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return fmt.Errorf("setting SO_REUSEPORT: %w", err)
	}
	if addr.Is6() && addr.IsUnspecified() {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0); err != nil {
			return fmt.Errorf("clearing IPV6_V6ONLY: %w", err)
		}
	}
	return nil
}

// askDestination makes the kernel hand over the address each packet was sent to.
func askDestination(fd int, is4 bool) error {
	err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	if err == nil && !is4 {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	}
	if err != nil {
		return fmt.Errorf("setting IP_PKTINFO: %w", err)
	}
	return nil
}

// explain says what to do about the errors of bind(2) that operators meet.
func explain(err error, addr netip.AddrPort) error {
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

func (u udpSocket) close() { _ = u.conn.Close() }

// datagram is one UDP query: its exchange, its buffers, and where it came from.
type datagram struct {
	exchange
	in  [maxUDPQuery]byte
	out []byte
	// oob is the control message that a wildcard socket read; sent with the
	// reply, it makes the asked address the source.
	oob  [unix.SizeofCmsghdr + unix.SizeofInet6Pktinfo + 16]byte
	oobn int
}

// waitingDatagrams keeps datagrams that waited, for the next that have to.
var waitingDatagrams = sync.Pool{New: func() any { return &datagram{out: make([]byte, 0, replyBuffer)} }}

// read takes the next packet from u.
func (d *datagram) read(u udpSocket) error {
	var n int
	var err error
	if u.wildcard {
		n, d.oobn, _, d.client, err = u.conn.ReadMsgUDPAddrPort(d.in[:], d.oob[:])
	} else {
		n, d.client, err = u.conn.ReadFromUDPAddrPort(d.in[:])
	}
	if err != nil {
		return err
	}
	d.q.Packet = d.in[:n]
	return nil
}

// write sends msg to where d came from. A reply that can't be sent is lost, as
// any datagram may be; the client asks again.
func (d *datagram) write(u udpSocket, msg []byte) {
	if u.wildcard {
		_, _, _ = u.conn.WriteMsgUDPAddrPort(msg, d.oob[:d.oobn], d.client)
		return
	}
	_, _ = u.conn.WriteToUDPAddrPort(msg, d.client)
}

// readUDP answers what comes in on one socket until it is closed.
func (s *Server) readUDP(l *listener, sock udpSocket) {
	d := &datagram{out: make([]byte, 0, replyBuffer)}
	d.via = udp
	for {
		if err := d.read(sock); err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue // an ICMP error of an earlier reply; the socket is fine
		}
		rt := l.routes.Load()
		msg, at := s.serve(rt, &d.exchange, d.out, (*wire.Query).Limit)
		switch {
		case at == done && msg != nil:
			d.write(sock, msg)
			d.keep(msg)
		case at == done:
		case s.acquire():
			s.detach(rt, sock, d, at)
		default:
			d.write(sock, s.full(&d.exchange, d.q.Limit()))
		}
	}
}

// keep takes over the buffer that msg was written to, if it grew by little; a
// rare long reply does not stay in memory.
func (d *datagram) keep(msg []byte) {
	if cap(msg) <= 8*replyBuffer {
		d.out = msg[:0]
	}
}

// detach copies d and completes the copy in a goroutine of its own.
func (s *Server) detach(rt *Routes, sock udpSocket, d *datagram, at step) {
	w := waitingDatagrams.Get().(*datagram)
	d.exchange.detach(&w.exchange, w.in[:], w.out)
	w.oobn = copy(w.oob[:], d.oob[:d.oobn])
	s.running.Go(func() {
		defer s.release()
		if msg := s.wait(rt, &w.exchange, at, w.q.Limit()); msg != nil {
			w.write(sock, msg)
			w.keep(msg)
		}
		waitingDatagrams.Put(w)
	})
}
