package udp

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/pollset"
	"github.com/nodens-dns/nodens/internal/socket"
)

// polledSocket is a Socket whose reader waits on Go's network poller. It is the
// fallback for where no thread can be spared for each reader (--reader-wait=poller), and
// reads one packet at a time.
type polledSocket struct {
	conn     *net.UDPConn
	addr     netip.AddrPort
	wildcard bool
	batch    *Batch // the reader's; nil before startReading

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

// ReadBatch implements Socket.
func (p *polledSocket) ReadBatch(b *Batch) bool {
	if p.batch != b && !p.startReading(b) {
		return false
	}
	if b.N = 0; b.NoWait {
		return true // looking for a packet without waiting would cost more than the reader has left to do
	}
	b.N = 1
	d := &b.Packets[0]
	for {
		var oobn int
		var err error
		if p.wildcard {
			d.N, oobn, _, d.From.Client, err = p.conn.ReadMsgUDPAddrPort(d.In[:], d.From.oob[:])
			d.From.oobLen = uint32(oobn)
		} else {
			d.N, d.From.Client, err = p.conn.ReadFromUDPAddrPort(d.In[:])
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
func (p *polledSocket) startReading(b *Batch) bool {
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

// WriteBatch implements Socket.
func (p *polledSocket) WriteBatch(b *Batch) {
	if d := &b.Packets[0]; b.N > 0 && d.Reply != nil {
		p.Send(&d.From, d.Reply)
	}
}

// Send implements Socket.
func (p *polledSocket) Send(to *Peer, msg []byte) {
	if !errors.Is(p.writeTo(to, msg), net.ErrClosed) {
		return
	}
	fd, err := socket.OpenReply(p.addr)
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

// SendLater implements Socket.
func (p *polledSocket) SendLater(l Late) (flush func()) {
	p.Send(l.Peer(), l.Reply())
	l.Sent()
	return nil
}

func (p *polledSocket) writeTo(to *Peer, msg []byte) (err error) {
	if p.wildcard {
		_, _, err = p.conn.WriteMsgUDPAddrPort(msg, to.oob[:to.oobLen], to.Client)
	} else {
		_, err = p.conn.WriteToUDPAddrPort(msg, to.Client)
	}
	return err
}

// Close implements Socket. A reader that is about to send a reply still does so.
func (p *polledSocket) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.command = stopAndClose
	if p.hasReader {
		_ = p.conn.SetReadDeadline(past)
		return
	}
	_ = p.conn.Close()
}

// Suspend implements Socket.
func (p *polledSocket) Suspend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.command == keepReading {
		p.command = stopKeepOpen
		_ = p.conn.SetReadDeadline(past)
	}
}

// Resume implements Socket.
func (p *polledSocket) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.command == stopKeepOpen {
		p.command = keepReading
		_ = p.conn.SetReadDeadline(time.Time{})
	}
}

// Upstreams implements Socket.
func (p *polledSocket) Upstreams() *pollset.Set { return nil }

// Duplicate implements Socket.
func (p *polledSocket) Duplicate() (*os.File, error) { return socket.Duplicate(p.conn) }

// Timestamp implements Socket. It allocates a few bytes.
func (p *polledSocket) Timestamp(came *unix.Timespec) syscall.Errno {
	raw, err := p.conn.SyscallConn()
	if err != nil {
		return unix.EBADF
	}
	errno := unix.EBADF
	_ = raw.Control(func(fd uintptr) { errno = socketTimestamp(int(fd), came) }) // closed: EBADF
	return errno
}

// Memory implements Socket. Readers of a polledSocket have no full batches.
func (p *polledSocket) Memory(*Memory) syscall.Errno { return unix.ENOSYS }
