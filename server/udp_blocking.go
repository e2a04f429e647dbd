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

// recvTimeout is how long a blocking socket waits in the kernel before its reader gives
// its P back to the scheduler. It is the time after which the runtime preempts a running
// goroutine, and a wait counts as running: with a longer timeout the runtime would signal
// every idle reader a hundred times a second.
const recvTimeout = 10 * time.Millisecond

// busyGap is how soon a packet must end a wait on the poller for the next wait to be in
// the kernel again. It is half of recvTimeout so that evenly spaced packets do not make
// the reader switch back and forth; each switch costs as much as four packets.
const busyGap = recvTimeout / 2

// blockingSocket is a udpSocket whose reader waits in the kernel as a C program does: in
// a blocking system call that the Go scheduler does not know of, so that a packet wakes
// the reader's thread and nothing else.
//
// The goroutine keeps its P while it waits, which is why [addProcs] adds one for it. The
// garbage collector can stop it only by the runtime's signal. The signal ends the wait
// (EINTR) because the socket has a receive timeout; without one the kernel would restart
// the wait (signal(7)) and the collector would wait with it. After [recvTimeout] without
// a packet, and while packets arrive more rarely than that, the reader waits on Go's
// poller instead, without a P.
//
// Buffers: the reader's batch owns all packets and replies. startReading points the
// kernel's message headers at it; they stay valid until stopReading.
type blockingSocket struct {
	fd       int
	addr     netip.AddrPort
	poll     *epollWaiter
	balancer *reuseportBalancer

	// in and out are the message headers for recvmmsg and sendmmsg. Index i of both
	// belongs to packet i of the batch.
	in, out       [batchSize]mmsg.Message
	inVec, outVec [batchSize]unix.Iovec
	// noMmsg is set where recvmmsg is refused, for example by an old seccomp profile;
	// recvmsg and sendmsg take its place.
	noMmsg      bool
	wildcard    bool
	lowRate     bool // packets arrive too rarely to wait for them in the kernel
	fullBatches int  // full batches in a row

	replies replyQueue
	flush   func() // the method flushReplies: a new function for each call would be an allocation

	batch   *batch       // the reader's; nil before startReading
	command atomic.Int32 // a socketCommand; written under mu
	polling atomic.Bool  // the reader is in waitPolled
	// mu guards hasReader and closed, and keeps fd open during a send.
	mu        sync.RWMutex
	hasReader bool // there is a reader, which closes fd when commanded to
	closed    bool
}

// newBlockingSocket returns a blocking socket for fd, which is bound to addr. It takes
// over fd and closes it on an error. noMmsg makes the socket do without recvmmsg.
func newBlockingSocket(fd int, addr netip.AddrPort, plain bool) (*blockingSocket, error) {
	p := &blockingSocket{fd: fd, addr: addr, wildcard: addr.Addr().IsUnspecified(), lowRate: true}
	p.flush = p.flushReplies
	err := p.setBlocking()
	if err == nil {
		p.poll, err = newEpollWaiter()
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	p.noMmsg = plain || mmsg.Unavailable(uintptr(fd))
	return p, nil
}

// setBlocking puts the socket into blocking mode with a receive timeout. Both are
// settings of the socket, not of the descriptor, so another process that shares the socket
// may have changed them.
func (p *blockingSocket) setBlocking() error {
	tv := unix.NsecToTimeval(int64(recvTimeout))
	if err := unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return fmt.Errorf("setting SO_RCVTIMEO: %w; --reader-wait=poller does without it", err)
	}
	return os.NewSyscallError("fcntl", unix.SetNonblock(p.fd, false))
}

// readBatch implements udpSocket.
func (p *blockingSocket) readBatch(b *batch) bool {
	if p.batch != b && !p.startReading(b) {
		return false
	}
	for {
		if p.command.Load() != keepReading {
			return p.stopReading()
		}
		// A command that comes from here on is obeyed after the wait.
		errno := p.receive(p.lowRate)
		switch {
		case p.batch.n > 0:
			p.checkLoad()
			return true
		case errno != unix.EINTR:
			p.waitPolled()
		}
		// EINTR is the runtime's signal. The next function call is a preemption
		// point.
	}
}

// startReading makes the caller the reader, with b as its batch, and points the message
// headers at b. It returns false if the socket is closed.
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

// checkLoad counts full batches and spreads packets over all sockets if there have been
// too many in a row.
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

// waitPolled waits on the poller, without a P, for a packet or a command. It then decides
// where the next wait happens and whether other readers are still needed.
func (p *blockingSocket) waitPolled() {
	start := clock.Now()
	if !p.lowRate && !p.madeNonblocking() {
		start -= recvTimeout // includes the wait in the kernel
	}
	p.polling.Store(true)
	p.poll.wait(p.fd)
	p.polling.Store(false)
	idle := clock.Now() - start
	p.lowRate = idle >= busyGap
	if !p.lowRate {
		replacePollingThread()
	}
	if idle >= recvTimeout {
		p.balancer.concentrate(start)
	}
}

// replacePollingThread wakes another thread, which polls the network in place of the caller's thread. That thread
// polled the network until it resumed the reader, and now blocks in the kernel, which the scheduler does not see.
// Without a replacement, the reply of an upstream or a query over TCP waits until the runtime's monitor polls the
// network, up to 10 ms later.
func replacePollingThread() { go func() {}() }

// madeNonblocking reports whether another process that shares the socket has made it
// non-blocking, and makes it blocking again. A reader on the poller works with either mode
// as long as there is a receive timeout. Without this check the reader would stay on the
// poller after the other process has gone.
func (p *blockingSocket) madeNonblocking() bool {
	flags, err := unix.FcntlInt(uintptr(p.fd), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_NONBLOCK != 0 && p.setBlocking() == nil
}

// receive fills the batch with the packets that are there. Unless nonblock is set, it
// waits for the first one.
func (p *blockingSocket) receive(nonblock bool) syscall.Errno {
	b := p.batch
	for i := range b.n {
		p.resetLengths(i)
	}
	n, errno := p.recvmmsg(nonblock)
	b.n = n
	for i := range n {
		d, h := &b.packets[i], &p.in[i]
		d.n = int(h.Len)
		d.from.nameLen, d.from.oobLen = h.Namelen, uint32(h.Controllen)
		d.from.client = clientAddr(&d.from)
	}
	return errno
}

// resetLengths sets how many bytes of address and control message the kernel may write
// for packet i.
func (p *blockingSocket) resetLengths(i int) {
	p.in[i].Namelen = uint32(len(udpPeer{}.name))
	if p.wildcard {
		p.in[i].SetControllen(len(udpPeer{}.oob))
	}
}

// recvmmsg calls recvmmsg(2), or recvmsg(2) where noMmsg is set, and returns the number
// of packets.
func (p *blockingSocket) recvmmsg(nonblock bool) (int, syscall.Errno) {
	flags := unix.MSG_WAITFORONE
	if nonblock {
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

// clientAddr decodes the client's address as the kernel has written it; the zero AddrPort
// if there is none.
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

// writeBatch implements udpSocket.
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
	p.sendAll(p.out[:n])
}

// sendAll sends all of out. A message that cannot be sent is lost.
func (p *blockingSocket) sendAll(out []mmsg.Message) {
	for done := 0; done < len(out); {
		sent, errno := p.sendmmsg(out[done:])
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			done++ // skip the reply that cannot be sent
		default:
			done += sent
		}
	}
}

// sendmmsg calls sendmmsg(2), or sendmsg(2) where noMmsg is set, and returns the number
// of replies sent.
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

// sendFlags makes a full send buffer drop the reply instead of blocking the reader.
const sendFlags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL

// setMsghdr points h at the bytes of v and the address and control message of o.
func (p *blockingSocket) setMsghdr(h *unix.Msghdr, v *unix.Iovec, o *udpPeer) {
	h.Iov = v
	h.SetIovlen(1)
	h.Name, h.Namelen = &o.name[0], o.nameLen
	if p.wildcard {
		h.Control = &o.oob[0]
		h.SetControllen(int(o.oobLen))
	}
}

// send implements udpSocket.
func (p *blockingSocket) send(to *udpPeer, msg []byte) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	p.sendLocked(to, msg)
}

// sendLocked is send with p.mu held.
func (p *blockingSocket) sendLocked(to *udpPeer, msg []byte) {
	fd := p.fd
	if p.closed {
		var err error
		if fd, err = openReplySocket(p.addr); err != nil {
			return // the address no longer exists
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

// close implements udpSocket.
func (p *blockingSocket) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.command.Store(stopAndClose)
	switch {
	case p.closed:
	case p.hasReader:
		// shutdown(2) would also end the waits of other processes that share the socket.
		p.poll.wake()
	default:
		p.closeFD()
	}
}

// closeFD closes all descriptors of p. The caller holds p.mu.
func (p *blockingSocket) closeFD() {
	p.closed = true
	_ = unix.Close(p.fd)
	p.poll.close()
}

// stopReading obeys the command to stop. Before it closes the socket it reads once more:
// it returns true if there was a packet, and the socket stays open until the next call.
// Nothing, not even waiting for a lock, happens between that read and the close, because
// packets that arrive in between are lost.
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

// suspend implements udpSocket. A wait in the kernel ends within [recvTimeout], and a
// packet that ends it is answered.
func (p *blockingSocket) suspend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.command.CompareAndSwap(keepReading, stopKeepOpen) {
		p.poll.wake()
	}
}

// resume implements udpSocket.
func (p *blockingSocket) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !p.command.CompareAndSwap(stopKeepOpen, keepReading) {
		return
	}
	_ = p.setBlocking()
	p.poll.reset()
}

// duplicate implements udpSocket.
func (p *blockingSocket) duplicate() (*os.File, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return nil, os.ErrClosed
	}
	return duplicateFD(p.fd, "udp "+p.addr.String())
}
