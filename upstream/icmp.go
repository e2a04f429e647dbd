package upstream

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// ICMP errors can be forged: any host on the path, or anyone who has discovered a local
// port, can send one, and the kernel then fails the socket's next operation. Therefore
// errors are read from the socket's error queue, which has the beginning of the datagram
// that each is about. An error that quotes a query in flight, including its ID, fails this
// query only. The exchange then asks the next server; the failure is never cached
// ([ErrLocal]), and only probes take a server out of service.
//
// Some hosts quote only the UDP header, the minimum of RFC 792. Such an error is a soft
// error (RFC 5927, 5.2) for all queries on the port: they continue, and other servers are
// asked as well, within the hedge budget. Anything else counts as unexpected.

// maxQuotedQuery is how much of a quoted datagram is read, in bytes: the longest query.
const maxQuotedQuery = headerLen + 255 + 4 + optLen

// enableErrorQueue makes the kernel queue ICMP errors for a socket. If that fails, every
// error is a soft error. An IPv6 socket accepts both options, but only its own has an effect.
func enableErrorQueue(fd uintptr) {
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVERR, 1)
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
}

// isRecoverable reports whether err, from a connected UDP socket, may stem from an ICMP
// message, which leaves the socket usable. Other errors mean that the socket itself is
// unusable.
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

// icmpError is an entry of a socket's error queue.
type icmpError struct {
	query []byte // the beginning of the datagram sent, as far as it is quoted
	errno syscall.Errno
	hard  bool // not transient, such as a missing route
}

// readErrorQueue reads the next error from fd's queue into buf; false if the queue is
// empty.
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

// isHardError reports whether the error is one that the kernel reports to sockets without
// an error queue, too: a closed port, or a firewall that rejects. An unreachable network or
// host may be transient (RFC 1122, 4.1.3.3).
func isHardError(errno syscall.Errno, origin, code uint8) bool {
	switch errno {
	case unix.ECONNREFUSED, unix.ENOPROTOOPT, unix.EHOSTDOWN, unix.ENONET, unix.EACCES:
		return true
	case unix.EHOSTUNREACH, unix.ENETUNREACH:
		// "Administratively prohibited" (RFC 1812, 5.2.7.1): network, host, filter.
		return origin == unix.SO_EE_ORIGIN_ICMP && (code == 9 || code == 10 || code == 13)
	}
	return false
}

// handleErrorQueue processes the error queue of s after a recoverable error.
func (t *udpTransport) handleErrorQueue(s *udpSocket) {
	var buf [maxQuotedQuery]byte
	var e icmpError
	ok, queued := true, false
	next := func(fd uintptr) { e, ok = readErrorQueue(fd, &buf) }
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		ok = false
		if s.control(next); !ok {
			break
		}
		queued = true
		t.handleICMPError(s, e)
	}
	if !queued {
		s.reportSoftError()
	}
}

// handleICMPError processes one error; t is locked.
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

// failQuoted fails the query that e quotes; false if there is none.
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

// reportSoftError tells all queries in flight on s that they may get no reply.
func (s *udpSocket) reportSoftError() {
	for _, q := range s.queries[:s.inFlight] {
		q.reportSoftError()
	}
}
