package server

import (
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/mmsg"
)

// recvTimeout is how long a blocking port waits in the kernel before it gives its
// processor back to the scheduler. The runtime asks a goroutine that has run for
// 10 ms to make place, and a wait counts as running: with more, idle readers would
// be signalled a hundred times a second each; with a tenth, a node with some
// hundred queries a second would pay for both ways of waiting.
const recvTimeout = 10 * time.Millisecond

// busyGap is how soon a packet must end a pause for the next wait to be in the kernel
// again. Half of [recvTimeout], so that evenly spaced packets don't lead from one way
// of waiting to the other and back: each change costs what four packets do.
const busyGap = recvTimeout / 2

// blockingSocket is a port whose reader waits in the kernel like a C program would: in a
// blocking system call that the Go scheduler does not know of, so that a packet
// wakes its thread and nothing else.
//
// The goroutine keeps its P while it waits, hence [addProcs], and can't be asked
// to stop for the garbage collector but by the runtime's signal. That signal ends
// the wait (EINTR) because the socket has a receive time-out: without one the
// kernel would go back to waiting (signal(7)), and the collector would wait with
// it. A wait without a packet ends after [recvTimeout] anyway, and then goes on by way of
// Go's poller, without a P, for as long as it takes; and while packets come as rarely
// as that, all waits do.
type blockingSocket struct {
	fd       int
	addr     netip.AddrPort
	poll     *epollWaiter
	balancer *reuseportBalancer

	// in and out are what recvmmsg and sendmmsg work on: packets and replies of the
	// same slots.
	in, out       [batchSize]mmsg.Message
	inVec, outVec [batchSize]unix.Iovec
	// noMmsg is set where recvmmsg is refused, by an old seccomp profile for example:
	// recvmsg and sendmsg stand in for it.
	noMmsg      bool
	wildcard    bool
	lowRate     bool // packets are too rare to wait for them in the kernel
	fullBatches int  // full batches in a row

	batch   *batch       // the reader's, once it has begun
	command atomic.Int32 // an order; it changes under mu
	polling atomic.Bool  // in [blockingSocket.unwritten]
	// mu keeps the descriptor from being closed under a send.
	mu        sync.RWMutex
	hasReader bool // somebody reads, who closes fd when told to
	closed    bool
}

// newBlockingSocket makes a blocking port of a socket that is bound to addr, and has the
// descriptor from here on; plain makes it do without recvmmsg.
func newBlockingSocket(fd int, addr netip.AddrPort, plain bool) (*blockingSocket, error) {
	p := &blockingSocket{fd: fd, addr: addr, wildcard: addr.Addr().IsUnspecified(), lowRate: true}
	err := p.setBlocking()
	if err == nil {
		p.poll, err = newEpollWaiter()
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	p.noMmsg = plain || mmsg.Refused(uintptr(fd))
	return p, nil
}

// setBlocking sets what makes receiving wait, and not for long. Another process may have
// set the socket otherwise: it is the socket's, not the descriptor's.
func (p *blockingSocket) setBlocking() error {
	tv := unix.NsecToTimeval(int64(recvTimeout))
	if err := unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return fmt.Errorf("setting SO_RCVTIMEO: %w; -reader-wait=poller does without it", err)
	}
	return os.NewSyscallError("fcntl", unix.SetNonblock(p.fd, false))
}

// readBatch is [udpSocket.transferConn].
func (p *blockingSocket) readBatch(b *batch) bool {
	if p.batch != b && !p.startReading(b) {
		return false
	}
	for {
		if p.command.Load() != keepReading {
			return p.stopReading()
		}
		// An order that comes from now on is heard when the wait is over.
		errno := p.receive(p.lowRate)
		switch {
		case p.batch.n > 0:
			p.checkLoad()
			return true
		case errno != unix.EINTR:
			p.waitPolled()
		}
		// EINTR is the runtime's signal. The next call is where the goroutine makes
		// place, if it is asked to.
	}
}

// startReading makes b's owner the reader, and points the kernel to the places in b; false if
// p was shut before.
func (p *blockingSocket) startReading(b *batch) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.batch, p.hasReader = b, true
	for i := range p.in {
		d := &b.packets[i]
		p.inVec[i].Base = &d.in[0]
		p.inVec[i].SetLen(len(d.in))
		p.setMsghdr(&p.in[i].Msghdr, &p.inVec[i], &d.from)
		p.resetLengths(i)
	}
	return true
}

// checkLoad looks whether the reader keeps up, and if not has others help.
func (p *blockingSocket) checkLoad() {
	if p.batch.n < batchSize {
		p.fullBatches = 0
		return
	}
	if p.fullBatches++; p.fullBatches == overloadBatches {
		p.fullBatches = 0
		p.balancer.spread()
	}
}

// waitPolled waits for a packet, or for shut, without holding a P.
func (p *blockingSocket) waitPolled() {
	start := clock.Now()
	if !p.lowRate && !p.madeNonblocking() {
		start -= recvTimeout // waited in the kernel
	}
	p.polling.Store(true)
	p.poll.wait(p.fd)
	p.polling.Store(false)
	idle := clock.Now() - start
	p.lowRate = idle >= busyGap
	if idle >= recvTimeout {
		p.balancer.concentrate(start)
	}
}

// madeNonblocking reports whether another process that has the socket has kept receiving from
// waiting, and sees to that: a reader that waits by way of a poller needs no socket
// that doesn't wait, as long as there is a time-out. Without this, one that has come
// and gone would leave all waits to the pause.
func (p *blockingSocket) madeNonblocking() bool {
	flags, err := unix.FcntlInt(uintptr(p.fd), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_NONBLOCK != 0 && p.setBlocking() == nil
}

// receive fills the batch with what is there, and waits for the first packet unless it
// has to be quick.
func (p *blockingSocket) receive(quick bool) syscall.Errno {
	b := p.batch
	for i := range b.n {
		p.resetLengths(i)
	}
	n, errno := p.recvmmsg(quick)
	b.n = n
	for i := range n {
		d, h := &b.packets[i], &p.in[i]
		d.n = int(h.Len)
		d.from.nameLen, d.from.oobLen = h.Namelen, uint32(h.Controllen)
		d.from.client = clientAddr(&d.from)
	}
	return errno
}

// resetLengths says how much of its address and control message a packet may write.
func (p *blockingSocket) resetLengths(i int) {
	p.in[i].Namelen = uint32(len(udpPeer{}.name))
	if p.wildcard {
		p.in[i].SetControllen(len(udpPeer{}.oob))
	}
}

// recvmmsg is recvmmsg, or what stands in for it.
func (p *blockingSocket) recvmmsg(quick bool) (int, syscall.Errno) {
	flags := unix.MSG_WAITFORONE
	if quick {
		flags = unix.MSG_DONTWAIT
	}
	if !p.noMmsg {
		return mmsg.Receive(uintptr(p.fd), p.in[:], flags)
	}
	r, _, errno := syscall.RawSyscall(unix.SYS_RECVMSG, uintptr(p.fd), uintptr(unsafe.Pointer(&p.in[0])), uintptr(flags&unix.MSG_DONTWAIT))
	if errno != 0 {
		return 0, errno
	}
	p.in[0].Len = uint32(r)
	return 1, 0
}

// clientAddr reads the address the kernel wrote.
func clientAddr(o *udpPeer) netip.AddrPort {
	if o.nameLen < 8 {
		return netip.AddrPort{}
	}
	at := uint16(o.name[2])<<8 | uint16(o.name[3])
	if *(*uint16)(unsafe.Pointer(&o.name)) == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(o.name[4:8])), at)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(o.name[8:24])), at)
}

// writeBatch is [udpSocket.writeBatch].
func (p *blockingSocket) writeBatch(b *batch) {
	n := 0
	for i := range b.packets[:b.n] {
		d := &b.packets[i]
		if d.reply == nil {
			continue
		}
		p.outVec[n].Base = &d.reply[0]
		p.outVec[n].SetLen(len(d.reply))
		p.setMsghdr(&p.out[n].Msghdr, &p.outVec[n], &d.from)
		n++
	}
	for done := 0; done < n; {
		sent, errno := p.sendmmsg(p.out[done:n])
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			done++ // the one that can't be sent
		default:
			done += sent
		}
	}
}

// sendmmsg is sendmmsg, or what stands in for it.
func (p *blockingSocket) sendmmsg(out []mmsg.Message) (int, syscall.Errno) {
	if !p.noMmsg {
		return mmsg.Send(uintptr(p.fd), out, sendFlags)
	}
	_, _, errno := syscall.RawSyscall(unix.SYS_SENDMSG, uintptr(p.fd), uintptr(unsafe.Pointer(&out[0])), sendFlags)
	if errno != 0 {
		return 0, errno
	}
	return 1, 0
}

// sendFlags: a full send buffer loses the reply instead of stopping the reader.
const sendFlags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL

// setMsghdr makes h stand for the bytes of v and the address of o.
func (p *blockingSocket) setMsghdr(h *unix.Msghdr, v *unix.Iovec, o *udpPeer) {
	h.Iov = v
	h.SetIovlen(1)
	h.Name, h.Namelen = &o.name[0], o.nameLen
	if p.wildcard {
		h.Control = &o.oob[0]
		h.SetControllen(int(o.oobLen))
	}
}

// send is [udpSocket.send].
func (p *blockingSocket) send(to *udpPeer, msg []byte) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	fd := p.fd
	if p.closed {
		var err error
		if fd, err = openReplySocket(p.addr); err != nil {
			return // the address is gone
		}
		defer func() { _ = unix.Close(fd) }()
	}
	v := unix.Iovec{Base: &msg[0]}
	v.SetLen(len(msg))
	var h unix.Msghdr
	p.setMsghdr(&h, &v, to)
	for {
		_, _, errno := syscall.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&h)), sendFlags)
		if errno != unix.EINTR {
			return
		}
	}
}

// close is [udpSocket.done].
func (p *blockingSocket) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.command.Store(stopAndClose)
	switch {
	case p.closed:
	case p.hasReader:
		// Not shutdown(2), which would end the waits of all who share the socket.
		p.poll.wake()
	default:
		p.closeFD()
	}
}

// closeFD closes what p has open; mu is held.
func (p *blockingSocket) closeFD() {
	p.closed = true
	_ = unix.Close(p.fd)
	p.poll.close()
}

// stopReading ends the reader's work. If p is to be closed it looks into the queue for the
// last time: true if there still was a packet. Between that look and the close lies
// nothing, not even the wait for a lock: what comes meanwhile has no reader.
func (p *blockingSocket) stopReading() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.command.Load() == stopAndClose {
		if _ = p.receive(true); p.batch.n > 0 {
			return true
		}
		p.closeFD()
	}
	p.batch, p.hasReader = nil, false
	return false
}

// suspend is [udpSocket.suspend]. A wait in the kernel ends after [recvTimeout] at the latest, and
// what it brings is answered.
func (p *blockingSocket) suspend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.command.CompareAndSwap(keepReading, stopKeepOpen) {
		p.poll.wake()
	}
}

// resume is [udpSocket.resume].
func (p *blockingSocket) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !p.command.CompareAndSwap(stopKeepOpen, keepReading) {
		return
	}
	_ = p.setBlocking() // as it did at the start
	p.poll.reset()
}

// duplicate is [udpSocket.duplicate].
func (p *blockingSocket) duplicate() (*os.File, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return nil, os.ErrClosed
	}
	return duplicateFD(p.fd, "udp "+p.addr.String())
}
