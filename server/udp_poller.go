package server

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// polledSocket is a udpSocket whose reader waits on Go's network poller. It is the
// fallback for where no thread can be spared for each reader (--reader-wait=poller), and
// reads one packet at a time.
type polledSocket struct {
	conn     *net.UDPConn
	addr     netip.AddrPort
	wildcard bool
	batch    *batch // the reader's; nil before startReading

	mu        sync.Mutex
	command   socketCommand
	hasReader bool
}

// newPolledSocket returns a polled socket for fd, which is bound to addr. It takes over fd.
func newPolledSocket(fd int, addr netip.AddrPort) (*polledSocket, error) {
	f := os.NewFile(uintptr(fd), "udp "+addr.String())
	defer f.Close() // FilePacketConn duplicates the descriptor
	c, err := net.FilePacketConn(f)
	if err != nil {
		return nil, err
	}
	return &polledSocket{conn: c.(*net.UDPConn), addr: addr, wildcard: addr.Addr().IsUnspecified()}, nil
}

// readBatch implements udpSocket.
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
		// An ICMP error for an earlier reply: the socket still works.
	}
}

// startReading makes the caller the reader, with b as its batch. It returns false if the
// socket is closed.
func (p *polledSocket) startReading(b *batch) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.command == stopAndClose {
		return false
	}
	p.batch, p.hasReader = b, true
	return true
}

// stopReading ends the reader's work and closes the socket if commanded to.
func (p *polledSocket) stopReading() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.batch, p.hasReader = nil, false
	if p.command == stopAndClose {
		_ = p.conn.Close()
	}
}

// writeBatch implements udpSocket.
func (p *polledSocket) writeBatch(b *batch) {
	if d := &b.packets[0]; b.n > 0 && d.reply != nil {
		p.send(&d.from, d.reply)
	}
}

// send implements udpSocket.
func (p *polledSocket) send(to *udpPeer, msg []byte) {
	if !errors.Is(p.writeTo(to, msg), net.ErrClosed) {
		return
	}
	fd, err := openReplySocket(p.addr)
	if err != nil {
		return // the address no longer exists
	}
	late, err := newPolledSocket(fd, p.addr)
	if err != nil {
		return
	}
	defer func() { _ = late.conn.Close() }()
	_ = late.writeTo(to, msg)
}

// sendLater implements udpSocket.
func (p *polledSocket) sendLater(w *pendingQuery) (flush func()) {
	p.send(&w.to, w.reply)
	w.out = reuseBuffer(w.out, w.reply)
	w.discard()
	return nil
}

func (p *polledSocket) writeTo(to *udpPeer, msg []byte) (err error) {
	if p.wildcard {
		_, _, err = p.conn.WriteMsgUDPAddrPort(msg, to.oob[:to.oobLen], to.client)
	} else {
		_, err = p.conn.WriteToUDPAddrPort(msg, to.client)
	}
	return err
}

// close implements udpSocket. A reader that is about to send a reply still does so.
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

// suspend implements udpSocket.
func (p *polledSocket) suspend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.command == keepReading {
		p.command = stopKeepOpen
		_ = p.conn.SetReadDeadline(past)
	}
}

// resume implements udpSocket.
func (p *polledSocket) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.command == stopKeepOpen {
		p.command = keepReading
		_ = p.conn.SetReadDeadline(time.Time{})
	}
}

// duplicate implements udpSocket.
func (p *polledSocket) duplicate() (*os.File, error) { return Duplicate(p.conn) }
