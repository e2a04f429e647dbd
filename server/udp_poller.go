package server

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// polledSocket is a port whose reader waits by way of Go's own poller: the fallback
// where a thread can't be spared. It takes one packet at a time.
type polledSocket struct {
	conn     *net.UDPConn
	addr     netip.AddrPort
	wildcard bool
	batch    *batch // the reader's, once it has begun

	mu        sync.Mutex
	command   socketCommand
	hasReader bool // somebody reads
}

// newPolledSocket makes a polled port of a socket that is bound to addr, and has the
// descriptor from here on.
func newPolledSocket(fd int, addr netip.AddrPort) (*polledSocket, error) {
	f := os.NewFile(uintptr(fd), "udp "+addr.String())
	defer f.Close() // FilePacketConn has its own descriptor of the socket
	c, err := net.FilePacketConn(f)
	if err != nil {
		return nil, err
	}
	return &polledSocket{conn: c.(*net.UDPConn), addr: addr, wildcard: addr.Addr().IsUnspecified()}, nil
}

// readBatch is [udpSocket.transferConn].
func (p *polledSocket) readBatch(b *batch) bool {
	if p.batch != b && !p.startReading(b) {
		return false
	}
	b.n = 1
	d := &b.packets[0]
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
			p.stopReading()
			return false
		}
		// An ICMP error of an earlier reply; the socket is fine.
	}
}

// startReading makes b's owner the reader; false if p was shut before.
func (p *polledSocket) startReading(b *batch) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.command == stopAndClose {
		return false
	}
	p.batch, p.hasReader = b, true
	return true
}

// stopReading is what the reader does last.
func (p *polledSocket) stopReading() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.batch, p.hasReader = nil, false
	if p.command == stopAndClose {
		_ = p.conn.Close()
	}
}

// writeBatch is [udpSocket.writeBatch].
func (p *polledSocket) writeBatch(b *batch) {
	if d := &b.packets[0]; b.n > 0 && d.reply != nil {
		p.send(&d.from, d.reply)
	}
}

// send is [udpSocket.send].
func (p *polledSocket) send(to *udpPeer, msg []byte) {
	if !errors.Is(p.writeTo(to, msg), net.ErrClosed) {
		return
	}
	fd, err := openReplySocket(p.addr)
	if err != nil {
		return // the address is gone
	}
	late, err := newPolledSocket(fd, p.addr)
	if err != nil {
		return
	}
	defer func() { _ = late.conn.Close() }()
	_ = late.writeTo(to, msg)
}

func (p *polledSocket) writeTo(to *udpPeer, msg []byte) (err error) {
	if p.wildcard {
		_, _, err = p.conn.WriteMsgUDPAddrPort(msg, to.oob[:to.oobLen], to.client)
	} else {
		_, err = p.conn.WriteToUDPAddrPort(msg, to.client)
	}
	return err
}

// close is [udpSocket.done]. A reader that is about to send a reply may still do so.
func (p *polledSocket) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.command = stopAndClose
	if p.hasReader {
		_ = p.conn.SetReadDeadline(past)
		return
	}
	_ = p.conn.Close()
}

// suspend is [udpSocket.suspend].
func (p *polledSocket) suspend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.command == keepReading {
		p.command = stopKeepOpen
		_ = p.conn.SetReadDeadline(past)
	}
}

// resume is [udpSocket.resume].
func (p *polledSocket) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.command == stopKeepOpen {
		p.command = keepReading
		_ = p.conn.SetReadDeadline(time.Time{})
	}
}

// duplicate is [udpSocket.duplicate].
func (p *polledSocket) duplicate() (*os.File, error) { return Duplicate(p.conn) }
