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
	// clientIdle is how long a client that doesn't ask keeps its number. Nothing is lost with it
	// but that the agent answers once more. It is many times as long as the program remembers
	// anything; pods that start and end every few seconds don't fill the table.
	clientIdle = time.Minute
	// sweepInterval is the least time between two looks for such clients. A number is given again
	// only at the look after the one that took it away: no packet takes as long.
	sweepInterval = 10 * time.Second
)

// clients is the agent's side of who may be answered.
type clients struct {
	mu        sync.Mutex
	numbers   *ebpf.Map
	free      *ebpf.Map
	states    []programClientState // shared with the program
	released  []uint32             // numbers that nobody finds any more
	lastSweep time.Duration
}

// loadClients gives all numbers to the program.
func (p *Program) loadClients() error {
	states, err := mapArray[programClientState](p, p.objects.ClientStates)
	if err != nil {
		return err
	}
	p.clients.numbers, p.clients.free, p.clients.states = p.objects.Clients, p.objects.FreeClients, states
	for n := range states {
		if err := p.clients.free.Put(nil, uint32(n)); err != nil {
			return fmt.Errorf("making room for clients: %w", err)
		}
	}
	return nil
}

// sweep takes their numbers from clients that no longer ask.
func (c *clients) sweep(now time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now < c.lastSweep+sweepInterval {
		return
	}
	c.lastSweep = now
	for _, n := range c.released {
		c.states[n] = programClientState{}
		_ = c.free.Put(nil, n) // there is room for all numbers
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

// stampTime is when a stamp of the program was made, or up to 134 ms earlier.
func stampTime(stamp uint64) time.Duration {
	return time.Duration(stamp >> programBoundSTAMP_BITS << programBoundSTAMP_TIME)
}
