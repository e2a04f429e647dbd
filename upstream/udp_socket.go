package upstream

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/mmsg"
	"github.com/nodens-dns/nodens/internal/pollset"
)

// udpSocket is a connected socket and the queries in flight on it. It has a goroutine that reads from it, or is in a set that one
// reads. The first fields are used by the reader only; the others are guarded by the lock of its [udpTransport].
type udpSocket struct {
	conn          net.Conn        // nil in a set
	raw           syscall.RawConn // nil in a set
	local         netip.AddrPort
	*sharedSocket // nil outside of a set
	// readErr is why the socket is unusable.
	readErr error
	// replied are queries with a reply for which no goroutine waits, until the reader goes on with their exchanges.
	replied repliedQueries

	openedAt time.Time
	sent     int // queries sent
	// retired sockets take no more queries; the reader closes them once none is in flight.
	retired    bool
	unexpected int
	// wakeAt is when the reader wakes up without a datagram; zero: never.
	wakeAt time.Time

	// ids and queries are parallel, in no order; the first inFlight entries are in use. A
	// lookup reads at most 256 consecutive bytes.
	ids      [maxQueriesPerSocket]uint16
	queries  [maxQueriesPerSocket]*query
	inFlight int
	total    *int // in flight on all sockets of the transport
	// orphanIDs are the IDs of canceled or expired queries whose replies may still arrive;
	// at most maxQueriesPerSocket.
	orphanIDs []uint16
}

// indexOf returns the index of the query with this ID; -1 if there is none.
func (s *udpSocket) indexOf(id uint16) int {
	for i, other := range s.ids[:s.inFlight] {
		if other == id {
			return i
		}
	}
	return -1
}

// add adds q, and changes its ID if another query here has the same.
func (s *udpSocket) add(q *query) {
	for s.indexOf(q.sentID()) >= 0 {
		q.replaceID()
	}
	s.ids[s.inFlight], s.queries[s.inFlight] = q.sentID(), q
	q.socket, q.local = s, s.local
	s.inFlight++
	if s.sharedSocket != nil {
		s.expect(s, 1)
	}
	*s.total++
	s.sent++
}

// remove removes the i-th query; the last one takes its place.
func (s *udpSocket) remove(i int) {
	*s.total--
	s.queries[i].socket = nil
	s.inFlight--
	if s.sharedSocket != nil {
		s.expect(s, -1)
	}
	last := s.inFlight
	s.ids[i], s.queries[i] = s.ids[last], s.queries[last]
	s.queries[last] = nil
}

// orphan removes the i-th query, whose reply may still arrive.
func (s *udpSocket) orphan(i int) *query {
	q := s.queries[i]
	s.orphanIDs = append(s.orphanIDs, s.ids[i])
	s.remove(i)
	return q
}

// takeOrphanReply reports whether msg is a late reply to a query that was canceled or has
// expired, and forgets its ID.
func (s *udpSocket) takeOrphanReply(msg []byte) bool {
	if len(msg) < headerLen || msg[2]&qrBit == 0 {
		return false
	}
	i := slices.Index(s.orphanIDs, binary.BigEndian.Uint16(msg))
	if i < 0 {
		return false
	}
	s.orphanIDs = slices.Delete(s.orphanIDs, i, i+1)
	return true
}

// complete completes the i-th query with err, or with the reply it holds.
func (s *udpSocket) complete(i int, err error) {
	q := s.queries[i]
	s.remove(i)
	q.complete(err)
}

// deliver completes the query that msg answers, with a copy of msg; false if there is none. If no goroutine waits
// for the query, it is added to replied instead.
func (s *udpSocket) deliver(msg []byte) bool {
	if len(msg) < headerLen {
		return false
	}
	i := s.indexOf(binary.BigEndian.Uint16(msg))
	if i < 0 || !s.queries[i].matches(msg) {
		return false
	}
	q := s.queries[i]
	q.storeDatagram(msg)
	if q.claimReply() {
		s.remove(i)
		s.replied = append(s.replied, q)
		return true
	}
	s.complete(i, nil)
	if s.sharedSocket != nil {
		s.set.Wake()
	}
	return true
}

// expire completes the queries whose deadline has passed at now, and returns the next
// deadline; zero if no query is left.
func (s *udpSocket) expire(now time.Time) (next time.Time) {
	for i := s.inFlight - 1; i >= 0; i-- { // backwards: remove moves a query already seen to i
		switch until := s.queries[i].deadline; {
		case !until.After(now):
			s.orphan(i).complete(os.ErrDeadlineExceeded)
		case next.IsZero() || until.Before(next):
			next = until
		}
	}
	return next
}

// failAll completes all queries with err.
func (s *udpSocket) failAll(err error) {
	for s.inFlight > 0 {
		s.complete(s.inFlight-1, err)
	}
}

// immediately is a time in the past, for wakeBy.
var immediately = time.Unix(1, 0)

// wakeBy wakes the reader at the given time at the latest. It sets a timer only if the
// reader would sleep longer, which is rare: all queries have the same timeout.
func (s *udpSocket) wakeBy(at time.Time) {
	if s.wakeAt.IsZero() || at.Before(s.wakeAt) {
		s.wakeAt = at
		_ = s.conn.SetReadDeadline(at) // fails on a closed socket, which has no reader
	}
}

// send sends q without blocking.
func (s *udpSocket) send(q *query) error {
	if s.sharedSocket == nil {
		return q.sendFrom(s.raw)
	}
	err := net.ErrClosed
	s.withFD(func(fd uintptr) { err = sendDatagram(fd, q.message()) })
	return err
}

// readBy returns the set that s is in; nil if there is none.
func (s *udpSocket) readBy() *pollset.Set {
	if s.sharedSocket == nil {
		return nil
	}
	return s.set
}

// control calls use with the descriptor, unless s is closed.
func (s *udpSocket) control(use func(fd uintptr)) {
	if s.sharedSocket != nil {
		s.withFD(use)
		return
	}
	_ = s.raw.Control(use)
}

// finished reports whether the socket can be closed.
func (s *udpSocket) finished() bool { return s.retired && s.inFlight == 0 }

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

// ReadReplies implements [pollset.Socket].
func (s *udpSocket) ReadReplies() (flush func()) {
	t := s.transport
	b := t.batches.Get().(*batch)
	defer t.batches.Put(b)
	var n int
	var err error
	s.withFD(func(fd uintptr) { n, err = b.read(fd) })
	if n > 0 {
		_, flush = t.deliver(s, b, n)
	}
	switch {
	case err == nil:
	case isRecoverable(err):
		t.handleErrorQueue(s)
	default:
		t.mu.Lock()
		defer t.mu.Unlock()
		s.failAll(err)
		t.retire(s)
	}
	return flush
}
