package upstream

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// An ICMP error comes from anywhere: from a host on the way, or from whoever has found out a
// port and says so in another's name. To the kernel the addresses and ports in it are
// enough to fail whatever the socket does next. So errors are taken from the socket's error
// queue, with the beginning of the datagram that each is about, and are believed as replies
// are: one that repeats a query in flight, its ID included, ends this query's flight, and
// no other. The race asks the next server then; what comes of it is never kept
// ([ErrLocal]), and only probes take a server out of service.
//
// Some hosts repeat no more than the UDP header (RFC 792 asks for that much). That is a hint
// as to all flights on the port: they go on, and another server is asked beside, as far as
// the budget allows (RFC 5927, 5.2, soft errors). Everything else is a stray.

// maxQuotedQuery is what is read of the datagram that an error is about: the longest query.
const maxQuotedQuery = headerLen + 255 + 4 + optLen

// enableErrorQueue has the kernel queue the ICMP errors for a socket. Where it can't, every error
// is a hint.
func enableErrorQueue(socket syscall.RawConn) {
	_ = socket.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVERR, 1) != nil {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
		}
	})
}

// isRecoverable reports whether err, of reading from or writing to a connected UDP socket, may be
// that of an ICMP message, after which the socket is as good as before. What isn't is of a
// socket that is none.
func isRecoverable(err error) bool {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return false
	}
	switch errno {
	case unix.EBADF, unix.ENOTSOCK, unix.EINVAL, unix.EFAULT, unix.ENOSYS:
		return false
	}
	return true
}

// icmpError is one error of a socket's queue.
type icmpError struct {
	query []byte // the beginning of what was sent, as far as it is repeated
	errno syscall.Errno
	hard  bool // not one that may pass, such as a route that is away for a moment
}

// readErrorQueue takes the next error from fd's queue, into buf; false if there is none.
func readErrorQueue(fd uintptr, buf *[maxQuotedQuery]byte) (e icmpError, ok bool) {
	var control [128]byte
	n, size, _, _, err := unix.Recvmsg(int(fd), buf[:], control[:], unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if err != nil {
		return icmpError{}, false
	}
	e.query = buf[:n]
	messages, err := unix.ParseSocketControlMessage(control[:size])
	if err != nil {
		return e, true
	}
	for _, m := range messages {
		ours := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVERR ||
			m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		if ours && len(m.Data) >= 8 { // struct sock_extended_err
			e.errno = syscall.Errno(binary.NativeEndian.Uint32(m.Data))
			e.hard = isHardError(e.errno, m.Data[4], m.Data[6])
		}
	}
	return e, true
}

// isHardError reports whether an error of this origin and code is one that the kernel tells
// sockets of that don't ask: a closed port, or a firewall that says so. That a network or
// host can't be reached may be over in a moment (RFC 1122, 4.1.3.3).
func isHardError(errno syscall.Errno, origin, code uint8) bool {
	switch errno {
	case unix.ECONNREFUSED, unix.ENOPROTOOPT, unix.EHOSTDOWN, unix.ENONET, unix.EACCES:
		return true
	case unix.EHOSTUNREACH, unix.ENETUNREACH:
		// "Administratively prohibited" (RFC 1812, 5.2.7.1): a network, a host, a filter.
		return origin == unix.SO_EE_ORIGIN_ICMP && (code == 9 || code == 10 || code == 13)
	}
	return false
}

// handleErrorQueue deals with the errors in the queue of p's socket, fd, after one that passes.
func (t *udpTransport) handleErrorQueue(s *udpSocket, fd uintptr) {
	var buf [maxQuotedQuery]byte
	t.mu.Lock()
	defer t.mu.Unlock()
	queued := false
	for e, ok := readErrorQueue(fd, &buf); ok; e, ok = readErrorQueue(fd, &buf) {
		queued = true
		t.handleICMPError(s, e)
	}
	if !queued {
		s.reportSoftError()
	}
}

// handleICMPError deals with one error; t is locked.
func (t *udpTransport) handleICMPError(s *udpSocket, e icmpError) {
	switch {
	case !e.hard:
	case len(e.query) < 2:
		s.reportSoftError()
	case s.failQuoted(e), slices.Contains(s.orphanIDs, binary.BigEndian.Uint16(e.query)):
	default:
		t.countUnexpected(s)
	}
}

// failQuoted ends the flight of the query that r is about; false if there is none.
func (s *udpSocket) failQuoted(e icmpError) bool {
	i := s.indexOf(binary.BigEndian.Uint16(e.query))
	if i < 0 {
		return false
	}
	sent := s.queries[i].message()
	if n := min(len(sent), len(e.query)); !bytes.Equal(sent[:n], e.query[:n]) {
		return false
	}
	s.complete(i, localError{fmt.Errorf("%w, as an ICMP message says", e.errno)})
	return true
}

// reportSoftError tells all races with a flight on p that it may get no reply.
func (s *udpSocket) reportSoftError() {
	for _, q := range s.queries[:s.inFlight] {
		q.reportSoftError()
	}
}

// reportSoftError is called while c is in flight. It does not block.
func (q *query) reportSoftError() {
	if q.wakeup == nil {
		return
	}
	q.softError.Store(true)
	select {
	case q.wakeup <- struct{}{}:
	default:
	}
}

// hedgeSoftErrors asks other servers, as far as the budget allows, beside those whose flights may
// get no reply.
func (x *exchange) hedgeSoftErrors(now time.Time) {
	for _, q := range x.queries[:x.inFlight] {
		if q.softError.Swap(false) && !q.attempt.hedged {
			q.attempt.hedged = x.hedge(q, now)
		}
	}
}
