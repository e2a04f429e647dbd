// Package mmsg wraps recvmmsg(2) and sendmmsg(2), which transfer many datagrams with one
// system call.
//
// The calls bypass the Go scheduler: the goroutine keeps its P. A call that blocks for long
// stops other goroutines.
package mmsg

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Message is struct mmsghdr. What it points to must be on the heap: Go may move a stack
// while the kernel reads or writes it.
type Message struct {
	unix.Msghdr
	// Len is the number of bytes that were received or sent.
	Len uint32
}

// Receive fills ms in order and returns how many it filled. ms must not be empty. flags are
// the errors of recvmmsg(2). The errno is 0 unless nothing was received.
func Receive(fd uintptr, ms []Message, flags int) (int, syscall.Errno) {
	return call(unix.SYS_RECVMMSG, fd, ms, flags)
}

// Send sends ms in order and returns how many it sent. ms must not be empty. flags are those
// of sendmmsg(2). The errno is 0 unless nothing was sent.
func Send(fd uintptr, ms []Message, flags int) (int, syscall.Errno) {
	return call(unix.SYS_SENDMMSG, fd, ms, flags)
}

// Unavailable reports whether the kernel or a seccomp filter denies one of the two system
// calls, tried on the socket fd.
func Unavailable(fd uintptr) bool {
	for _, number := range []uintptr{unix.SYS_RECVMMSG, unix.SYS_SENDMMSG} {
		_, _, errno := syscall.RawSyscall6(number, fd, 0, 0, unix.MSG_DONTWAIT, 0, 0)
		if errno == unix.ENOSYS || errno == unix.EPERM {
			return true
		}
	}
	return false
}

func call(number, fd uintptr, ms []Message, flags int) (int, syscall.Errno) {
	r, _, errno := syscall.RawSyscall6(number, fd, uintptr(unsafe.Pointer(unsafe.SliceData(ms))), uintptr(len(ms)), uintptr(flags), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(r), 0
}
