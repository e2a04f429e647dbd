package udp

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// epollWaiter waits on Go's network poller for a descriptor that is in blocking mode,
// which the poller itself does not accept. The poller watches an epoll set, which holds
// the descriptor only during a wait. Only one goroutine may wait at a time; wake and
// reset are safe for concurrent use.
//
// poll(2) would take less code, but the runtime's monitor takes the P away from a
// goroutine in a long system call and then checks again every 20 µs for a while: about
// fifty wake-ups for each wait.
type epollWaiter struct {
	set  *os.File
	conn syscall.RawConn
	fd   int                // of the wait
	look func(uintptr) bool // the method ready: a new function for each wait would be an allocation
}

func newEpollWaiter() (*epollWaiter, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // required by the poller
		_ = unix.Close(fd)
		return nil, fmt.Errorf("setting O_NONBLOCK: %w", err)
	}
	p := &epollWaiter{set: os.NewFile(uintptr(fd), "epoll")}
	if p.conn, err = p.set.SyscallConn(); err != nil {
		_ = p.set.Close()
		return nil, err
	}
	p.look = p.ready
	return p, nil
}

// wait blocks until fd is readable or wake has been called, possibly before wait. It
// returns early on errors of the epoll set.
func (p *epollWaiter) wait(fd int) {
	p.fd = fd
	if err := p.conn.Read(p.look); err != nil {
		_ = p.conn.Control(func(set uintptr) { _ = unix.EpollCtl(int(set), unix.EPOLL_CTL_DEL, fd, nil) })
	}
}

// ready puts the descriptor into the set and reports whether it is readable. If it is, the set is empty again.
func (p *epollWaiter) ready(set uintptr) bool {
	err := unix.EpollCtl(int(set), unix.EPOLL_CTL_ADD, p.fd, &unix.EpollEvent{Events: unix.EPOLLIN})
	if err != nil && err != unix.EEXIST { // EEXIST: not the first call
		return true
	}
	var event [1]unix.EpollEvent
	n, err := unix.EpollWait(int(set), event[:], 0)
	ready := n > 0 || err != nil && err != unix.EINTR
	if ready {
		_ = unix.EpollCtl(int(set), unix.EPOLL_CTL_DEL, p.fd, nil)
	}
	return ready
}

// wake ends the current wait and every later one until reset is called.
func (p *epollWaiter) wake() { _ = p.set.SetReadDeadline(past) }

func (p *epollWaiter) reset() { _ = p.set.SetReadDeadline(time.Time{}) }

func (p *epollWaiter) close() { _ = p.set.Close() }
