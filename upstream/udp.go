package upstream

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/share"
)

const (
	// maxUses is how many queries go out of one port. A socket costs about as much
	// as four exchanges: spread over 128 of them that is 3 %. Half would cost
	// 6 %, double lets a port that was found out live twice as long.
	maxUses = 128
	// maxPorts is how many ports take new queries. Who has found one out sees
	// every sixteenth query there. Half would let him see twice as many; double
	// leaves fewer replies for each read, and costs more than it hides.
	maxPorts = 16
	// maxStrays is how many datagrams that answer nothing a port may get before it
	// takes no more queries: somebody is guessing at IDs there, and needs tens of
	// thousands. Half would be met by the late replies of a server that was stuck
	// for a moment, double gives forgers twice the guesses.
	maxStrays = 32
	// maxBusyUDP bounds the queries in flight per server: with a server that is
	// silent and a read timeout of 2 s it is 1,024 queries a second that wait. Half
	// is too few for a busy node. Each holds 2 KiB, and, if all but one of its
	// port's were answered, a socket: double is files that others need.
	maxBusyUDP = 2048
)

// ports is the bounds on the sockets of a [udp].
type ports struct {
	// busy is the most queries in flight; one more fails at once.
	busy int
	// open is the most ports that take new queries; with 0 each query has a port
	// of its own.
	open int
	// expire is how long a port takes new queries; 0 is as 0 for open.
	expire time.Duration
	// source is the address queries go out from; not valid is the system's choice.
	source netip.Addr
}

// udp is a transport that has many queries in flight on each of a few connected
// sockets, so that the kernel takes datagrams from that one address and port
// only, and hands on ICMP errors (icmp.go says which of them are believed).
//
// Every query goes out of a port drawn from those that are open, one more being
// opened while those are busy and there are fewer than [ports].open. A port has
// one goroutine, which reads what comes in and closes it in the end, in the netpoller
// until a datagram or the first of its queries' deadlines comes. A reply is
// matched by ID and question, copied into the call, and wakes who waits for it.
//
// To a forger (RFC 5452, 4 to 9): one forged datagram is taken for the answer to a
// query with a chance of one in the ports there are, times 65,536 IDs, however
// many others are in flight, on its port or elsewhere: those have other
// questions, since the cache has no question in flight twice. What sharing
// ports costs is that they live on: who finds one out, say by how fast ICMP
// messages come back, has to guess only the ID of what goes there next. So ports
// retire, after maxUses queries, after expire, which was the same with one query
// at a time on each, and after maxStrays wrong guesses; and which query goes
// there is drawn.
type udp struct {
	from, to *net.UDPAddr // from may be nil
	ports
	batches sync.Pool
	readers sync.WaitGroup
	strays  *atomic.Uint64

	mu     sync.Mutex
	open   []*port            // those that take new queries
	live   map[*port]struct{} // those that have a socket
	flying share.Division     // queries in flight
	closed bool

	hits, misses atomic.Uint64
}

// newUDP opens no socket yet. Datagrams that answer nothing are counted in strays.
func newUDP(to netip.AddrPort, bounds ports, strays *atomic.Uint64) *udp {
	if bounds.expire <= 0 {
		bounds.open = 0
	}
	var from *net.UDPAddr
	if bounds.source.IsValid() {
		from = net.UDPAddrFromAddrPort(netip.AddrPortFrom(bounds.source, 0))
	}
	return &udp{
		from:    from,
		to:      net.UDPAddrFromAddrPort(to),
		ports:   bounds,
		batches: sync.Pool{New: func() any { return newBatch() }},
		strays:  strays,
		live:    make(map[*port]struct{}),
		flying:  share.NewDivision(bounds.busy),
	}
}

// start is [transport.start].
func (t *udp) start(c *call) {
	p, err := t.board(c)
	if p == nil && err == nil {
		p, err = t.dial(c)
	}
	if err != nil {
		c.land(err)
		return
	}
	if err := c.sendFrom(p.raw); err != nil {
		t.sendAgain(p, c, err)
	}
}

// sendAgain sends c's query again where its socket gave err instead of taking it.
func (t *udp) sendAgain(p *port, c *call, err error) {
	for tries := 0; tries < resends && err != nil && passing(err); tries++ {
		_ = p.raw.Control(func(fd uintptr) { t.reports(p, fd) })
		err = c.sendFrom(p.raw)
	}
	if err != nil {
		t.unsent(p, c, err)
	}
}

// resends is how often a query is sent again because the socket gave an error instead: that
// of an ICMP message about an earlier one, mostly. One is enough for those that come by
// themselves; with more, an attacker who sends them all the time keeps us busy.
const resends = 2

// board puts c on an open port, or gives nil if it needs a new one. The error is that
// too many are in flight.
func (t *udp) board(c *call) (*port, error) {
	draw := int(c.id())
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.flying.Ask(c.client) != share.Fits {
		return nil, ErrBusy
	}
	n := len(t.open)
	if n == 0 {
		return nil, nil
	}
	p := t.open[draw%n]
	if p.flying > 0 && n < t.ports.open {
		return nil, nil
	}
	if time.Since(p.since) >= t.expire {
		t.retire(p)
		return nil, nil
	}
	t.hits.Add(1)
	t.put(p, c)
	return p, nil
}

// dial opens a port for c. The kernel draws its number from a generator of its
// own, out of ip_local_port_range. The port stays for others if there is place,
// which several that dial at the same time may compete for.
func (t *udp) dial(c *call) (*port, error) {
	t.misses.Add(1)
	conn, err := net.DialUDP("udp", t.from, t.to)
	if err != nil {
		return nil, err
	}
	p := &port{conn: conn, since: time.Now(), all: &t.flying}
	if p.raw, err = conn.SyscallConn(); err != nil {
		p.conn.Close()
		return nil, err
	}
	watchErrors(p.raw)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		p.conn.Close()
		return nil, ErrClosed
	}
	t.live[p] = struct{}{}
	if len(t.open) < t.ports.open {
		t.open = append(t.open, p)
	} else {
		p.retired = true
	}
	t.put(p, c)
	t.readers.Go(func() { t.read(p) })
	return p, nil
}

// put is the start of c's flight on p; t is locked.
func (t *udp) put(p *port, c *call) {
	p.put(c)
	p.wake(c.until)
	if p.uses == maxUses {
		t.retire(p)
	}
}

// retire takes p out of the open ports; t is locked.
func (t *udp) retire(p *port) {
	p.retired = true
	if i := slices.Index(t.open, p); i >= 0 {
		t.open = slices.Delete(t.open, i, i+1)
	}
	if p.over() {
		p.wake(longAgo)
	}
}

// unsent ends the flight of c, which p's socket did not take because of err. The others on
// p go on.
func (t *udp) unsent(p *port, c *call, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.port != p {
		return // it has landed
	}
	p.end(slices.Index(p.calls[:p.flying], c), err)
	t.retire(p)
}

// stray counts something that answers nothing on p; t is locked.
func (t *udp) stray(p *port) {
	t.strays.Add(1)
	if p.strays++; p.strays == maxStrays {
		t.retire(p)
	}
}

// withdraw is [transport.withdraw].
func (t *udp) withdraw(c *call) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := c.port
	if p == nil {
		return false
	}
	p.abandon(slices.Index(p.calls[:p.flying], c))
	if p.over() {
		p.wake(longAgo)
	}
	return true
}

// read is the goroutine of p.
func (t *udp) read(p *port) {
	drain := func(fd uintptr) bool { return t.drain(p, fd) }
	for {
		if err := p.raw.Read(drain); err != nil && !timedOut(err) {
			p.failed = err
		}
		if t.settle(p) {
			break
		}
	}
	p.conn.Close()
}

// drain delivers what waits on p's socket; true is for p to be settled. False is
// for the netpoller to wait: what comes after the last read wakes it up.
func (t *udp) drain(p *port, fd uintptr) bool {
	b := t.batches.Get().(*batch)
	defer t.batches.Put(b)
	for {
		n, err := b.read(fd)
		over := n > 0 && t.deliver(p, b, n)
		if err != nil && passing(err) {
			t.reports(p, fd)
			continue
		}
		p.failed = err
		if over || err != nil {
			return true
		}
		if n < batchSize {
			return false
		}
	}
}

// deliver hands the first n datagrams of b to the calls in flight on p, and reports
// whether p is over. Who waits runs when all of them are handed out.
func (t *udp) deliver(p *port, b *batch, n int) (over bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range n {
		if p.deliver(b.datagram(i)) || p.belated(b.datagram(i)) {
			continue
		}
		t.stray(p)
	}
	return p.over()
}

// settle does what is to be done about p beside reading: flights end whose time is
// over, all of them if the socket has failed. It reports whether p is over, which
// then is t's no more.
func (t *udp) settle(p *port) (over bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.failed != nil {
		p.fail(p.failed)
		t.retire(p)
	}
	p.alarm = p.expire(time.Now())
	_ = p.conn.SetReadDeadline(p.alarm)
	if p.over() {
		delete(t.live, p)
	}
	return p.over()
}

// sweep is [transport.sweep].
func (t *udp) sweep(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(t.open) - 1; i >= 0; i-- {
		if p := t.open[i]; now.Sub(p.since) >= t.expire {
			t.retire(p)
		}
	}
}

// close is [transport.close].
func (t *udp) close() {
	t.mu.Lock()
	t.closed = true
	for p := range t.live {
		p.fail(ErrClosed)
		t.retire(p)
	}
	t.mu.Unlock()
	t.readers.Wait()
}

// reuse is [transport.reuse].
func (t *udp) reuse() (hits, misses uint64) { return t.hits.Load(), t.misses.Load() }
