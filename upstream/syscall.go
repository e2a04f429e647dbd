package upstream

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/mmsg"
)

// The system calls of UDP are made without telling the scheduler, which is a
// tenth of what an exchange costs: they are on non-blocking sockets and so never
// wait.

// batchSize is the datagrams read in one system call. A socket rarely has more
// that wait, since a busy server's replies spread over several ports: half would
// split what a burst brings, double would be 64 KiB more for next to no call
// saved.
const batchSize = 16

// batch is room for what one call reads. It belongs to one goroutine at a time;
// the kernel writes into it only during read.
type batch struct {
	messages [batchSize]mmsg.Message
	vectors  [batchSize]unix.Iovec
	// buffers take one byte more than datagramRoom, so that a datagram that was cut
	// is told from one that just fits.
	buffers [batchSize][maxDatagram + 1]byte
	// noRecvmmsg is set where recvmmsg is refused: by a kernel without it, or by a
	// filter on system calls.
	noRecvmmsg bool
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

// datagram is the i-th one read, valid until the next read.
func (b *batch) datagram(i int) []byte { return b.buffers[i][:b.messages[i].Len] }

// read takes what waits on fd, a non-blocking datagram socket, and gives the
// number of datagrams. Fewer than batchSize means that nothing is left, and so
// that the next one to come makes the socket readable anew. The error is that of
// the socket, such as ECONNREFUSED for an ICMP message; the datagrams before it
// are good.
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

// readOneByOne is read with a call for each datagram.
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

// sendDatagram puts msg into the connected datagram socket fd, or gives the error: that of
// an ICMP message for an earlier one, or EAGAIN where the socket's buffer is full.
// It has room for more than the queries of one port, so that hardly ever is.
func sendDatagram(fd uintptr, msg []byte) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.SliceData(msg))), uintptr(len(msg)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
