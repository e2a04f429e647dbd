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
	// jobTick is how often a job sends the due queries: ten at a rate of ten thousand a second, as many as one look-up
	// with a search path makes.
	jobTick = time.Millisecond
	// lateTick is how often a sender looks whether it has to end, and for unanswered queries once it has sent all. The
	// kernel says when an answer came.
	lateTick = 20 * time.Millisecond
	// jobMaxLag is how late a query of a job may be sent. Later ones are skipped: a burst would overflow socket buffers.
	jobMaxLag = 20 * time.Millisecond
	// jobBuffer is the receive buffer asked for by a job: a socket has a few answers under way.
	jobBuffer = 1 << 18
	// maxSends is how often a query is sent that the kernel discards because a queue is full, a millisecond apart.
	maxSends = 1000
	// maxAnswer is that of the largest answer without EDNS.
	maxAnswer = 512
)

// sender sends single queries over UDP and records what becomes of each. It belongs to one goroutine, which it locks to its
// thread.
type sender struct {
	// Queries come from sockets sockets in turn, each of which is connected to one of the servers and replaced by one with
	// another port after perSocket queries.
	servers            []netip.AddrPort
	sockets, perSocket int
	buffer             int // receive buffer of a socket in bytes
	arrivals           arrivals
	// tick is the least time between two turns, in which all due queries are sent. Queries that are late by more than
	// maxLag are skipped; 0: none is.
	tick, maxLag time.Duration
	timeout      time.Duration // for an answer
	// name returns the name of the n-th query, and before, unless it is nil, is called before it is sent. over reports whether
	// sending ends with n queries.
	name   func(n int) string
	before func(n int)
	over   func(n int) bool
	// classify returns the outcome for a message with the ID of the n-th query; false if it is no reply.
	classify func(n int, query, msg []byte) (Outcome, bool)
	// refusedFails says that a query which reaches no socket is an error.
	refusedFails bool

	epoll    int
	events   [256]unix.EpollEvent
	ports    []*sourcePort // in use, in turn
	replaced []*sourcePort // oldest first
	byFD     map[int]*sourcePort
	records  []record
	report   *Report
	buf      [maxAnswer]byte
}

// sourcePort is a UDP socket.
type sourcePort struct {
	fd         int
	replacedAt int64          // 0 while it is in use
	queries    []pendingQuery // by ID
}

// pendingQuery is a query of a socket: its number and its bytes.
type pendingQuery struct {
	n     int
	query []byte
}

// run sends queries until over says so, and waits for answers. ctx ends both, with its error.
func (s *sender) run(ctx context.Context) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s.byFD = map[int]*sourcePort{}
	if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	defer s.close()
	for i := range s.sockets {
		p, err := s.open(s.servers[i%len(s.servers)])
		if err != nil {
			return err
		}
		s.ports = append(s.ports, p)
	}
	backlog := backlogDrops()
	if err := s.sendAll(ctx); err != nil {
		return err
	}
	for end := time.Now().Add(s.timeout); time.Now().Before(end) && s.hasPending(); {
		s.receive(lateTick)
		if err := s.failure(ctx); err != nil {
			return err
		}
	}
	for _, p := range s.byFD {
		s.report.Dropped += socketDrops(p.fd)
	}
	s.report.Backlog = backlogDrops() - backlog
	return nil
}

// failure returns why the run ends before its time.
func (s *sender) failure(ctx context.Context) error {
	if s.refusedFails && s.report.Refused > 0 {
		return fmt.Errorf("asking %s: %w", s.servers[0], unix.ECONNREFUSED)
	}
	return ctx.Err()
}

// sendAll sends queries when they are due.
func (s *sender) sendAll(ctx context.Context) error {
	for due := time.Now(); !s.over(len(s.records)); {
		now := time.Now()
		for ; s.maxLag > 0 && now.Sub(due) > s.maxLag; due = due.Add(s.arrivals.next()) {
			s.report.Skipped++
		}
		for ; !due.After(now) && !s.over(len(s.records)); due = due.Add(s.arrivals.next()) {
			if err := s.send(); err != nil {
				return err
			}
		}
		s.receive(min(max(s.tick, time.Until(due)), lateTick))
		s.closeExpired()
		if err := s.failure(ctx); err != nil {
			return err
		}
	}
	return nil
}

// hasPending reports whether a query that has not timed out is unanswered.
func (s *sender) hasPending() bool {
	oldest := time.Now().Add(-s.timeout).UnixNano()
	for i := len(s.records) - 1; i >= 0 && s.records[i].asked > oldest; i-- {
		if s.records[i].outcome == Lost {
			return true
		}
	}
	return false
}

// send sends the next query.
func (s *sender) send() error {
	n := len(s.records)
	i := n % len(s.ports)
	p := s.ports[i]
	if len(p.queries) == s.perSocket {
		next, err := s.open(s.servers[i%len(s.servers)])
		if err != nil {
			return err
		}
		p.replacedAt = time.Now().UnixNano()
		s.replaced = append(s.replaced, p)
		s.ports[i], p = next, next
	}
	if s.before != nil {
		s.before(n)
	}
	q := appendQuery(nil, s.name(n))
	binary.BigEndian.PutUint16(q, uint16(len(p.queries)))
	p.queries = append(p.queries, pendingQuery{n, q})
	s.records = append(s.records, record{asked: time.Now().UnixNano(), outcome: Lost})
	s.sendPacket(p.fd, q)
	return nil
}

// sendPacket sends a query, again if an earlier ICMP error was reported instead, or if the kernel
// discarded it because a queue was full. After another error the query is lost.
func (s *sender) sendPacket(fd int, q []byte) {
	refused := 0
	for range maxSends {
		switch errno := send(fd, q, nil); {
		case errno == unix.ECONNREFUSED && refused < 3:
			refused++
			s.report.Refused++
		case errno == unix.ENOBUFS:
			s.report.Discarded++
			s.receive(jobTick)
		default:
			return
		}
	}
}

// receive waits for answers for at most d, and reads all of them.
func (s *sender) receive(d time.Duration) {
	// Unlike epoll_wait(2) of all kernels in use, ppoll(2) waits for less than a millisecond. A signal ends the wait early.
	wait := unix.NsecToTimespec(max(0, d).Nanoseconds())
	_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(s.epoll), Events: unix.POLLIN}}, &wait, nil)
	for _, e := range s.events[:look(s.epoll, s.events[:])] {
		p := s.byFD[int(e.Fd)]
		if p == nil {
			continue
		}
		for s.receiveOne(p) {
		}
		if e.Events&unix.EPOLLERR != 0 {
			s.clearErrors(p.fd)
		}
	}
}

// receiveOne reads a message and reports whether there was one.
func (s *sender) receiveOne(p *sourcePort) bool {
	n, at, errno := receiveStamped(p.fd, s.buf[:], nil)
	if errno == unix.ECONNREFUSED {
		s.report.Refused++
		return true
	}
	if errno != 0 {
		return false
	}
	if n < headerSize {
		return true
	}
	id := int(binary.BigEndian.Uint16(s.buf[:]))
	if id >= len(p.queries) {
		return true
	}
	q := p.queries[id]
	r := &s.records[q.n]
	if r.received != 0 || int64(at)-r.asked > int64(s.timeout) {
		return true
	}
	if outcome, ok := s.classify(q.n, q.query, s.buf[:n]); ok {
		r.received, r.outcome = int64(at), outcome
	}
	return true
}

// clearErrors empties the error queue of a socket. Its errors were also returned by sending or receiving.
func (s *sender) clearErrors(fd int) {
	for {
		if _, _, _, _, err := unix.Recvmsg(fd, s.buf[:], nil, unix.MSG_ERRQUEUE); err != nil {
			return
		}
	}
}

// closeExpired closes replaced sockets whose queries have timed out.
func (s *sender) closeExpired() {
	oldest := time.Now().Add(-s.timeout).UnixNano()
	for len(s.replaced) > 0 && s.replaced[0].replacedAt < oldest {
		s.closePort(s.replaced[0])
		s.replaced = s.replaced[1:]
	}
}

func (s *sender) closePort(p *sourcePort) {
	s.report.Dropped += socketDrops(p.fd)
	delete(s.byFD, p.fd)
	unix.Close(p.fd)
}

func (s *sender) close() {
	for _, p := range s.byFD {
		unix.Close(p.fd)
	}
	unix.Close(s.epoll)
}

// open opens a socket with a new port.
func (s *sender) open(to netip.AddrPort) (*sourcePort, error) {
	fd, err := open(netip.Addr{}, to, s.buffer)
	if err != nil {
		return nil, fmt.Errorf("load: asking %s: %w", to, err)
	}
	if err := errors.Join(stamp(fd, true), reportDiscarded(fd, to.Addr()), watch(s.epoll, fd)); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("load: asking %s: %w", to, err)
	}
	p := &sourcePort{fd: fd}
	s.byFD[fd] = p
	return p, nil
}

// reportDiscarded makes sending to the address return ENOBUFS if the kernel has discarded the packet. Without it the
// kernel only counts that.
func reportDiscarded(fd int, to netip.Addr) error {
	if to.Is4() {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
}
