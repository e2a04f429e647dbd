// Package udp has the UDP sockets that share a listening address, and what a reader of one decides before it looks at a
// packet: how long packets have waited, and which it drops when it can't keep up.
//
// At the rates of a real node, most of the cost of a query is waking up whoever answers it
// and, in Go, the scheduler. A reader (blocking.go) therefore waits as a C program
// does: in a blocking recvmmsg that the scheduler does not know of, keeping its P. A packet
// wakes one thread, which answers and waits again. This is safe because:
//
//   - Each reader adds one to GOMAXPROCS (gomaxprocs.go), so that the rest of the program
//     has as many Ps as before.
//   - The socket has a receive timeout. With it, the signal by which the runtime preempts
//     a thread (for the garbage collector, a profile, or after 10 ms) ends the wait with
//     EINTR, and the goroutine yields at its next function call. Without a timeout the
//     kernel would resume the wait, and the collector would wait with it.
//   - After 10 ms without a packet, and while packets arrive as rarely as that, the reader
//     waits on Go's network poller (epoll.go) without a P, so an idle agent sleeps.
//   - While replies of upstreams are expected on the reader's [Socket.Upstreams], it waits for these and for
//     packets with one ppoll(2), in the same way. When packets come rarely, that wait is one that the scheduler knows of. A reader that
//     ends leaves the replies that are still expected to a goroutine.
//   - Its tests collect garbage, grow and move stacks, profile, trace, shut down and hand
//     sockets over under load.
//
// If more than one packet waits, up to 16 are read and answered with two system calls.
// Where a seccomp profile refuses recvmmsg, recvmsg reads one packet at a time. With
// --reader-wait=poller, readers use a net.UDPConn (polled.go). Both implement [Socket].
//
// A BPF program (reuseport.go) distributes packets over the sockets of an address. One
// reader gets all packets while it keeps up, because one thread that stays awake costs less
// than several that take turns. Once it has read full batches for a while, packets go to
// random readers, so the packets of one busy client are distributed as well as those of
// many.
//
// At most once a millisecond, and ten times a second while packets arrive one at a time, a reader asks
// its socket when the last packet arrived ([DelaySampler]): one ioctl, where control messages would
// cost every packet.
//
// Another process may hold the same sockets, so they are closed and never shut down. A reader that has to end
// checks an atomic before each wait; the receive timeout ends a wait in the kernel within 10 ms, a deadline ends a
// wait on the poller. If the other process has made a socket non-blocking, the reader makes it blocking again.
package udp

import (
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/pollset"
	"github.com/nodens-dns/nodens/internal/socket"
)

const (
	// MaxQuery is the longest query that is read from UDP. A question with its OPT record
	// takes 300 bytes; cookies, client subnets and padding stay far below this. Longer
	// packets are truncated and therefore malformed.
	MaxQuery = 4096
	// ReplyBuffer is the initial size of reply buffers. Nearly all replies stay below 1,232
	// bytes, which fits into one packet everywhere (DNS flag day 2020).
	ReplyBuffer = 2048
	// BatchSize is the most packets that a reader takes from its socket at once. With 16,
	// entering a system call costs each packet a few nanoseconds.
	BatchSize = 16
)

// Socket is one of the UDP sockets that share an address. One reader reads from it; any
// goroutine may send replies.
type Socket interface {
	// ReadBatch waits for packets and reads them into b, which belongs to the reader and is
	// the same in all its calls. While it waits it reads the sockets of Upstreams, and may return without packets
	// after that, and with [Batch.NoWait]. It returns false after Close, when the socket is closed,
	// and after Suspend; the reader then ends.
	ReadBatch(b *Batch) bool
	// WriteBatch sends the replies in b. A reply that cannot be sent is lost; the client
	// asks again.
	WriteBatch(b *Batch)
	// Send sends one reply. It does not block, and works after Close, too.
	Send(to *Peer, msg []byte)
	// SendLater sends l's reply and calls its Sent, now or when flush is called, perhaps that of an earlier
	// call. flush is nil if the caller need not call it. It does not block, and works after Close, too.
	SendLater(l Late) (flush func())
	// Timestamp stores when the packet that was last read arrived, by the wall clock. Only
	// the reader calls it, between ReadBatch and WriteBatch.
	Timestamp(came *unix.Timespec) syscall.Errno
	// Memory stores how much memory the packets in the queue take.
	Memory(m *Memory) syscall.Errno
	// Close makes ReadBatch return, now and in the future. It closes this process's
	// descriptor only; other processes keep the socket.
	Close()
	// Suspend makes ReadBatch return and leaves the packets in the queue to others who read
	// from the socket, which stays open.
	Suspend()
	// Resume undoes Suspend. The previous reader must have ended.
	Resume()
	// Upstreams returns the set of other sockets that the reader reads; nil if there is none.
	Upstreams() *pollset.Set
	// Duplicate returns a duplicate of the socket, which the caller closes.
	Duplicate() (*os.File, error)
}

// Late is a reply to a query that has waited. The socket owns it until it calls Sent.
type Late interface {
	Peer() *Peer
	Reply() []byte
	Sent()
}

// Peer is where a packet came from and where its reply goes.
type Peer struct {
	Client netip.AddrPort
	// name is the client's address as the kernel wrote it, of length nameLen. nameLen is 0
	// for sockets that do not use it.
	name    [unix.SizeofSockaddrInet6]byte
	nameLen uint32
	// oob is the control message of a packet to a wildcard socket. Sent with the reply, it
	// makes the queried address the source.
	oob    [unix.SizeofCmsghdr + unix.SizeofInet6Pktinfo + 16]byte
	oobLen uint32
}

// Packet is one packet and the reply to it.
type Packet struct {
	In  [MaxQuery]byte
	N   int
	Out []byte // the buffer for the reply
	// Reply is what to send, usually in Out; nil is nothing.
	Reply []byte
	From  Peer
}

// Batch is what a reader reads at once. It belongs to the reader.
type Batch struct {
	Packets [BatchSize]Packet
	N       int
	// Replied says that replies of upstreams were read, too.
	Replied bool
	// Woken says that other goroutines were woken or started, by these replies or because an upstream is late.
	Woken bool
	// NoWait is set by the reader while it has something else to do: ReadBatch then does not wait, and may return without packets.
	NoWait bool
}

// NewBatch returns an empty batch.
func NewBatch() *Batch {
	b := new(Batch)
	for i := range b.Packets {
		b.Packets[i].Out = make([]byte, 0, ReplyBuffer)
	}
	return b
}

// ReuseBuffer returns the buffer for the next reply: msg's if it is not much larger, else
// buf, so that a rare long reply does not stay in memory.
func ReuseBuffer(buf, msg []byte) []byte {
	if msg != nil && cap(msg) <= 8*ReplyBuffer {
		return msg[:0]
	}
	return buf
}

// Options say how sockets are read.
type Options struct {
	// Readers is how many sockets an address has, if no more are inherited.
	Readers int
	// Poller makes readers wait on Go's network poller instead of in the kernel.
	Poller bool
	// OneByOne makes readers do without recvmmsg, as where it is refused.
	OneByOne bool
	// Before is how many sockets of other processes are bound to the address; see [Balance].
	Before int
}

// Open opens all UDP sockets of addr. On an error none is held. It takes every
// socket of addr that inherited returns first, until that is -1, because packets in the queue of a socket without a
// reader are lost. The order of the result is the order in which the kernel counts the
// sockets (reuseport.go).
func Open(addr netip.AddrPort, o Options, inherited func() (fd int, err error)) ([]Socket, error) {
	sockets := make([]Socket, 0, o.Readers)
	for {
		fd, err := inherited()
		if err == nil && fd < 0 {
			if len(sockets) >= o.Readers {
				Balance(sockets, o.Before)
				return sockets, nil
			}
			fd, err = socket.OpenUDP(addr)
		}
		var p Socket
		if err == nil {
			p, err = newSocket(fd, addr, o)
		}
		if err != nil {
			CloseAll(sockets)
			return nil, err
		}
		sockets = append(sockets, p)
	}
}

// newSocket returns a Socket for fd, which is bound to addr. It takes over fd.
func newSocket(fd int, addr netip.AddrPort, o Options) (Socket, error) {
	if o.Poller {
		return newPolledSocket(fd, addr)
	}
	return newBlockingSocket(fd, addr, o.OneByOne)
}

// CloseAll closes the sockets.
func CloseAll(sockets []Socket) {
	for _, p := range sockets {
		p.Close()
	}
}

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// socketCommand tells the reader of a socket what to do.
type socketCommand = int32

const (
	keepReading  socketCommand = iota
	stopKeepOpen               // end, and leave the socket open
	stopAndClose               // end, and close the socket
)
