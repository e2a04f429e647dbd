package fastpath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
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
	mu      sync.Mutex
	numbers *ebpf.Map
	free    *ebpf.Map
	states  []programClientState // memory shared with the program
	// counts has the counters of all clients by number, for each stripe; memory shared with the
	// program. reported are their sums at the last report.
	counts    []programClientCount
	reported  []programClientCount
	reporter  ClientReporter // nil: none
	released  []uint32       // numbers that the program can no longer find
	lastSweep time.Duration
}

// clientStripes returns the number of sets of counters: a power of two, so that the program finds a
// processor's set by a mask.
func clientStripes() int {
	n := 1
	for n < min(runtime.NumCPU(), int(programBoundCLIENT_STRIPES)) {
		n *= 2
	}
	return n
}

// loadClients makes all client numbers available to the program.
func (p *Program) loadClients() error {
	states, err := mapArray[programClientState](p, p.objects.ClientStates)
	if err != nil {
		return err
	}
	counts, err := mapArray[programClientCount](p, p.objects.ClientCounts)
	if err != nil {
		return err
	}
	p.clients.numbers, p.clients.free, p.clients.states = p.objects.Clients, p.objects.FreeClients, states
	p.clients.counts, p.clients.reported = counts, make([]programClientCount, len(states))
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
		c.report(n)
		c.reset(n)
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

// reportAll reports the answers of all clients since the last report.
func (c *clients) reportAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := range c.states {
		if atomic.LoadUint64(&c.states[n].Place) != 0 {
			c.report(uint32(n))
		}
	}
}

// reportOne implements [Program.ReportClient].
func (c *clients) reportOne(addr netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var n uint32
	if err := c.numbers.Lookup(programClient{Addr: listenerKey(netip.AddrPortFrom(addr, 0)).Addr}, &n); err == nil {
		c.report(n)
	}
}

// report reports the answers of one client since the last report.
func (c *clients) report(n uint32) {
	var sum programClientCount
	for at := int(n); at < len(c.counts); at += len(c.states) {
		sum.NoError += atomic.LoadUint32(&c.counts[at].NoError)
		sum.NxDomain += atomic.LoadUint32(&c.counts[at].NxDomain)
		sum.Waste += atomic.LoadUint32(&c.counts[at].Waste)
	}
	if sum == c.reported[n] {
		return
	}
	before := c.reported[n]
	c.reported[n] = sum
	if c.reporter == nil {
		return
	}
	waste := uint64(sum.Waste - before.Waste) // the differences are right when counters wrap around
	c.reporter.ReportClient(clientAddr(&c.states[n].Client), ClientAnswers{
		NoError: uint64(sum.NoError - before.NoError), NXDomain: uint64(sum.NxDomain-before.NxDomain) + waste, Waste: waste,
	})
}

// reset sets the counters of a number that the program can't find to zero.
func (c *clients) reset(n uint32) {
	for at := int(n); at < len(c.counts); at += len(c.states) {
		c.counts[at] = programClientCount{}
	}
	c.reported[n] = programClientCount{}
}

// of implements [Program.ClientsOf].
func (c *clients) of(ifindex int) (list []netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	const mask = 1<<programBoundSTAMP_BITS - 1
	for n := range c.states {
		if place := atomic.LoadUint64(&c.states[n].Place); place != 0 && place&mask == uint64(ifindex)&mask {
			list = append(list, clientAddr(&c.states[n].Client))
		}
	}
	return list
}

// clientAddr returns the address of a client, the inverse of listenerKey.
func clientAddr(c *programClient) netip.Addr {
	var b [16]byte
	for i, word := range c.Addr {
		binary.LittleEndian.PutUint32(b[4*i:], word)
	}
	return netip.AddrFrom16(b).Unmap()
}

// stampTime returns when the program has made a stamp, or up to 134 ms earlier.
func stampTime(stamp uint64) time.Duration {
	return time.Duration(stamp >> programBoundSTAMP_BITS << programBoundSTAMP_TIME)
}
