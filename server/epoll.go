package server

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// epollWaiter is a wait by way of Go's poller for descriptors that are not non-blocking,
// which the poller itself does not take: it watches an epoll set of our own, which
// holds a descriptor only while one waits for it. It serves one goroutine.
//
// poll(2) would do the same with less code; but a goroutine in a long system call
// has its P taken away by the runtime's monitor, which then looks again every 20 µs
// for a while: some fifty wake-ups for each pause.
type epollWaiter struct {
	set  *os.File
	conn syscall.RawConn
}

func newEpollWaiter() (*epollWaiter, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // says that the poller may have it
		_ = unix.Close(fd)
		return nil, fmt.Errorf("setting O_NONBLOCK: %w", err)
	}
	p := &epollWaiter{set: os.NewFile(uintptr(fd), "epoll")}
	if p.conn, err = p.set.SyscallConn(); err != nil {
		_ = p.set.Close()
		return nil, err
	}
	return p, nil
}

// wait returns when fd can be read from, or when wake was called, also before.
func (p *epollWaiter) wait(fd int) {
	err := p.conn.Read(func(set uintptr) bool {
		err := unix.EpollCtl(int(set), unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN})
		if err != nil && err != unix.EEXIST { // not from the first call on
			return true
		}
		var event [1]unix.EpollEvent
		n, err := unix.EpollWait(int(set), event[:], 0)
		ready := n > 0 || err != nil && err != unix.EINTR
		if ready {
			_ = unix.EpollCtl(int(set), unix.EPOLL_CTL_DEL, fd, nil)
		}
		return ready
	})
	if err != nil {
		_ = p.conn.Control(func(set uintptr) { _ = unix.EpollCtl(int(set), unix.EPOLL_CTL_DEL, fd, nil) })
	}
}

// wake ends all waits until reset is called. Both may be called while somebody waits.
func (p *epollWaiter) wake() { _ = p.set.SetReadDeadline(past) }

func (p *epollWaiter) reset() { _ = p.set.SetReadDeadline(time.Time{}) }

func (p *epollWaiter) close() { _ = p.set.Close() }
