package upstream

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// maxRecorded is how many attempts a Recorder holds; it counts the others.
const maxRecorded = 32

// The values of [Attempt.Retry].
const (
	retryTruncated = "truncated"
	retryEDNS      = "without EDNS"
	retryCookie    = "cookie"
)

// Attempt is one query to a server, as a [Recorder] has it.
type Attempt struct {
	// Exchange is the number of [Recorder.Exchange].
	Exchange int
	Server   netip.AddrPort
	// Protocol is udp, tcp, tls, https or quic.
	Protocol string
	// End is zero if there was no result yet when it was read.
	Start, End time.Time
	// Hedge says that the server was asked because another one, or its own first reply, was late.
	Hedge bool
	// Retry says why the server was asked again: truncated, without EDNS or cookie; "" the first time.
	Retry string
	// Replied says that the server has replied, with Rcode. Used says that the reply is the answer.
	Replied, Used bool
	Rcode         wire.Rcode
	// Cancelled says that the exchange has ended before the server replied.
	Cancelled bool
	// Err is why there is no reply.
	Err error
}

// Recorder collects the attempts of exchanges. It is reused: exchanges that go on after [Recorder.Reset] add nothing
// more. The zero Recorder is ready. It is safe for concurrent use.
type Recorder struct {
	mu   sync.Mutex
	uses uint64 // calls of Reset
	list []Attempt
	more int // attempts that are not in list
}

// Recording is where one exchange adds its attempts. The zero Recording discards them.
type Recording struct {
	to       *Recorder
	uses     uint64
	exchange int
}

// Exchange returns where the exchange with the number n adds its attempts.
func (r *Recorder) Exchange(n int) Recording {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Recording{r, r.uses, n}
}

// Append appends the attempts to list in the order of their start, and returns the number of those that there was no
// room for.
func (r *Recorder) Append(list []Attempt) (_ []Attempt, more int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(list, r.list...), r.more
}

// Reset removes all attempts.
func (r *Recorder) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.list)
	r.list, r.more = r.list[:0], 0
	r.uses++
}

// start adds a and returns its number, 0 if it is not added.
func (r Recording) start(a *Attempt) int {
	r.to.mu.Lock()
	defer r.to.mu.Unlock()
	switch {
	case r.to.uses != r.uses:
		return 0
	case len(r.to.list) == maxRecorded:
		r.to.more++
		return 0
	}
	a.Exchange = r.exchange
	r.to.list = append(r.to.list, *a)
	return len(r.to.list)
}

// change calls f with the attempt that has the number n, unless it is 0 or the attempts were removed.
func (r Recording) change(n int, f func(a *Attempt)) {
	if r.to == nil || n == 0 {
		return
	}
	r.to.mu.Lock()
	defer r.to.mu.Unlock()
	if r.to.uses == r.uses {
		f(&r.to.list[n-1])
	}
}

// use notes that the reply to the attempt n is the answer.
func (r Recording) use(n int) {
	r.change(n, func(a *Attempt) { a.Used = true })
}

// finish ends the attempts of the exchange that have no result.
func (r Recording) finish() {
	if r.to == nil {
		return
	}
	now := time.Now()
	r.to.mu.Lock()
	defer r.to.mu.Unlock()
	if r.to.uses != r.uses {
		return
	}
	for i := range r.to.list {
		if a := &r.to.list[i]; a.Exchange == r.exchange && a.End.IsZero() {
			a.End, a.Cancelled = now, true
		}
	}
}

// recordStart records that q, which has all but its result, is sent.
func (x *exchange) recordStart(q *query) {
	if x.record.to == nil {
		return
	}
	a := &q.attempt
	a.recorded = x.record.start(&Attempt{
		Server: a.server.addr, Protocol: a.server.protocol(q.tcp).name, Start: a.sent, Hedge: a.isHedge, Retry: a.retry,
	})
}

// recordEnd records the result of q.
func (x *exchange) recordEnd(q *query, now time.Time) {
	if x.record.to == nil {
		return
	}
	err := q.err
	x.record.change(q.attempt.recorded, func(a *Attempt) {
		a.End = now
		if err != nil {
			a.Err = publicError(err)
			return
		}
		a.Replied, a.Rcode = true, wire.Rcode(q.reply[3]&rcodeBits)
	})
}

// useFallback returns the fallback, which is the answer.
func (x *exchange) useFallback() wire.Response {
	x.record.use(x.fallbackRecord)
	return x.fallback
}

// Asked says who was asked for a query, for logs.
type Asked struct {
	// Server is the server whose reply is the answer, or without an answer the last one that was
	// asked.
	Server netip.AddrPort
	// Hedged says that another server was asked because the first one was late; HedgeWon, that the
	// other one's reply is the answer.
	Hedged, HedgeWon bool
}

// Tap receives each query of an exchange to a server, for dnstap.
type Tap interface {
	// Exchanged is called when the query has a reply, has failed, or is given up because another
	// server has answered. It must not block, and must not keep s or its slices.
	Exchanged(s *Sent)
}

// Sent is one query to a server, and its reply.
type Sent struct {
	Server netip.AddrPort
	// Local is the agent's address of the socket. It is invalid where it is not known: over HTTPS,
	// QUIC and gRPC, and if there was no connection.
	Local netip.AddrPort
	// Datagrams says that the query went over UDP or QUIC.
	Datagrams bool
	// Sent is when the query was sent, and Received when its reply arrived; zero: there is none.
	Sent, Received time.Time
	// Query and Reply are the messages. Reply is nil if there is none.
	Query, Reply []byte
}

// tapEnd passes q, which has its result or is given up, to the tap. sent says that a transport has got it.
func (x *exchange) tapEnd(q *query, sent, replied bool, now time.Time) {
	if x.tap == nil || !sent {
		return
	}
	a := &q.attempt
	s := Sent{
		Server: a.server.addr, Local: q.local, Sent: a.sent, Query: q.message(),
		Datagrams: a.server.protocol(q.tcp).datagrams,
	}
	if replied {
		s.Reply, s.Received = q.reply[:q.replyLen], now
	}
	x.tap.Exchanged(&s)
}

// localAddr returns the local address of conn, which is invalid if conn has none.
func localAddr(conn interface{ LocalAddr() net.Addr }) netip.AddrPort {
	switch addr := conn.LocalAddr().(type) {
	case *net.UDPAddr:
		return unmapped(addr.AddrPort())
	case *net.TCPAddr:
		return unmapped(addr.AddrPort())
	}
	return netip.AddrPort{}
}

func unmapped(addr netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
}
