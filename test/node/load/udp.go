package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// tick is how often the loop sends the due queries: ten at a rate of ten thousand a second,
	// as many as one look-up with a search path makes.
	tick = time.Millisecond
	// lateTick is how often the loop checks for unanswered queries once it has sent all. The kernel
	// says when an answer came.
	lateTick = 20 * time.Millisecond
	// maxLag is how late a query may be sent. Later ones are skipped: a burst would overflow
	// socket buffers.
	maxLag = 20 * time.Millisecond
	// receiveBuffer is the receive buffer asked for: a socket has a few answers under way.
	receiveBuffer = 1 << 18
	// maxSends is how often a query is sent that the kernel discards because a queue is full, a
	// tick apart.
	maxSends = 1000
	// maxAnswer is that of the largest answer without EDNS.
	maxAnswer = 512
)

// socket is a UDP socket with its own source port.
type socket struct {
	fd         int
	replacedAt int64          // when it was left, 0 while it is in use
	queries    []pendingQuery // by ID
}

// pendingQuery is a question of a socket: its number and its bytes.
type pendingQuery struct {
	n     int
	query []byte
}

// udpClient sends queries over UDP. It belongs to one goroutine.
type udpClient struct {
	Job
	epoll    int
	socks    []*socket // in use, in turn
	replaced []*socket // replaced, oldest first
	byFD     map[int]*socket
	records  []record
	report   *Report
	buf      [maxAnswer]byte
	oob      [64]byte
}

// runUDP sends queries until the job's Duration is over or ctx is done, and then waits for answers.
func (j Job) runUDP(ctx context.Context, r *Report) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l := &udpClient{Job: j, byFD: map[int]*socket{}, report: r, records: make([]record, 0, min(1<<20, int(j.Duration.Seconds()*float64(j.Rate))+1))}
	var err error
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	defer l.close()
	for i := range j.Sockets {
		s, err := l.open(j.Servers[i%len(j.Servers)])
		if err != nil {
			return err
		}
		l.socks = append(l.socks, s)
	}
	backlog := backlogDrops()
	if err := l.run(ctx); err != nil {
		return err
	}
	for _, s := range l.byFD {
		r.Dropped += socketDrops(s.fd)
	}
	r.Backlog = backlogDrops() - backlog
	r.addUDP(l.records)
	return nil
}

// run sends queries and then waits for answers.
func (l *udpClient) run(ctx context.Context) error {
	every := time.Second / time.Duration(l.Rate)
	start := time.Now()
	due := start
	for time.Since(start) < l.Duration && ctx.Err() == nil {
		now := time.Now()
		for ; now.Sub(due) > maxLag; due = due.Add(every) {
			l.report.Skipped++
		}
		for ; !due.After(now); due = due.Add(every) {
			if err := l.send(); err != nil {
				return err
			}
		}
		l.receive(tick)
		l.closeExpired()
	}
	for end := time.Now().Add(l.Timeout); time.Now().Before(end) && l.hasPending(); {
		l.receive(lateTick)
	}
	return nil
}

// hasPending reports whether a query that has not timed out is unanswered.
func (l *udpClient) hasPending() bool {
	oldest := time.Now().Add(-l.Timeout).UnixNano()
	for i := len(l.records) - 1; i >= 0 && l.records[i].asked > oldest; i-- {
		if l.records[i].outcome == Lost {
			return true
		}
	}
	return false
}

// send sends the next query.
func (l *udpClient) send() error {
	n := len(l.records)
	i := n % len(l.socks)
	s := l.socks[i]
	if len(s.queries) == l.QueriesPerSocket {
		next, err := l.open(l.Servers[n%len(l.socks)%len(l.Servers)])
		if err != nil {
			return err
		}
		s.replacedAt = time.Now().UnixNano()
		l.replaced = append(l.replaced, s)
		l.socks[i], s = next, next
	}
	q := appendQuery(nil, l.name(n))
	binary.BigEndian.PutUint16(q, uint16(len(s.queries)))
	s.queries = append(s.queries, pendingQuery{n, q})
	l.records = append(l.records, record{asked: time.Now().UnixNano(), outcome: Lost})
	l.sendPacket(s.fd, q)
	return nil
}

// sendPacket sends a query, again if an earlier ICMP error was reported instead, or if the kernel
// discarded it because a queue was full. After another error the query is lost.
func (l *udpClient) sendPacket(fd int, q []byte) {
	refused := 0
	for range maxSends {
		_, err := unix.SendmsgN(fd, q, nil, nil, 0)
		switch {
		case errors.Is(err, unix.ECONNREFUSED) && refused < 3:
			refused++
			l.report.Refused++
		case errors.Is(err, unix.ENOBUFS):
			l.report.Discarded++
			l.receive(tick)
		default:
			return
		}
	}
}

// receive waits for answers for at most d, and reads all of them.
func (l *udpClient) receive(d time.Duration) {
	var events [256]unix.EpollEvent
	n, err := unix.EpollWait(l.epoll, events[:], int(d/time.Millisecond))
	if err != nil {
		return // interrupted by a signal
	}
	for _, e := range events[:n] {
		s := l.byFD[int(e.Fd)]
		if s == nil {
			continue
		}
		for l.receiveOne(s) {
		}
		if e.Events&unix.EPOLLERR != 0 {
			l.clearErrors(s.fd)
		}
	}
}

// receiveOne reads a reply and reports whether there was one.
func (l *udpClient) receiveOne(s *socket) bool {
	n, oobn, _, _, err := unix.Recvmsg(s.fd, l.buf[:], l.oob[:], 0)
	if errors.Is(err, unix.ECONNREFUSED) {
		l.report.Refused++
		return true
	}
	if err != nil {
		return false
	}
	if n < headerSize {
		return true
	}
	id := int(binary.BigEndian.Uint16(l.buf[:]))
	if id >= len(s.queries) {
		return true
	}
	a := s.queries[id]
	fate, ok := l.classify(a.query, l.buf[:n])
	r := &l.records[a.n]
	came := receiveTime(l.oob[:oobn])
	if !ok || r.received != 0 || came-r.asked > int64(l.Timeout) {
		return true
	}
	r.received, r.outcome = came, fate
	return true
}

// clearErrors empties the error queue of a socket. Its errors were also returned by sending or receiving.
func (l *udpClient) clearErrors(fd int) {
	for {
		if _, _, _, _, err := unix.Recvmsg(fd, l.buf[:], nil, unix.MSG_ERRQUEUE); err != nil {
			return
		}
	}
}

// receiveTime returns the kernel's timestamp of a packet, or the current time.
func receiveTime(oob []byte) int64 {
	if list, err := unix.ParseSocketControlMessage(oob); err == nil {
		for _, m := range list {
			if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS && len(m.Data) >= 16 {
				return int64(binary.NativeEndian.Uint64(m.Data))*int64(time.Second) + int64(binary.NativeEndian.Uint64(m.Data[8:]))
			}
		}
	}
	return time.Now().UnixNano()
}

// closeExpired closes replaced sockets whose queries have timed out.
func (l *udpClient) closeExpired() {
	oldest := time.Now().Add(-l.Timeout).UnixNano()
	for len(l.replaced) > 0 && l.replaced[0].replacedAt < oldest {
		l.closeSocket(l.replaced[0])
		l.replaced = l.replaced[1:]
	}
}

func (l *udpClient) closeSocket(s *socket) {
	l.report.Dropped += socketDrops(s.fd)
	delete(l.byFD, s.fd)
	unix.Close(s.fd)
}

func (l *udpClient) close() {
	for _, s := range l.byFD {
		unix.Close(s.fd)
	}
	unix.Close(l.epoll)
}

// open opens a socket with a new port.
func (l *udpClient) open(to netip.AddrPort) (*socket, error) {
	family, sa := sockaddr(to)
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("load: opening a socket: %w", err)
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		reportErrors(fd, family),
		unix.Connect(fd, sa),
		unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}),
	)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("load: asking %s: %w", to, err)
	}
	s := &socket{fd: fd}
	l.byFD[fd] = s
	return s, nil
}

// reportErrors makes sending return ENOBUFS if the kernel has discarded the packet. Without it the
// kernel only counts that.
func reportErrors(fd, family int) error {
	if family == unix.AF_INET {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
}

func sockaddr(to netip.AddrPort) (family int, sa unix.Sockaddr) {
	if to.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
}
