package fastpath

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
)

const (
	// clientIdle is after how long without a query a client loses its number. That costs the
	// client one answer from the agent. It is much longer than the program remembers anything
	// and short enough for pods that start and end every few seconds not to fill the table.
	clientIdle = time.Minute
	// sweepInterval is the least time between two sweeps. A number is reused only one sweep
	// after it was released, when no packet can still be using it.
	sweepInterval = 10 * time.Second
)

// clients is the agent's side of the clients that the program knows. It is safe for
// concurrent use.
type clients struct {
	mu        sync.Mutex
	numbers   *ebpf.Map
	free      *ebpf.Map
	states    []programClientState // memory shared with the program
	released  []uint32             // numbers that the program can no longer find
	lastSweep time.Duration
}

// loadClients makes all client numbers available to the program.
func (p *Program) loadClients() error {
	states, err := mapArray[programClientState](p, p.objects.ClientStates)
	if err != nil {
		return err
	}
	p.clients.numbers, p.clients.free, p.clients.states = p.objects.Clients, p.objects.FreeClients, states
	for n := range states {
		if err := p.clients.free.Put(nil, uint32(n)); err != nil {
			return fmt.Errorf("initialising the client numbers: %w", err)
		}
	}
	return nil
}

// sweep releases the numbers of clients that no longer ask. now is on the kernel's clock.
func (c *clients) sweep(now time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now < c.lastSweep+sweepInterval {
		return
	}
	c.lastSweep = now
	for _, n := range c.released {
		c.states[n] = programClientState{}
		_ = c.free.Put(nil, n) // the queue has room for all numbers
	}
	c.released = c.released[:0]
	for n := range c.states {
		s := &c.states[n]
		place := atomic.LoadUint64(&s.Place)
		if place == 0 || now < stampTime(place)+clientIdle {
			continue
		}
		if err := c.numbers.Delete(&s.Client); err == nil || errors.Is(err, ebpf.ErrKeyNotExist) {
			c.released = append(c.released, uint32(n))
		}
	}
}

// stampTime returns when the program has made a stamp, or up to 134 ms earlier.
func stampTime(stamp uint64) time.Duration {
	return time.Duration(stamp >> programBoundSTAMP_BITS << programBoundSTAMP_TIME)
}
