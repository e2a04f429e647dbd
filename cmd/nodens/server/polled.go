package server

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// polled is a port whose reader waits by way of Go's own poller: the fallback
// where a thread can't be spared. It takes one packet at a time.
type polled struct {
	conn     *net.UDPConn
	wildcard bool
	begun    bool        // the reader has
	owned    atomic.Bool // by the reader, which closes conn; or by shut, which did
}

// openPolled opens a polled port on addr.
func openPolled(addr netip.AddrPort) (*polled, error) {
	fd, err := openUDP(addr, unix.SOCK_NONBLOCK)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "udp "+addr.String())
	defer f.Close() // FilePacketConn has its own descriptor of the socket
	c, err := net.FilePacketConn(f)
	if err != nil {
		return nil, err
	}
	return &polled{conn: c.(*net.UDPConn), wildcard: addr.Addr().IsUnspecified()}, nil
}

// take is [port.take].
func (p *polled) take(b *batch) bool {
	if !p.begun && p.owned.Swap(true) {
		return false
	}
	p.begun = true
	b.n = 1
	d := &b.slots[0]
	for {
		var oobn int
		var err error
		if p.wildcard {
			d.n, oobn, _, d.from.client, err = p.conn.ReadMsgUDPAddrPort(d.in[:], d.from.oob[:])
			d.from.oobLen = uint32(oobn)
		} else {
			d.n, d.from.client, err = p.conn.ReadFromUDPAddrPort(d.in[:])
		}
		switch {
		case err == nil:
			return true
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, net.ErrClosed):
			_ = p.conn.Close()
			return false
		}
		// An ICMP error of an earlier reply; the socket is fine.
	}
}

// give is [port.give].
func (p *polled) give(b *batch) {
	if d := &b.slots[0]; b.n > 0 && d.reply != nil {
		p.send(&d.from, d.reply)
	}
}

// send is [port.send].
func (p *polled) send(to *origin, msg []byte) {
	if p.wildcard {
		_, _, _ = p.conn.WriteMsgUDPAddrPort(msg, to.oob[:to.oobLen], to.client)
		return
	}
	_, _ = p.conn.WriteToUDPAddrPort(msg, to.client)
}

// shut is [port.shut]. A reader that is about to send a reply may still do so.
func (p *polled) shut() {
	if p.owned.Swap(true) {
		_ = p.conn.SetReadDeadline(time.Unix(1, 0))
		return
	}
	_ = p.conn.Close()
}
