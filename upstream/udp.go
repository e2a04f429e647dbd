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
	// maxQueriesPerSocket is how many queries go out of one port. A socket costs about as much
	// as four exchanges: spread over 128 of them that is 3 %. Half would cost
	// 6 %, double lets a port that was found out live twice as long.
	maxQueriesPerSocket = 128
	// maxOpenSockets is how many ports take new queries. Who has found one out sees
	// every sixteenth query there. Half would let him see twice as many; double
	// leaves fewer replies for each read, and costs more than it hides.
	maxOpenSockets = 16
	// maxUnexpected is how many datagrams that answer nothing a port may get before it
	// takes no more queries: somebody is guessing at IDs there, and needs tens of
	// thousands. Half would be met by the late replies of a server that was stuck
	// for a moment, double gives forgers twice the guesses.
	maxUnexpected = 32
	// maxInFlightUDP bounds the queries in flight per server: with a server that is
	// silent and a read timeout of 2 s it is 1,024 queries a second that wait. Half
	// is too few for a busy node. Each holds 2 KiB, and, if all but one of its
	// port's were answered, a socket: double is files that others need.
	maxInFlightUDP = 2048
)

// udpOptions is the bounds on the sockets of a [udpTransport].
type udpOptions struct {
	// maxInFlight is the most queries in flight; one more fails at once.
	maxInFlight int
	// maxOpen is the most ports that take new queries; with 0 each query has a port
	// of its own.
	maxOpen int
	// expire is how long a port takes new queries; 0 is as 0 for open.
	expire time.Duration
	// source is the address queries go out from; not valid is the system's choice.
	source netip.Addr
}

// udpTransport is a transport that has many queries in flight on each of a few connected
// sockets, so that the kernel takes datagrams from that one address and port
// only, and hands on ICMP errors (icmp.go says which of them are believed).
//
// Every query goes out of a port drawn from those that are open, one more being
// opened while those are busy and there are fewer than [udpOptions].open. A port has
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
type udpTransport struct {
	local, remote *net.UDPAddr // from may be nil
	udpOptions
	batches    sync.Pool
	readers    sync.WaitGroup
	unexpected *atomic.Uint64

	mu       sync.Mutex
	open     []*udpSocket            // those that take new queries
	live     map[*udpSocket]struct{} // those that have a socket
	inFlight share.Division          // queries in flight
	closed   bool

	hits, misses atomic.Uint64
}

// newUDPTransport opens no socket yet. Datagrams that answer nothing are counted in strays.
func newUDPTransport(to netip.AddrPort, bounds udpOptions, strays *atomic.Uint64) *udpTransport {
	if bounds.expire <= 0 {
		bounds.maxOpen = 0
	}
	var from *net.UDPAddr
	if bounds.source.IsValid() {
		from = net.UDPAddrFromAddrPort(netip.AddrPortFrom(bounds.source, 0))
	}
	return &udpTransport{
		local:      from,
		remote:     net.UDPAddrFromAddrPort(to),
		udpOptions: bounds,
		batches:    sync.Pool{New: func() any { return newBatch() }},
		unexpected: strays,
		live:       make(map[*udpSocket]struct{}),
		inFlight:   share.NewDivision(bounds.maxInFlight),
	}
}

// start is [transport.start].
func (t *udpTransport) start(q *query) {
	s, err := t.assign(q)
	if s == nil && err == nil {
		s, err = t.dial(q)
	}
	if err != nil {
		q.complete(err)
		return
	}
	if err := q.sendFrom(s.raw); err != nil {
		t.retrySend(s, q, err)
	}
}

// retrySend sends c's query again where its socket gave err instead of taking it.
func (t *udpTransport) retrySend(s *udpSocket, q *query, err error) {
	for tries := 0; tries < maxSendRetries && err != nil && isRecoverable(err); tries++ {
		_ = s.raw.Control(func(fd uintptr) { t.handleErrorQueue(s, fd) })
		err = q.sendFrom(s.raw)
	}
	if err != nil {
		t.failUnsent(s, q, err)
	}
}

// maxSendRetries is how often a query is sent again because the socket gave an error instead: that
// of an ICMP message about an earlier one, mostly. One is enough for those that come by
// themselves; with more, an attacker who sends them all the time keeps us busy.
const maxSendRetries = 2

// assign puts c on an open port, or gives nil if it needs a new one. The error is that
// too many are in flight.
func (t *udpTransport) assign(q *query) (*udpSocket, error) {
	draw := int(q.newID())
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.inFlight.Ask(q.client) != share.Fits {
		return nil, ErrBusy
	}
	n := len(t.open)
	if n == 0 {
		return nil, nil
	}
	s := t.open[draw%n]
	if s.inFlight > 0 && n < t.udpOptions.maxOpen {
		return nil, nil
	}
	if time.Since(s.openedAt) >= t.expire {
		t.retire(s)
		return nil, nil
	}
	t.hits.Add(1)
	t.addQuery(s, q)
	return s, nil
}

// dial opens a port for c. The kernel draws its number from a generator of its
// own, out of ip_local_port_range. The port stays for others if there is place,
// which several that dial at the same time may compete for.
func (t *udpTransport) dial(q *query) (*udpSocket, error) {
	t.misses.Add(1)
	conn, err := net.DialUDP("udp", t.local, t.remote)
	if err != nil {
		return nil, err
	}
	s := &udpSocket{conn: conn, openedAt: time.Now(), division: &t.inFlight}
	if s.raw, err = conn.SyscallConn(); err != nil {
		s.conn.Close()
		return nil, err
	}
	enableErrorQueue(s.raw)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		s.conn.Close()
		return nil, ErrClosed
	}
	t.live[s] = struct{}{}
	if len(t.open) < t.udpOptions.maxOpen {
		t.open = append(t.open, s)
	} else {
		s.retired = true
	}
	t.addQuery(s, q)
	t.readers.Go(func() { t.readLoop(s) })
	return s, nil
}

// addQuery is the start of c's flight on p; t is locked.
func (t *udpTransport) addQuery(s *udpSocket, q *query) {
	s.add(q)
	s.wakeBy(q.deadline)
	if s.sent == maxQueriesPerSocket {
		t.retire(s)
	}
}

// retire takes p out of the open ports; t is locked.
func (t *udpTransport) retire(s *udpSocket) {
	s.retired = true
	if i := slices.Index(t.open, s); i >= 0 {
		t.open = slices.Delete(t.open, i, i+1)
	}
	if s.finished() {
		s.wakeBy(immediately)
	}
}

// failUnsent ends the flight of c, which p's socket did not take because of err. The others on
// p go on.
func (t *udpTransport) failUnsent(s *udpSocket, q *query, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q.socket != s {
		return // it has landed
	}
	s.complete(slices.Index(s.queries[:s.inFlight], q), err)
	t.retire(s)
}

// countUnexpected counts something that answers nothing on p; t is locked.
func (t *udpTransport) countUnexpected(s *udpSocket) {
	t.unexpected.Add(1)
	if s.unexpected++; s.unexpected == maxUnexpected {
		t.retire(s)
	}
}

// cancel is [transport.cancel].
func (t *udpTransport) cancel(q *query) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := q.socket
	if s == nil {
		return false
	}
	s.orphan(slices.Index(s.queries[:s.inFlight], q))
	if s.finished() {
		s.wakeBy(immediately)
	}
	return true
}

// readLoop is the goroutine of p.
func (t *udpTransport) readLoop(s *udpSocket) {
	drain := func(fd uintptr) bool { return t.readAvailable(s, fd) }
	for {
		if err := s.raw.Read(drain); err != nil && !isTimeout(err) {
			s.readErr = err
		}
		if t.expireQueries(s) {
			break
		}
	}
	s.conn.Close()
}

// readAvailable delivers what waits on p's socket; true is for p to be settled. False is
// for the netpoller to wait: what comes after the last read wakes it up.
func (t *udpTransport) readAvailable(s *udpSocket, fd uintptr) bool {
	b := t.batches.Get().(*batch)
	defer t.batches.Put(b)
	for {
		n, err := b.read(fd)
		over := n > 0 && t.deliver(s, b, n)
		if err != nil && isRecoverable(err) {
			t.handleErrorQueue(s, fd)
			continue
		}
		s.readErr = err
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
func (t *udpTransport) deliver(s *udpSocket, b *batch, n int) (over bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range n {
		if s.deliver(b.datagram(i)) || s.takeOrphanReply(b.datagram(i)) {
			continue
		}
		t.countUnexpected(s)
	}
	return s.finished()
}

// expireQueries does what is to be done about p beside reading: flights end whose time is
// over, all of them if the socket has failed. It reports whether p is over, which
// then is t's no more.
func (t *udpTransport) expireQueries(s *udpSocket) (over bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.readErr != nil {
		s.failAll(s.readErr)
		t.retire(s)
	}
	s.wakeAt = s.expire(time.Now())
	_ = s.conn.SetReadDeadline(s.wakeAt)
	if s.finished() {
		delete(t.live, s)
	}
	return s.finished()
}

// closeIdle is [transport.closeIdle].
func (t *udpTransport) closeIdle(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(t.open) - 1; i >= 0; i-- {
		if s := t.open[i]; now.Sub(s.openedAt) >= t.expire {
			t.retire(s)
		}
	}
}

// close is [transport.close].
func (t *udpTransport) close() {
	t.mu.Lock()
	t.closed = true
	for s := range t.live {
		s.failAll(ErrClosed)
		t.retire(s)
	}
	t.mu.Unlock()
	t.readers.Wait()
}

// reuse is [transport.reuse].
func (t *udpTransport) reuse() (hits, misses uint64) { return t.hits.Load(), t.misses.Load() }
