package kernelpath

import (
	"encoding/binary"
	"errors"
	"maps"
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
	// maxIdle is twenty times as many addresses as a node has pods. Pods can forge more.
	maxIdle = 2048
)

// clients is the agent's side of the clients that the program knows. It is safe for
// concurrent use.
type clients struct {
	mu      sync.Mutex
	numbers *ebpf.Map
	free    *ebpf.Map
	states  []programClientState // memory shared with the program
	shared  *programState        // memory shared with the program
	// counts has the counters of all clients by number, for each stripe; memory shared with the
	// program. reported are their sums at the last report.
	counts   []programClientCount
	reported []programClientCount
	reporter ClientReporter // nil: none
	limited  limitedCounts
	released []uint32 // numbers that the program can no longer find
	// idle has the interfaces on which clients that have lost their number asked last, of maxIdle
	// clients at most.
	idle      map[programClient]int
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
		if place == 0 || now < stampTime(place)+clientIdle || !c.limited.full(uint32(n), now) {
			continue
		}
		if err := c.numbers.Delete(&s.Client); err == nil || errors.Is(err, ebpf.ErrKeyNotExist) {
			c.released = append(c.released, uint32(n))
			c.noteIdle(s.Client, stampNumber(place))
		}
	}
	atomic.AddUint64(&c.shared.Releases, 1) // the program forgets numbers that it has looked up before
}

// noteIdle records on which interface a client that loses its number asked last.
func (c *clients) noteIdle(client programClient, ifindex int) {
	if c.idle == nil {
		c.idle = make(map[programClient]int)
	}
	if len(c.idle) >= maxIdle {
		for other := range c.idle { // any
			delete(c.idle, other)
			break
		}
	}
	c.idle[client] = ifindex
}

// forgetIdle forgets the idle clients of an interface.
func (c *clients) forgetIdle(ifindex int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.idle, func(_ programClient, at int) bool { return at == ifindex })
}

// reportAll reports the answers and the dropped queries of all clients since the last report. limited is how
// many the program has dropped in all.
func (c *clients) reportAll(limited uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := range c.states {
		if atomic.LoadUint64(&c.states[n].Place) != 0 {
			c.report(uint32(n))
		}
	}
	if c.reporter != nil {
		c.limited.takeSenders(limited, func(client *programClient, n uint64) { c.reporter.ReportLimited(clientAddr(client), n) })
	}
}

// reportOne implements [Program.ReportClient].
func (c *clients) reportOne(addr netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n, ok := c.number(newClient(addr)); ok {
		c.report(n)
	}
}

// setGroup implements [Program.SetGroup]. A number that the program finds under the lock stays the client's, because only
// sweep takes it away.
func (c *clients) setGroup(addr netip.Addr, g *Group) {
	if !c.mu.TryLock() {
		return
	}
	defer c.mu.Unlock()
	client := newClient(addr)
	if n, ok := c.number(client); ok && c.states[n].Client == client {
		atomic.StoreUint64(&c.states[n].Group, g.Mark.Value<<32|uint64(g.Number))
	}
}

// number returns the number of a client; ok is false if it has none.
func (c *clients) number(client programClient) (n uint32, ok bool) {
	err := c.numbers.Lookup(&client, &n)
	return n, err == nil
}

// report reports the answers and the dropped queries of one client since the last report.
func (c *clients) report(n uint32) {
	if limited := c.limited.take(n); limited > 0 && c.reporter != nil {
		c.reporter.ReportLimited(clientAddr(&c.states[n].Client), limited)
	}
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
	c.limited.reset(n)
}

// of implements [Program.ClientsOf].
func (c *clients) of(ifindex int) (list []netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := range c.states {
		s := &c.states[n]
		if place := atomic.LoadUint64(&s.Place); place == 0 || stampNumber(place) != ifindex {
			continue
		}
		if now, ok := c.number(s.Client); ok && now == uint32(n) { // it has not lost this number
			list = append(list, clientAddr(&s.Client))
		}
	}
	for client, at := range c.idle {
		if at != ifindex {
			continue
		}
		if _, ok := c.number(client); !ok { // it has not asked again
			list = append(list, clientAddr(&client))
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

// stampNumber returns the number in a stamp.
func stampNumber(stamp uint64) int { return int(stamp & (1<<programBoundSTAMP_BITS - 1)) }

// stampTime returns when the program has made a stamp, or up to 134 ms earlier.
func stampTime(stamp uint64) time.Duration {
	return time.Duration(stamp >> programBoundSTAMP_BITS << programBoundSTAMP_TIME)
}

// keepOut bars clients until a time on the kernel's clock.
func (c *clients) keepOut(selects func(netip.Addr) bool, until uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := range c.states {
		s := &c.states[n]
		if atomic.LoadUint64(&s.Place) != 0 && selects(clientAddr(&s.Client)) && atomic.LoadUint64(&s.Barred) < until {
			atomic.StoreUint64(&s.Barred, until)
		}
	}
}

// state returns the state of a client, false if it has none.
func (c *clients) state(addr netip.Addr) (*programClientState, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	client := newClient(addr)
	n, ok := c.number(client)
	if !ok || c.states[n].Client != client { // the program may have just given the number to another client
		return nil, false
	}
	return &c.states[n], true
}
