package server

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// polled is a port whose reader waits by way of Go's own poller: the fallback
// where a thread can't be spared. It takes one packet at a time.
type polled struct {
	conn     *net.UDPConn
	addr     netip.AddrPort
	wildcard bool
	batch    *batch // the reader's, once it has begun

	mu    sync.Mutex
	order order
	begun bool // somebody reads
}

// newPolled makes a polled port of a socket that is bound to addr, and has the
// descriptor from here on.
func newPolled(fd int, addr netip.AddrPort) (*polled, error) {
	f := os.NewFile(uintptr(fd), "udp "+addr.String())
	defer f.Close() // FilePacketConn has its own descriptor of the socket
	c, err := net.FilePacketConn(f)
	if err != nil {
		return nil, err
	}
	return &polled{conn: c.(*net.UDPConn), addr: addr, wildcard: addr.Addr().IsUnspecified()}, nil
}

// take is [port.take].
func (p *polled) take(b *batch) bool {
	if p.batch != b && !p.begin(b) {
		return false
	}
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
			p.end()
			return false
		}
		// An ICMP error of an earlier reply; the socket is fine.
	}
}

// begin makes b's owner the reader; false if p was shut before.
func (p *polled) begin(b *batch) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.order == closing {
		return false
	}
	p.batch, p.begun = b, true
	return true
}

// end is what the reader does last.
func (p *polled) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.batch, p.begun = nil, false
	if p.order == closing {
		_ = p.conn.Close()
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
	if !errors.Is(p.write(to, msg), net.ErrClosed) {
		return
	}
	fd, err := openLate(p.addr)
	if err != nil {
		return // the address is gone
	}
	late, err := newPolled(fd, p.addr)
	if err != nil {
		return
	}
	defer func() { _ = late.conn.Close() }()
	_ = late.write(to, msg)
}

func (p *polled) write(to *origin, msg []byte) (err error) {
	if p.wildcard {
		_, _, err = p.conn.WriteMsgUDPAddrPort(msg, to.oob[:to.oobLen], to.client)
	} else {
		_, err = p.conn.WriteToUDPAddrPort(msg, to.client)
	}
	return err
}

// shut is [port.shut]. A reader that is about to send a reply may still do so.
func (p *polled) shut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.order = closing
	if p.begun {
		_ = p.conn.SetReadDeadline(past)
		return
	}
	_ = p.conn.Close()
}

// yield is [port.yield].
func (p *polled) yield() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.order == reading {
		p.order = yielding
		_ = p.conn.SetReadDeadline(past)
	}
}

// resume is [port.resume].
func (p *polled) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.order == yielding {
		p.order = reading
		_ = p.conn.SetReadDeadline(time.Time{})
	}
}

// file is [port.file].
func (p *polled) file() (*os.File, error) { return Duplicate(p.conn) }
