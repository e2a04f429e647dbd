package upstream

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/mmsg"
)

// The UDP system calls use RawSyscall, which bypasses the scheduler and saves a tenth of an
// exchange's cost. This is safe because the sockets are non-blocking.

// batchSize is how many datagrams one system call reads. More are rarely waiting, because
// the replies of a busy server are spread over several sockets.
const batchSize = 16

// batch is the buffers of one read. It belongs to one goroutine at a time; the kernel
// writes to it only during read.
type batch struct {
	messages [batchSize]mmsg.Message
	vectors  [batchSize]unix.Iovec
	// buffers have one byte more than maxDatagram, to recognize truncated datagrams.
	buffers [batchSize][maxDatagram + 1]byte
	// noRecvmmsg is set if the kernel lacks recvmmsg or a system call filter blocks it.
	noRecvmmsg bool
	// replied is room for [udpSocket.replied].
	replied [batchSize]*query
}

func newBatch() *batch {
	b := new(batch)
	for i := range b.messages {
		b.vectors[i].Base = &b.buffers[i][0]
		b.vectors[i].SetLen(len(b.buffers[i]))
		b.messages[i].Iov = &b.vectors[i]
		b.messages[i].SetIovlen(1)
	}
	return b
}

// datagram returns the i-th datagram, valid until the next read.
func (b *batch) datagram(i int) []byte { return b.buffers[i][:b.messages[i].Len] }

// read reads the datagrams waiting on fd, a non-blocking socket, and returns their number.
// Fewer than batchSize means that none are left, so the next one makes the socket readable
// again. An error is an error of the socket, such as ECONNREFUSED after an ICMP message; the n
// datagrams before it are valid.
func (b *batch) read(fd uintptr) (n int, err error) {
	if !b.noRecvmmsg {
		n, errno := mmsg.Receive(fd, b.messages[:], unix.MSG_DONTWAIT)
		switch errno {
		case 0:
			return n, nil
		case unix.EAGAIN:
			return 0, nil
		case unix.ENOSYS, unix.EPERM:
			b.noRecvmmsg = true
		default:
			return 0, errno
		}
	}
	return b.readOneByOne(fd)
}

// readOneByOne is read with one system call per datagram.
func (b *batch) readOneByOne(fd uintptr) (n int, err error) {
	for i := range b.messages {
		room := &b.buffers[i]
		size, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(room)), uintptr(len(room)), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			b.messages[i].Len = uint32(size)
		case unix.EAGAIN:
			return i, nil
		default:
			return i, errno
		}
	}
	return batchSize, nil
}

// sendDatagram sends msg on the connected datagram socket fd. The error may stem from an
// ICMP message about an earlier datagram; EAGAIN means that the socket buffer is full,
// which is rare because it holds more than all queries of a socket.
func sendDatagram(fd uintptr, msg []byte) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.SliceData(msg))), uintptr(len(msg)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
