package server

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/clock"
)

// overloadBatches is how many full batches in a row mean that one reader does not keep
// up: 512 packets, a tenth of what its socket holds, some 2 ms of work. With a
// fourth of it, a burst of what one pod asks at its start would call for help.
const overloadBatches = 32

// reuseportBalancer tells the kernel which of the sockets that share an address gets the
// next packet. While one reader can do the work it gets all of it: one thread
// that is awake costs less than many that take turns. When it no longer keeps up,
// packets are dealt out at random over all readers, so that neither one busy
// client nor an unlucky hash leaves a core idle while another drowns.
//
// A nil steering, and one the kernel does not take, leave it to the kernel's hash
// of the client's address and port.
type reuseportBalancer struct {
	fd          int
	n           int
	spreadSince atomic.Int64 // since when all readers help, on the path's clock; 0 if one does the work
}

// balance steers the ports of one address: those that can say when they need help as is
// said at [reuseportBalancer], others by lot. Without a program the kernel would also deal packets
// to a socket that is open only for a late reply.
func balance(ports []udpSocket) {
	if len(ports) == 0 {
		return
	}
	if p, ok := ports[0].(*polledSocket); ok {
		_ = withFD(p.conn, func(fd int) error { return (&reuseportBalancer{fd: fd}).attach(len(ports)) })
		return
	}
	first := ports[0].(*blockingSocket)
	if first.noMmsg || len(ports) == 1 {
		// One packet at a time does not tell whether the reader keeps up.
		_ = (&reuseportBalancer{fd: first.fd}).attach(len(ports))
		return
	}
	s := &reuseportBalancer{fd: first.fd, n: len(ports)}
	if s.attach(1) != nil {
		return
	}
	for _, p := range ports {
		p.(*blockingSocket).balancer = s
	}
}

// spread has all readers help.
func (s *reuseportBalancer) spread() {
	if s != nil && s.spreadSince.CompareAndSwap(0, int64(max(clock.Now(), 1))) {
		_ = s.attach(s.n)
	}
}

// concentrate leaves the work to one reader again, if all were to help while one had
// nothing to do from then on.
func (s *reuseportBalancer) concentrate(then time.Duration) {
	if s == nil {
		return
	}
	if since := s.spreadSince.Load(); since > 0 && since <= int64(then) && s.spreadSince.CompareAndSwap(since, 0) {
		_ = s.attach(1)
	}
}

// randomOffset is where a classic BPF program reads a random number (linux/filter.h:
// SKF_AD_OFF + SKF_AD_RANDOM).
const randomOffset = ^uint32(0x1000-56) + 1

// attach deals packets out over the first n sockets.
func (s *reuseportBalancer) attach(n int) error {
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: randomOffset},
		{Code: unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K, K: uint32(n)},
		{Code: unix.BPF_RET | unix.BPF_A},
	}
	return unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}
