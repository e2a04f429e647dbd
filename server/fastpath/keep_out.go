package fastpath

import (
	"net/netip"
	"sync/atomic"
	"time"
)

// KeepOut makes the clients that selects selects reach the agent with all their queries, for d. It counts for clients
// that are known now. A client whose address moves to another interface meanwhile may be answered
// earlier. Queries that the program does not answer count as moved.
func (p *Program) KeepOut(selects func(netip.Addr) bool, d time.Duration) {
	p.clients.keepOut(selects, uint64(kernelNow()+d))
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
