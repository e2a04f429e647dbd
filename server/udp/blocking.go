package udp

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/mmsg"
	"github.com/nodens-dns/nodens/internal/pollset"
	"github.com/nodens-dns/nodens/internal/socket"
)

// recvTimeout is how long a blocking socket waits in the kernel before its reader gives
// its P back to the scheduler. It is the time after which the runtime preempts a running
// goroutine, and a wait counts as running: with a longer timeout the runtime would signal
// every idle reader a hundred times a second.
const recvTimeout = 10 * time.Millisecond

// lowRateTimeout is how long a reader that has given up its P waits for packets and for replies of upstreams before it looks for a
// command. An upstream that does not answer leaves it waiting for seconds.
const lowRateTimeout = 100 * time.Millisecond

// busyGap is how soon a packet must end a wait on the poller for the next wait to be in
// the kernel again. It is half of recvTimeout so that evenly spaced packets do not make
// the reader switch back and forth; each switch costs as much as four packets.
const busyGap = recvTimeout / 2

// blockingSocket is a Socket whose reader waits in the kernel as a C program does: in
// a blocking system call that the Go scheduler does not know of, so that a packet wakes
// the reader's thread and nothing else.
//
// The goroutine keeps its P while it waits, which is why [AddProcs] adds one for it. The
// garbage collector can stop it only by the runtime's signal. The signal ends the wait
// (EINTR) because the socket has a receive timeout; without one the kernel would restart
// the wait (signal(7)) and the collector would wait with it. After [recvTimeout] without
// a packet, and while packets arrive more rarely than that, the reader waits on Go's
// poller instead, without a P.
//
// Buffers: the reader's batch owns all packets and replies. startReading points the
// kernel's message headers at it; they stay valid until stopReading.
type blockingSocket struct {
	fd   int
	addr netip.AddrPort
	poll *epollWaiter
	// upstreams are sockets that the reader reads, too. While replies are expected on them, the reader waits for them and for
	// packets with poller.
	upstreams pollset.Set
	poller    *pollset.Poller
	balancer  *reuseportBalancer

	// in and out are the message headers for recvmmsg and sendmmsg. Index i of both
	// belongs to packet i of the batch.
	in, out       [BatchSize]mmsg.Message
	inVec, outVec [BatchSize]unix.Iovec
	// noMmsg is set where recvmmsg is refused, for example by an old seccomp profile;
	// recvmsg and sendmsg take its place.
	noMmsg      bool
	wildcard    bool
	lowRate     bool // packets arrive too rarely to wait for them in the kernel
	fullBatches int  // full batches in a row

	replies replyQueue
	flush   func() // the method flushReplies: a new function for each call would be an allocation

	batch   *Batch       // the reader's; nil before startReading
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
	p.poller = pollset.NewPoller(&p.upstreams)
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

// ReadBatch implements Socket.
func (p *blockingSocket) ReadBatch(b *Batch) bool {
	if p.batch != b && !p.startReading(b) {
		return false
	}
	for {
		if p.command.Load() != keepReading {
			return p.stopReading()
		}
		// A command that comes from here on is obeyed after the wait.
		if p.upstreams.Expected() > 0 {
			if p.receiveOrReply() {
				return true
			}
			continue
		}
		if b.NoWait {
			_ = p.receive(true)
			p.checkLoad()
			return true
		}
		errno := p.receive(p.lowRate)
		switch {
		case p.batch.N > 0:
			p.checkLoad()
			return true
		case errno != unix.EINTR:
			p.waitPolled()
		}
		// EINTR is the runtime's signal. The next function call is a preemption
		// point.
	}
}

// receiveOrReply waits for packets and for replies of upstreams. It reports whether there are any, or the reader does not wait.
func (p *blockingSocket) receiveOrReply() bool {
	b := p.batch
	p.clearBatch()
	start := clock.Now()
	e, errno := p.waitBoth()
	if e.Ready {
		_ = p.receive(true)
	}
	b.Replied, b.Woken = e.Replies, e.Woken
	switch {
	case b.NoWait:
		p.checkLoad()
		return true
	case b.N > 0:
		p.checkLoad()
		if p.lowRate {
			p.lowRate = clock.Now()-start >= busyGap
		}
	case errno == unix.EAGAIN:
		p.lowRate = true
	}
	return b.N > 0 || b.Replied || b.Woken
}

// waitBoth waits for packets and for replies of upstreams, and reads the replies.
func (p *blockingSocket) waitBoth() (pollset.Event, syscall.Errno) {
	switch {
	case p.batch.NoWait:
		return p.poller.Wait(p.fd, 0, true)
	case p.lowRate:
		return p.poller.Wait(p.fd, lowRateTimeout, false)
	}
	return p.poller.Wait(p.fd, recvTimeout, true)
}

// Upstreams implements Socket.
func (p *blockingSocket) Upstreams() *pollset.Set { return &p.upstreams }

// Polling reports whether the reader waits on the poller, without a P.
func (p *blockingSocket) Polling() bool { return p.polling.Load() }

// startReading makes the caller the reader, with b as its batch, and points the message
// headers at b. It returns false if the socket is closed.
func (p *blockingSocket) startReading(b *Batch) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.batch, p.hasReader = b, true
	for i := range p.in {
		d := &b.Packets[i]
		p.inVec[i].Base = &d.In[0]
		p.inVec[i].SetLen(len(d.In))
		p.setMsghdr(&p.in[i].Msghdr, &p.inVec[i], &d.From)
		p.resetLengths(i)
	}
	return true
}

// checkLoad counts full batches and spreads packets over all sockets if there have been
// too many in a row.
func (p *blockingSocket) checkLoad() {
	if p.batch.N < BatchSize {
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
	p.clearBatch()
	n, errno := p.recvmmsg(nonblock)
	b.N = n
	for i := range n {
		d, h := &b.Packets[i], &p.in[i]
		d.N = int(h.Len)
		d.From.nameLen, d.From.oobLen = h.Namelen, uint32(h.Controllen)
		d.From.Client = clientAddr(&d.From)
	}
	return errno
}

// clearBatch makes room for packets.
func (p *blockingSocket) clearBatch() {
	b := p.batch
	for i := range b.N {
		p.resetLengths(i)
	}
	b.N, b.Replied, b.Woken = 0, false, false
}

// resetLengths sets how many bytes of address and control message the kernel may write
// for packet i.
func (p *blockingSocket) resetLengths(i int) {
	p.in[i].Namelen = uint32(len(Peer{}.name))
	if p.wildcard {
		p.in[i].SetControllen(len(Peer{}.oob))
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
func clientAddr(o *Peer) netip.AddrPort {
	if o.nameLen < 8 {
		return netip.AddrPort{}
	}
	at := uint16(o.name[2])<<8 | uint16(o.name[3])
	if *(*uint16)(unsafe.Pointer(&o.name)) == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(o.name[4:8])), at)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(o.name[8:24])), at)
}

// WriteBatch implements Socket.
func (p *blockingSocket) WriteBatch(b *Batch) {
	n := 0
	for i := range b.Packets[:b.N] {
		d := &b.Packets[i]
		if d.Reply == nil {
			continue
		}
		p.outVec[n].Base = &d.Reply[0]
		p.outVec[n].SetLen(len(d.Reply))
		p.setMsghdr(&p.out[n].Msghdr, &p.outVec[n], &d.From)
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
func (p *blockingSocket) setMsghdr(h *unix.Msghdr, v *unix.Iovec, o *Peer) {
	h.Iov = v
	h.SetIovlen(1)
	h.Name, h.Namelen = &o.name[0], o.nameLen
	if p.wildcard {
		h.Control = &o.oob[0]
		h.SetControllen(int(o.oobLen))
	}
}

// Send implements Socket.
func (p *blockingSocket) Send(to *Peer, msg []byte) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	p.sendLocked(to, msg)
}

// sendLocked is send with p.mu held.
func (p *blockingSocket) sendLocked(to *Peer, msg []byte) {
	fd := p.fd
	if p.closed {
		var err error
		if fd, err = socket.OpenReply(p.addr); err != nil {
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

// Close implements Socket.
func (p *blockingSocket) Close() {
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
	p.upstreams.Close()
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
		if _ = p.receive(true); p.batch.N > 0 {
			return true
		}
		p.closeFD()
	}
	p.batch, p.hasReader = nil, false
	if p.upstreams.Expected() > 0 {
		go p.upstreams.Drain()
	}
	return false
}

// Suspend implements Socket. A wait in the kernel ends within [recvTimeout], and a
// packet that ends it is answered.
func (p *blockingSocket) Suspend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.command.CompareAndSwap(keepReading, stopKeepOpen) {
		p.poll.wake()
	}
}

// Resume implements Socket.
func (p *blockingSocket) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !p.command.CompareAndSwap(stopKeepOpen, keepReading) {
		return
	}
	_ = p.setBlocking()
	p.poll.reset()
}

// Duplicate implements Socket.
func (p *blockingSocket) Duplicate() (*os.File, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return nil, os.ErrClosed
	}
	return socket.DuplicateFD(p.fd, "udp "+p.addr.String())
}

// SendLater implements Socket.
func (p *blockingSocket) SendLater(l Late) (flush func()) {
	if p.replies.add(l) {
		return p.flush
	}
	return nil
}

// flushReplies sends the replies in p's queue.
func (p *blockingSocket) flushReplies() {
	r := &p.replies
	if p.upstreams.Expected() == 0 && (r.several.Load() || clock.Now()-time.Duration(r.flushedAt.Load()) < soonAgain) {
		runtime.Gosched() // to goroutines that probably have replies, too
	}
	r.flushing.Lock()
	defer r.flushing.Unlock()
	r.take()
	for left := r.sending; len(left) > 0; {
		n := min(len(left), BatchSize)
		p.sendReplies(left[:n])
		left = left[n:]
	}
	r.several.Store(len(r.sending) > 1)
	r.flushedAt.Store(int64(clock.Now()))
	for i, l := range r.sending {
		r.sending[i] = nil
		l.Sent()
	}
	r.sending = r.sending[:0]
}

// sendReplies sends the replies to at most BatchSize queries; p.replies.flushing is locked.
func (p *blockingSocket) sendReplies(list []Late) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed || len(list) == 1 {
		for _, l := range list {
			p.sendLocked(l.Peer(), l.Reply())
		}
		return
	}
	r := &p.replies
	for i, l := range list {
		msg := l.Reply()
		r.vectors[i].Base = &msg[0]
		r.vectors[i].SetLen(len(msg))
		p.setMsghdr(&r.out[i].Msghdr, &r.vectors[i], l.Peer())
	}
	p.sendAll(r.out[:len(list)])
}

// Timestamp implements Socket.
func (p *blockingSocket) Timestamp(came *unix.Timespec) syscall.Errno {
	return socketTimestamp(p.fd, came)
}

// Memory implements Socket.
func (p *blockingSocket) Memory(m *Memory) syscall.Errno {
	size := uint32(unsafe.Sizeof(*m))
	_, _, errno := syscall.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(p.fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(m)), uintptr(unsafe.Pointer(&size)), 0)
	return errno
}
