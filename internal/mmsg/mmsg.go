// Package mmsg is recvmmsg(2) and sendmmsg(2): many datagrams with one system call.
//
// The calls are made past the Go scheduler: the goroutine keeps its P. So they must
// not wait for long, or the caller must know what it does.
package mmsg

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Message is struct mmsghdr. What it points to must not be on a stack that moves:
// the garbage collector does not know that the kernel reads and writes there.
type Message struct {
	unix.Msghdr
	// Len is the number of bytes that were received or sent.
	Len uint32
}

// Receive fills ms, which must not be empty, in order, and gives how many of them it
// filled. flags are those of recvmmsg(2). The errno is 0 unless nothing was received.
func Receive(fd uintptr, ms []Message, flags int) (int, syscall.Errno) {
	return call(unix.SYS_RECVMMSG, fd, ms, flags)
}

// Send sends ms, which must not be empty, in order, and gives how many of them it
// sent. flags are those of sendmmsg(2). The errno, which is why the first one could
// not be sent, is 0 if it could.
func Send(fd uintptr, ms []Message, flags int) (int, syscall.Errno) {
	return call(unix.SYS_SENDMMSG, fd, ms, flags)
}

// Unavailable reports whether the kernel, or a filter on system calls, does not let this
// process use the two on the socket fd.
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
