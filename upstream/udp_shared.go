package upstream

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/pollset"
)

// sharedSocket is the part of a udpSocket whose replies are read by a goroutine that also reads clients' queries.
type sharedSocket struct {
	set       *pollset.Set
	transport *udpTransport

	mu sync.Mutex
	fd int // -1 when it is closed
}

// expect says that n more replies are expected on s, whose part c is; the lock of the transport is held.
func (c *sharedSocket) expect(s *udpSocket, n int) {
	c.set.Expect(n)
	switch {
	case n > 0 && s.inFlight == n:
		c.set.Add(s)
	case s.inFlight == 0:
		c.set.Remove(s)
	}
}

// withFD calls use with the descriptor, which stays open meanwhile, unless it is closed.
func (c *sharedSocket) withFD(use func(fd uintptr)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd >= 0 {
		use(uintptr(c.fd))
	}
}

func (c *sharedSocket) close() {
	c.withFD(func(fd uintptr) {
		_ = unix.Close(int(fd))
		c.fd = -1 // under the same lock: another file may have the number next
	})
}

// FD implements [pollset.Socket].
func (c *sharedSocket) FD() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fd
}
