package upstream

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// maxInFlightDoQ bounds the queries in flight per server, including those that wait for
	// a connection or a stream; each has a goroutine. Servers commonly allow 100 to 256
	// streams at once.
	maxInFlightDoQ = 1024
	// maxConnsDoQ bounds the connections to one server: one takes queries while the one
	// before it drains. RFC 9250, 5.5.1, recommends one.
	maxConnsDoQ = 2
	// doqALPN is the protocol name of DNS over QUIC (RFC 9250, 4.1.1).
	doqALPN = "doq"
	// doqReplySize is the initial size of the buffer for a reply with its length prefix.
	doqReplySize = 2 + initialReplySize
	// doqStreamWindow is how many bytes a server may send on a stream: the longest reply
	// with its length prefix.
	doqStreamWindow = 2 + wire.MaxMessage
	// doqConnWindow is how many bytes a server may send on a connection before they are
	// read: four of the longest replies, or 100 ordinary ones that wait for a lost packet.
	doqConnWindow = 4 * doqStreamWindow
	// doqPacketSize is the size of packets, which is also the least that every path of QUIC
	// supports (RFC 9000, 14). A packet carries a dozen queries, so larger ones would save
	// little, and finding out their size costs packets.
	doqPacketSize = 1200
	// minDoQIdleTimeout is the minimum of the idle timeout that the agent announces. The
	// connection is closed before, after `expire`.
	minDoQIdleTimeout = 10 * time.Second
)

// maxUnfinishedDoQ bounds the goroutines that wait for the end of a stream after a complete
// reply.
const maxUnfinishedDoQ = 64

// The error codes of DNS over QUIC (RFC 9250, 4.3).
const (
	doqNoError          = 0x0
	doqInternalError    = 0x1
	doqProtocolError    = 0x2
	doqRequestCancelled = 0x3
	doqExcessiveLoad    = 0x4
)

// doqTransport is a transport over QUIC (RFC 9250) with one connection, which carries each
// query on a stream of its own. A second connection exists only while the first one drains.
// The server limits the streams; further queries wait in a queue that prefers clients with
// few queries in flight.
//
// A connection takes no more queries when it is idle for too long or too old, when it has
// failed, or when replies are owed and the server has sent no packet for some time. QUIC
// acknowledges packets within milliseconds, so a server that resolves a slow name is not
// mistaken for one that is gone. Queries on a connection that fails are sent again, as by
// [streamTransport].
//
// TLS sessions are resumed. Queries are never sent in 0-RTT data: an attacker could replay
// them (RFC 9250, 5.3 and 5.4).
//
// Each query has its own goroutine and buffers, so that cancel can return it at once.
type doqTransport struct {
	addr netip.AddrPort
	connTransport
	config    *quic.Config
	waitQueue waitQueue
	requests  sync.Pool // of *doqRequest

	// The lock guards these.
	current  *doqConn // takes queries, and may still be connecting; nil for none
	live     map[*doqConn]struct{}
	inFlight share.Counts
	// unfinished is the number of streams with a complete reply that the server has not
	// ended yet.
	unfinished int
	// running is the number of goroutines of queries, including those of canceled queries,
	// which end soon.
	running int
}

// doqRequest is one query in flight. The transport's lock guards query, stream and cancel;
// the other fields belong to the goroutine of the query.
type doqRequest struct {
	query          *query // nil once it is complete or canceled
	stream         *quic.Stream
	cancel         context.CancelFunc // ends waiting; nil if the query has never waited
	client         share.Client
	clientInFlight int // the client's other queries in flight at the start
	deadline       time.Time
	frame          []byte // the query with its length prefix
	reply          []byte // a buffer for the reply with its length prefix
}

// newDoQTransport opens no connection. An empty ServerName in the options stands for the
// server's address.
func newDoQTransport(to netip.AddrPort, opts connOptions) transport {
	opts.setDefaults()
	if opts.tls == nil {
		opts.tls = new(tls.Config)
	}
	opts.tls = clientTLS(opts.tls, to.Addr())
	opts.tls.MinVersion = tls.VersionTLS13
	opts.tls.NextProtos = []string{doqALPN}
	t := &doqTransport{
		addr: to,
		live: make(map[*doqConn]struct{}),
		config: &quic.Config{
			HandshakeIdleTimeout:           opts.connectTimeout,
			MaxIdleTimeout:                 max(opts.expire, minDoQIdleTimeout) + closeStalledAfter,
			TokenStore:                     quic.NewLRUTokenStore(1, maxTLSSessions),
			InitialStreamReceiveWindow:     doqStreamWindow,
			MaxStreamReceiveWindow:         doqStreamWindow,
			InitialConnectionReceiveWindow: doqConnWindow,
			MaxConnectionReceiveWindow:     doqConnWindow,
			MaxIncomingStreams:             -1, // a server must not open streams (RFC 9250, 4.2)
			MaxIncomingUniStreams:          -1,
			InitialPacketSize:              doqPacketSize,
			DisablePathMTUDiscovery:        true,
		},
	}
	t.requests.New = func() any { return &doqRequest{reply: make([]byte, doqReplySize)} }
	t.init(opts)
	return t
}

// start is [transport.start].
func (t *doqTransport) start(q *query) {
	binary.BigEndian.PutUint16(q.frame[2:], 0) // RFC 9250, 4.2.1
	r := t.requests.Get().(*doqRequest)
	r.query, r.client, r.deadline = q, q.client, q.deadline
	r.frame = append(r.frame[:0], q.frame...)
	if err := t.begin(r); err != nil {
		t.put(r)
		q.complete(err)
	}
}

// put returns r, which is not in flight, to the pool.
func (t *doqTransport) put(r *doqRequest) {
	*r = doqRequest{frame: r.frame, reply: r.reply}
	if len(r.reply) > maxKeptBuffer {
		r.reply = make([]byte, doqReplySize)
	}
	t.requests.Put(r)
}

// begin starts the goroutine of r.
func (t *doqTransport) begin(r *doqRequest) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return ErrClosed
	case t.inFlight.Total() >= maxInFlightDoQ || t.running == 2*maxInFlightDoQ:
		return ErrBusy
	}
	r.clientInFlight = t.inFlight.Of(r.client)
	t.inFlight.Add(r.client)
	t.running++
	r.query.doqRequest = r
	c := t.openStreamNow(r)
	t.tasks.Go(func() { t.run(r, c) })
	return nil
}

// run sends r on its stream of c, or if c is nil once there is a stream for it, and again if a
// working connection fails.
func (t *doqTransport) run(r *doqRequest, c *doqConn) {
	for resent := 0; ; resent++ {
		var n int
		var err error
		if c == nil {
			c, err = t.acquireStream(r)
		}
		if err == nil {
			n, err = t.exchange(r, c)
		}
		if c == nil || !isConnFailure(err) || resent == maxResends || !t.mayRepeat(c, r) {
			t.finish(r, n, err)
			return
		}
		c = nil
	}
}

// mayRepeat reports whether r, whose connection c has failed, is sent again: it must still be
// wanted, and c must have worked.
func (t *doqTransport) mayRepeat(c *doqConn, r *doqRequest) bool {
	t.mu.Lock()
	again := c.answered && r.query != nil && !t.closed && time.Now().Before(r.deadline)
	t.mu.Unlock()
	return again && t.mayResend()
}

// exchange sends r on its stream of c, waits for the reply, and releases the stream. It
// returns the reply's length in r.reply, without the length prefix.
func (t *doqTransport) exchange(r *doqRequest, c *doqConn) (n int, err error) {
	if err = send(r); err == nil {
		n, err = t.receive(r, c)
	}
	t.release(c, r, err)
	if err != nil {
		err = readableError(err)
	}
	return n, err
}

// send writes the query of r and ends the stream for writing (RFC 9250, 4.2).
func send(r *doqRequest) error {
	err := r.stream.TryWriteAll(r.frame)
	if errors.Is(err, quic.ErrWouldBlock) { // the server allows no more data for now
		_ = r.stream.SetWriteDeadline(r.deadline)
		_, err = r.stream.Write(r.frame)
	}
	if err != nil {
		return err
	}
	return r.stream.Close()
}

// receive reads the reply to r. It completes the query as soon as the reply is complete, and
// then waits for the end of the stream.
func (t *doqTransport) receive(r *doqRequest, c *doqConn) (int, error) {
	_ = r.stream.SetReadDeadline(r.deadline)
	n, ended, err := readReply(r, r.stream)
	if err == nil {
		err = t.deliver(r, c, n)
	}
	if err == nil && !ended {
		err = t.awaitEnd(r)
	}
	return n, err
}

// readReply reads one reply from s into r.reply and returns its length without the length
// prefix. ended says that the stream has ended behind it.
func readReply(r *doqRequest, s io.Reader) (n int, ended bool, err error) {
	for have, want := 0, 2; ; {
		n, err := s.Read(r.reply[have:])
		have += n
		if have >= 2 {
			want = 2 + int(binary.BigEndian.Uint16(r.reply))
		}
		switch {
		case have > want:
			return 0, false, errTwoReplies
		case have == want && have > 2:
			return want - 2, err != nil, nil
		case errors.Is(err, io.EOF):
			return 0, true, errCutOff
		case err != nil:
			return 0, true, err
		case have == len(r.reply): // longer than most
			r.reply = append(r.reply, make([]byte, min(want, 2*have)-have)...)
		}
	}
}

// deliver completes the query of r with the reply of n bytes if it matches.
func (t *doqTransport) deliver(r *doqRequest, c *doqConn, n int) error {
	msg := r.reply[2 : 2+n]
	if n >= 2 && binary.BigEndian.Uint16(msg) != 0 {
		return errNonzeroID
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !c.answered {
		c.answered = true
		t.pause.end()
	}
	c.replied(true, time.Now())
	if r.query != nil && !r.query.matches(msg) {
		if c.isStray(&t.connOptions) {
			t.retire(c)
		}
		return errMismatch
	}
	t.complete(r, n, nil)
	return nil
}

// awaitEnd waits until the server ends the stream of r, whose query is complete, which
// mostly takes microseconds. A server that does not end its streams is told to.
func (t *doqTransport) awaitEnd(r *doqRequest) error {
	t.mu.Lock()
	wait := t.unfinished < maxUnfinishedDoQ
	if wait {
		t.unfinished++
	}
	t.mu.Unlock()
	if !wait {
		abort(r.stream)
		return nil
	}
	defer func() {
		t.mu.Lock()
		t.unfinished--
		t.mu.Unlock()
	}()
	var more [1]byte
	switch n, err := r.stream.Read(more[:]); {
	case n > 0:
		return errTwoReplies
	case err != nil && !errors.Is(err, io.EOF):
		abort(r.stream)
	}
	return nil
}

// finish completes the query of r with the reply of n bytes or err, unless it is complete or
// canceled, and ends r.
func (t *doqTransport) finish(r *doqRequest, n int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.complete(r, n, err)
	t.running--
	t.put(r)
}

// complete completes the query of r, unless it is complete or canceled; t is locked.
func (t *doqTransport) complete(r *doqRequest, n int, err error) {
	q := r.query
	if q == nil {
		return
	}
	t.detach(r)
	switch {
	case t.closed:
		err = ErrClosed
	case err != nil && !isLocal(err) && !time.Now().Before(r.deadline):
		err = os.ErrDeadlineExceeded
	case err == nil:
		q.growReply(n)
		q.replyLen = copy(q.reply, r.reply[2:2+n])
	}
	q.complete(err)
}

// detach takes the query from r; t is locked.
func (t *doqTransport) detach(r *doqRequest) {
	r.query.doqRequest, r.query = nil, nil
	t.inFlight.Remove(r.client)
}

// cancel is [transport.cancel].
func (t *doqTransport) cancel(q *query) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := q.doqRequest
	if r == nil {
		return false
	}
	t.detach(r)
	if r.cancel != nil {
		r.cancel()
	}
	if r.stream != nil {
		abort(r.stream)
	}
	return true
}

// abort gives up s, whose reply is of no interest any more (RFC 9250, 4.3.1).
func abort(s *quic.Stream) {
	s.CancelRead(doqRequestCancelled)
	s.CancelWrite(doqRequestCancelled)
}

// close is [transport.close].
func (t *doqTransport) close() {
	t.mu.Lock()
	t.closed = true
	t.stop()
	for c := range t.live {
		t.closeConn(c, doqNoError, ErrClosed)
	}
	t.mu.Unlock()
	t.waitQueue.wake(-1, ErrClosed)
	t.tasks.Wait()
}
