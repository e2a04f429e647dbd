package upstream

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/pollset"
	"github.com/nodens-dns/nodens/internal/socket"
)

const (
	// maxQueriesPerSocket is how many queries use one socket, and so one local port.
	// Opening a socket costs about as much as four exchanges; 128 queries reduce that to 3
	// %.
	maxQueriesPerSocket = 128
	// maxOpenSockets is how many sockets take new queries. An attacker who has discovered
	// one port sees every sixteenth query there.
	maxOpenSockets = 16
	// maxUnexpected is how many unexpected datagrams a socket may get before it is retired:
	// they may be guesses of an ID, which take tens of thousands. It tolerates the late
	// replies of a server after a short freeze.
	maxUnexpected = 32
	// maxInFlightUDP bounds the queries in flight to one server. With a silent server and a
	// read timeout of 2 s that is 1,024 queries per second. Each holds 2 KiB and at worst a
	// socket.
	maxInFlightUDP = 2048
)

// udpOptions are the limits of a [udpTransport].
type udpOptions struct {
	// maxInFlight is the maximum number of queries in flight; further ones fail at once.
	maxInFlight int
	// maxOpen is the maximum number of sockets that take new queries; 0 means that each
	// query gets its own socket.
	maxOpen int
	// expire is how long a socket takes new queries; 0 means that each query gets its own
	// socket.
	expire time.Duration
	// source is the local address; the system chooses if it is invalid.
	source netip.Addr
}

// udpTransport is a transport over UDP with a few connected sockets and many queries in
// flight on each. The kernel passes on only datagrams from the server's address and port,
// and ICMP errors (icmp.go describes how they are handled).
//
// Each query uses a random open socket. If that one is busy and fewer than
// [udpOptions].maxOpen are open, a new one is opened. The sockets of a query that the reader of
// a listening socket sends are in that reader's set, with a limit of their own, and it reads
// them while replies are expected ([Waiter.ReadBy], udp_shared.go). Any other socket has one goroutine, which
// reads from it and finally closes it. It waits in the netpoller for a datagram or the
// earliest deadline. A reply is matched by ID and question, and copied into its query.
//
// How hard are replies to forge (RFC 5452, 4 to 9)? A forged datagram must have the right
// port and one of 65,536 IDs. Other queries in flight do not help the attacker: they have
// other questions, because the cache never has the same question in flight twice. The price
// of sharing sockets is that ports live longer: an attacker who has discovered one, for
// example by the rate of ICMP messages, only has to guess the ID of the next query there.
// Therefore sockets are retired after maxQueriesPerSocket queries, after expire, and after
// maxUnexpected wrong guesses, which on an idle socket of a set are counted when it is used again; and
// the socket of each query is chosen at random.
type udpTransport struct {
	local, remote *net.UDPAddr // local may be nil
	udpOptions
	batches    sync.Pool
	readers    sync.WaitGroup
	unexpected *atomic.Uint64

	mu       sync.Mutex
	open     map[*pollset.Set][]*udpSocket // take new queries, for each set and, with the key nil, outside of sets
	live     map[*udpSocket]struct{}       // not closed yet
	inFlight int                           // queries
	closed   bool
	// timer wakes up expireShared at timerAt; zero: never.
	timer   *time.Timer
	timerAt time.Time

	hits, misses atomic.Uint64
}

// newUDPTransport opens no socket. It counts unexpected datagrams in strays.
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
		open:       make(map[*pollset.Set][]*udpSocket),
		live:       make(map[*udpSocket]struct{}),
	}
}

// start is [transport.start].
func (t *udpTransport) start(q *query) {
	if q.readBy != nil && q.readBy.Full() {
		q.readBy = nil
	}
	s, err := t.assign(q)
	if s == nil && err == nil {
		s, err = t.dial(q)
	}
	if err != nil {
		q.complete(err)
		return
	}
	if err := s.send(q); err != nil {
		t.retrySend(s, q, err)
	}
}

// retrySend sends q again after sending on s failed with err.
func (t *udpTransport) retrySend(s *udpSocket, q *query, err error) {
	for tries := 0; err != nil && isRecoverable(err); tries++ {
		t.handleErrorQueue(s) // also after the last attempt: what is left there keeps s readable
		if tries == maxSendRetries {
			break
		}
		err = s.send(q)
	}
	if err != nil {
		t.failUnsent(s, q, err)
	}
}

// maxSendRetries is how often sending is retried after an error, which mostly belongs to an
// ICMP message about an earlier query. The limit stops an attacker who sends such messages
// all the time from keeping the CPU busy.
const maxSendRetries = 2

// assign assigns q to an open socket, or returns nil if q needs a new one. The error says
// that too many queries are in flight.
func (t *udpTransport) assign(q *query) (*udpSocket, error) {
	draw := int(q.newID())
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.inFlight >= t.maxInFlight {
		return nil, ErrBusy
	}
	open := t.open[q.readBy]
	n := len(open)
	if n == 0 {
		return nil, nil
	}
	s := open[draw%n]
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

// dial opens a socket for q. The kernel chooses a random port from ip_local_port_range. The
// socket stays open for other queries if there are fewer than maxOpen by then.
func (t *udpTransport) dial(q *query) (*udpSocket, error) {
	t.misses.Add(1)
	if q.readBy != nil {
		return t.dialShared(q)
	}
	conn, err := net.DialUDP("udp", t.local, t.remote)
	if err != nil {
		return nil, err
	}
	s := &udpSocket{conn: conn, local: localAddr(conn), openedAt: time.Now(), total: &t.inFlight}
	if s.raw, err = conn.SyscallConn(); err != nil {
		s.conn.Close()
		return nil, err
	}
	_ = s.raw.Control(enableErrorQueue)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		s.conn.Close()
		return nil, ErrClosed
	}
	t.addSocket(s, q)
	t.readers.Go(func() { t.readLoop(s) })
	return s, nil
}

// dialShared is dial for a query whose reply is read by the goroutine that reads q.readBy.
func (t *udpTransport) dialShared(q *query) (*udpSocket, error) {
	fd, local, err := socket.DialUDP(t.source, t.remote.AddrPort())
	if err != nil {
		return nil, err
	}
	enableErrorQueue(uintptr(fd))
	s := &udpSocket{local: unmapped(local), openedAt: time.Now(), total: &t.inFlight, sharedSocket: &sharedSocket{set: q.readBy, transport: t, fd: fd}}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		s.close()
		return nil, ErrClosed
	}
	t.addSocket(s, q)
	return s, nil
}

// addSocket adds s, on which q is the first query, to the sockets; t is locked.
func (t *udpTransport) addSocket(s *udpSocket, q *query) {
	t.live[s] = struct{}{}
	if len(t.open[q.readBy]) < t.udpOptions.maxOpen {
		t.open[q.readBy] = append(t.open[q.readBy], s)
	} else {
		s.retired = true
	}
	t.addQuery(s, q)
}

// addQuery adds q to s; t is locked.
func (t *udpTransport) addQuery(s *udpSocket, q *query) {
	s.add(q)
	if s.sharedSocket != nil {
		t.wakeShared(q.deadline)
	} else {
		s.wakeBy(q.deadline)
	}
	if s.sent == maxQueriesPerSocket {
		t.retire(s)
	}
}

// retire makes s take no more queries; t is locked.
func (t *udpTransport) retire(s *udpSocket) {
	s.retired = true
	set := s.readBy()
	if i := slices.Index(t.open[set], s); i >= 0 {
		t.open[set] = slices.Delete(t.open[set], i, i+1)
	}
	if len(t.open[set]) == 0 {
		delete(t.open, set)
	}
	t.closeFinished(s)
}

// closeFinished closes s if it is finished, or makes its reader do so; t is locked.
func (t *udpTransport) closeFinished(s *udpSocket) {
	switch {
	case !s.finished():
	case s.sharedSocket != nil:
		delete(t.live, s)
		s.close()
	default:
		s.wakeBy(immediately)
	}
}

// failUnsent fails q, which could not be sent on s because of err. Other queries on s
// continue.
func (t *udpTransport) failUnsent(s *udpSocket, q *query, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q.socket != s {
		return // it is complete
	}
	s.complete(slices.Index(s.queries[:s.inFlight], q), err)
	t.retire(s)
}

// countUnexpected counts an unexpected datagram or ICMP error on s; t is locked.
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
	t.closeFinished(s)
	return true
}

// readLoop is the goroutine of s.
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

// readAvailable delivers the datagrams waiting on s. It returns true if expireQueries has
// to be called, and false to wait in the netpoller for the next datagram.
func (t *udpTransport) readAvailable(s *udpSocket, fd uintptr) bool {
	b := t.batches.Get().(*batch)
	defer t.batches.Put(b)
	for {
		n, err := b.read(fd)
		over := false
		if n > 0 {
			var flush func()
			if over, flush = t.deliver(s, b, n); flush != nil {
				flush()
			}
		}
		if err != nil && isRecoverable(err) {
			t.handleErrorQueue(s)
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

// deliver completes the queries that the first n datagrams of b answer, and reports whether
// s is finished. The caller calls flush unless it is nil.
func (t *udpTransport) deliver(s *udpSocket, b *batch, n int) (over bool, flush func()) {
	s.replied = b.replied[:0]
	t.mu.Lock()
	for i := range n {
		if s.deliver(b.datagram(i)) || s.takeOrphanReply(b.datagram(i)) {
			continue
		}
		t.countUnexpected(s)
	}
	if over = s.finished(); over && s.sharedSocket != nil {
		t.closeFinished(s)
	}
	t.mu.Unlock()
	return over, s.replied.finish()
}

// expireQueries completes the queries whose deadline has passed, or all if the socket has
// failed. It reports whether s is finished; s is then removed from t.
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

// wakeShared makes the timer for sockets in sets fire at the given time at the latest; t is locked. It is set rarely, because all queries have
// the same timeout.
func (t *udpTransport) wakeShared(at time.Time) {
	if !t.timerAt.IsZero() && !at.Before(t.timerAt) {
		return
	}
	t.timerAt = at
	if d := time.Until(at); t.timer == nil {
		t.timer = time.AfterFunc(d, t.expireShared)
	} else {
		t.timer.Reset(d)
	}
}

// expireShared completes the queries on sockets in sets whose deadlines have passed.
func (t *udpTransport) expireShared() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timerAt = time.Time{}
	now := time.Now()
	for s := range t.live {
		if s.sharedSocket == nil {
			continue
		}
		if next := s.expire(now); !next.IsZero() {
			t.wakeShared(next)
		}
		t.closeFinished(s)
	}
}

// closeIdle is [transport.closeIdle].
func (t *udpTransport) closeIdle(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, open := range t.open {
		for _, s := range slices.Clone(open) {
			if now.Sub(s.openedAt) >= t.expire {
				t.retire(s)
			}
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
	if t.timer != nil {
		t.timer.Stop()
	}
	t.mu.Unlock()
	t.readers.Wait()
}

// reuse is [transport.reuse].
func (t *udpTransport) reuse() (hits, misses uint64) { return t.hits.Load(), t.misses.Load() }
