package upstream

import (
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nodens-dns/nodens/internal/pollset"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// headerLen is the length of the DNS header (RFC 1035, 4.1.1).
	headerLen = 12
	// optLen is the length of the OPT record that wire.AppendQuery appends.
	optLen = 11
	// maxDatagram is the largest UDP reply accepted. Servers that ignore our payload size
	// send up to 4096 bytes, the usual limit of BIND and Unbound. Larger replies are
	// fetched over TCP.
	maxDatagram = 4096
	// maxKeptBuffer is the largest reply buffer kept for the next query, so that a few 64
	// KiB replies do not raise memory use for good.
	maxKeptBuffer = 16 << 10
	// initialReplySize is the initial size of reply buffers. Few replies exceed the payload
	// size that we announce.
	initialReplySize = DefaultPayload
	// idBatch is how many bytes are read from the random number generator at once. A read
	// costs about the same for 64 bytes as for 2.
	idBatch = 64
)

// query is a query to one server: part of an [exchange], a shadow query or a probe. It
// belongs to one goroutine at a time and is reused.
type query struct {
	request *wire.Query
	client  share.Client // charged for the query while it is in flight
	payload uint16
	tcp     bool
	probe   bool    // any reply with the right ID matches
	attempt attempt // state of the exchange for this query

	// phase says what q waits for; waiter is its place in the queue for a slot or a token. The exchange uses slot, the gate at
	// which q has a slot, and hasToken, which says that q has a token of its server's budget, but while q is in a queue.
	phase      phase
	waiter     share.Waiter[*query]
	slot       *gate
	hasToken   bool
	clientAddr netip.Addr // see [From.Addr]

	// frame is the query with the length prefix of TCP (RFC 1035, 4.2.2).
	frame []byte
	// options is the buffer for the options in it, cookie one of them.
	options []byte
	cookie  sentCookie
	// reply is the buffer for the reply.
	reply []byte

	// The query completes at deadline at the latest and is then sent to done. Afterwards
	// either err is set, or reply holds the replyLen bytes of the reply.
	deadline     time.Time
	done         chan *query
	exchange     *exchange      // that q is part of; nil for others
	parking      *Waiter        // of the exchange; nil for none
	readBy       *pollset.Set   // the goroutine that starts the query reads its reply if it comes over UDP; nil: another one does
	local        netip.AddrPort // of the socket that it was sent on, where that is known
	socket       *udpSocket     // the UDP socket it is in flight on; guarded by the lock of udpTransport
	streamFlight                // the same for TCP and TLS
	dohRequest   *dohRequest    // the same for HTTPS; guarded by the lock of dohTransport
	doqRequest   *doqRequest    // the same for QUIC; guarded by the lock of doqTransport
	err          error
	replyLen     int
	// writeFunc sends the query on a socket and sets writeErr. It is a field because
	// creating a function for each call would allocate.
	writeFunc func(fd uintptr) bool
	writeErr  error
	// wakeup is signalled, and softError set, when the query, still in flight, may get no
	// reply. wakeup is nil outside of an exchange.
	wakeup    chan<- struct{}
	softError atomic.Bool

	randomBytes [idBatch]byte
	randomLeft  int // unused bytes of randomBytes
}

func newQuery() *query {
	q := &query{
		frame: make([]byte, 0, 2+headerLen+wire.MaxName+4+optLen),
		reply: make([]byte, initialReplySize),
		done:  make(chan *query, 1),
	}
	q.writeFunc = func(fd uintptr) bool {
		q.writeErr = sendDatagram(fd, q.message())
		return true // done in any case: false would wait until fd is writable
	}
	return q
}

// reset drops references and a buffer that is too large to keep.
func (q *query) reset() {
	q.request, q.client, q.clientAddr, q.parking, q.readBy = nil, share.NoClient, netip.Addr{}, nil, nil
	q.phase = phaseNone
	q.attempt = attempt{}
	if len(q.reply) > maxKeptBuffer {
		q.reply = make([]byte, initialReplySize)
	}
}

// newID returns a new query ID from crypto/rand: a predictable ID allows cache poisoning
// (RFC 5452, 4.3), and math/rand/v2 does not promise unpredictability.
func (q *query) newID() uint16 {
	if q.randomLeft == 0 {
		rand.Read(q.randomBytes[:]) // never fails: the runtime terminates the process instead
		q.randomLeft = idBatch
	}
	q.randomLeft -= 2
	return binary.BigEndian.Uint16(q.randomBytes[q.randomLeft:])
}

// build writes the query to s with a new ID into frame. On encrypted transports it is padded (RFC 8467, 4.1).
func (q *query) build(edns bool, s *server) {
	b := wire.AppendQuery(append(q.frame[:0], 0, 0), q.newID(), q.request.Name(), q.request.Type, q.request, q.payload)
	if edns {
		q.options = append(q.options[:0], q.request.Options...)
		if q.cookie = (sentCookie{}); s.cookies != nil && q.exchange != nil {
			q.options, q.cookie = s.cookies.put(q.options, q.attempt.sent, !q.attempt.repeats)
		}
		if s.encrypted {
			q.options = wire.PadOptions(q.options, len(b)-2, wire.QueryBlock)
		}
		b = wire.AppendOptions(b, q.options)
	} else {
		b = stripOPT(b)
	}
	q.setFrame(b)
}

// setFrame sets frame to b and completes its length prefix.
func (q *query) setFrame(b []byte) {
	binary.BigEndian.PutUint16(b, uint16(len(b)-2))
	q.frame = b
}

// stripOPT removes the OPT record from a framed query of wire.AppendQuery.
func stripOPT(b []byte) []byte {
	b = b[:len(b)-optLen]
	binary.BigEndian.PutUint16(b[2+10:], 0) // ARCOUNT
	return b
}

// message returns the query without the length prefix.
func (q *query) message() []byte { return q.frame[2:] }

// sentID returns the ID in frame.
func (q *query) sentID() uint16 { return binary.BigEndian.Uint16(q.frame[2:]) }

// replaceID gives the query a new ID.
func (q *query) replaceID() { binary.BigEndian.PutUint16(q.frame[2:], q.newID()) }

// complete ends the flight of q, with err or with the reply it holds. It must be called
// once per start. It never blocks: done has room for every query of an exchange.
func (q *query) complete(err error) {
	w := q.parking // q is its owner's afterwards
	q.err = err
	q.done <- q
	w.Interrupt()
}

// claimReply makes the caller, which has stored the reply to q, responsible for calling [exchange.replied] without a lock. It
// returns false if a goroutine waits, to which q is to be completed.
func (q *query) claimReply() bool {
	if !q.parking.claim() {
		return false
	}
	q.err = nil
	return true
}

// sendFrom sends the query on a connected socket without blocking.
func (q *query) sendFrom(socket syscall.RawConn) error {
	if err := socket.Write(q.writeFunc); err != nil {
		return err
	}
	return q.writeErr
}

// storeDatagram copies msg, a UDP reply, to reply.
func (q *query) storeDatagram(msg []byte) {
	q.growReply(len(msg))
	q.replyLen = copy(q.reply, msg)
	if q.replyLen > maxDatagram { // the kernel has truncated it
		q.reply[2] |= tcBit
	}
}

// matches reports whether msg is the reply to q.
func (q *query) matches(msg []byte) bool {
	if q.probe { // a server that answers anything at all is alive
		return len(msg) >= headerLen && string(msg[:2]) == string(q.frame[2:4]) && msg[2]&qrBit != 0
	}
	return wire.Matches(msg, q.message()) && (q.tcp || q.cookie.fits(msg))
}

// growReply makes reply at least n bytes long and keeps its content.
func (q *query) growReply(n int) {
	if n > len(q.reply) {
		q.reply = append(q.reply, make([]byte, n-len(q.reply))...)
	}
}

// Bits of the third and fourth byte of the header.
const (
	qrBit     = 0x80
	tcBit     = 0x02
	rdBit     = 0x01
	rcodeBits = 0x0F
)

// overUDP reports whether q was sent over UDP, and can be sent over TCP.
func (q *query) overUDP() bool { return !q.tcp && q.attempt.server.udp != q.attempt.server.tcp }

// truncatedReply returns the reply to q, of which only the header can be read, as a truncated one without records.
func (q *query) truncatedReply() (wire.Response, error) {
	end := headerLen + len(q.request.Name()) + 4
	b := append([]byte(nil), q.reply[:end]...)
	b[2] |= tcBit
	clear(b[6:headerLen]) // the numbers of records
	return parseResponse(b, q)
}

// isTruncated reports whether msg, which has a complete header, has the TC bit.
func isTruncated(msg []byte) bool { return msg[2]&tcBit != 0 }

// lacksEDNS reports whether msg is the reply of a server without EDNS to a query with an
// OPT record: FORMERR or NOTIMP without OPT (RFC 6891, 6.2.2 and 7). Such replies have no
// other additional records either.
func lacksEDNS(msg []byte) bool {
	rcode := wire.Rcode(msg[3] & rcodeBits)
	return (rcode == wire.FormErr || rcode == wire.NotImp) && msg[10] == 0 && msg[11] == 0
}

// reportSoftError tells q's exchange that q, which is in flight, may get no reply. It does
// not block.
func (q *query) reportSoftError() {
	if q.wakeup == nil {
		return
	}
	q.softError.Store(true)
	select {
	case q.wakeup <- struct{}{}:
	default:
	}
	q.parking.Interrupt()
}

// attempt is what an exchange knows about one of its queries.
type attempt struct {
	server       *server
	via          transport
	rtt          *rtt
	started      time.Time // when this server was first asked
	sent         time.Time // when the query was last sent
	withoutEDNS  bool      // send the query without an OPT record
	cookieAgain  bool      // the query was sent again because of its cookie
	truncated    wire.Response
	hasTruncated bool // truncated holds the UDP reply
	cut          bool // the UDP reply could not be read to its end; truncated is made from its header
	parsed       wire.Response
	isParsed     bool // parsed holds the reply

	nextCheck     time.Time     // when to check it next; zero: never
	checkInterval time.Duration // time between the last checks; 0 before the first
	delays        delays
	isHedge       bool // sent because another server was late, or its own first reply
	repeats       bool // a hedge to the server that is late itself
	paid          bool // a hedge that has cost budget
	slowCounted   bool // already counted as slower than the 95th percentile
	unanswered    bool // already counted as unanswered
	hedged        bool // another server was asked because this one is late
	lost          bool // the query or its reply was lost: a repetition was answered in the usual time

	// recorded is its number in the exchange's recording, 0 for none; truncatedRecord is that with the truncated reply.
	recorded, truncatedRecord int
	retry                     string // see [Attempt.Retry]
}

// repeatsOverTCP reports whether q, which is probably lost, is repeated over TCP: servers that limit the rate of their replies
// over UDP drop the next one as well. If TCP is silent, it is repeated over UDP from another port.
func (q *query) repeatsOverTCP() bool {
	if q.attempt.repeats {
		return !q.tcp
	}
	return !q.attempt.server.tcpSilent.Load()
}
