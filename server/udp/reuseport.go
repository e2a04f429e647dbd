package udp

import (
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/socket"
)

// overloadBatches is how many full batches in a row show that one reader cannot keep up:
// 512 packets, a tenth of a socket's buffer and about 2 ms of work. A quarter of it would
// react to the queries that a single pod sends when it starts.
const overloadBatches = 32

// reuseportBalancer controls, by a classic BPF program, which of the sockets that share
// an address receives the next packet. While one reader can do the work, it receives all
// packets: one thread that stays awake costs less than several that take turns. When it
// cannot keep up, packets go to a random socket, so that neither one busy client nor an
// unlucky hash leaves one core idle and another overloaded.
//
// A nil reuseportBalancer does nothing. Without a program the kernel chooses by a hash of
// the client's address and port. It is safe for concurrent use.
type reuseportBalancer struct {
	fd          int
	n           int
	before      atomic.Uint32 // the sockets of other processes that were bound before
	spreadSince atomic.Int64  // since when all readers help, on the path's clock; 0 if one does the work
}

// Balance attaches a program to the sockets of one address. Blocking sockets get a
// reuseportBalancer; others, whose readers cannot tell that they are overloaded, get
// packets at random. There is always a program: the kernel's own hash would also deliver
// packets to a socket that is open only to send a late reply.
//
// before is the number of sockets of other processes that were bound to the address before. They get no packets any
// more: a process that hangs, and can't hand over, would keep all of them. When they are closed, the kernel chooses
// by a hash until [OthersClosed].
func Balance(ports []Socket, before int) {
	if len(ports) == 0 {
		return
	}
	s := &reuseportBalancer{n: len(ports)}
	s.before.Store(uint32(before))
	if p, ok := ports[0].(*polledSocket); ok {
		_ = socket.WithFD(p.conn, func(fd int) error { s.fd = fd; return s.attach(s.n) })
		return
	}
	first := ports[0].(*blockingSocket)
	s.fd = first.fd
	if first.noMmsg || len(ports) == 1 {
		// Without batches the reader cannot tell whether it keeps up.
		_ = s.attach(s.n)
		return
	}
	if s.attach(1) != nil {
		return
	}
	for _, p := range ports {
		p.(*blockingSocket).balancer = s
	}
}

// OthersClosed undoes the before of [Balance] while the sockets are read.
func OthersClosed(ports []Socket) {
	p, ok := ports[0].(*blockingSocket)
	if !ok || p.balancer == nil {
		Balance(ports, 0)
		return
	}
	p.balancer.before.Store(0)
	n := 1
	if p.balancer.spreadSince.Load() > 0 {
		n = p.balancer.n
	}
	_ = p.balancer.attach(n)
}

// spread distributes packets over all sockets.
func (s *reuseportBalancer) spread() {
	if s != nil && s.spreadSince.CompareAndSwap(0, int64(max(clock.Now(), 1))) {
		_ = s.attach(s.n)
	}
}

// concentrate sends all packets to one reader again, if they have been spread since
// before then. The caller has had no packets since then, on the path's clock.
func (s *reuseportBalancer) concentrate(then time.Duration) {
	if s == nil {
		return
	}
	if since := s.spreadSince.Load(); since > 0 && since <= int64(then) && s.spreadSince.CompareAndSwap(since, 0) {
		_ = s.attach(1)
	}
}

// attach distributes packets at random over the first n sockets behind those of others.
func (s *reuseportBalancer) attach(n int) error {
	return socket.Distribute(s.fd, int(s.before.Load()), n)
}
