package upstream

import (
	"crypto/rand"
	"encoding/binary"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// headerLen is the DNS header (RFC 1035, 4.1.1).
	headerLen = 12
	// optLen is the OPT record at the end of what wire.AppendQuery builds.
	optLen = 11
	// maxDatagram is the longest UDP reply taken whole. Servers that ignore the
	// size we claim send up to 4096, the usual limit of BIND and Unbound; what is
	// longer is fetched over TCP. Twice that would double the buffers it is read
	// into.
	maxDatagram = 4096
	// maxKeptBuffer is the longest reply buffer kept for the next query: a node that
	// once fetched a 64 KiB answer should not keep that much per query in flight.
	maxKeptBuffer = 16 << 10
	// initialReplySize is where reply buffers start: at the size we claim, which hardly
	// any reply is beyond. Half would grow for signed answers, double would be
	// held by every query in flight for nothing.
	initialReplySize = DefaultPayload
	// idBatch is the bytes read from the system's generator at once: a read costs
	// about as much for 64 as for 2, so an ID costs a thirty-second of it.
	idBatch = 64
)

// query is a query to one server: one that a [exchange] asks, a scout or a probe. It
// belongs to one goroutine at a time and is reused.
type query struct {
	request *wire.Query
	client  share.Client // who its flights are counted for
	payload uint16
	tcp     bool
	probe   bool    // any reply with the right ID will do
	attempt attempt // its race's

	// frame is the length prefix of TCP (RFC 1035, 4.2.2) and the query behind it.
	frame []byte
	// reply is where replies are read into or copied to.
	reply []byte

	// A flight ends at until at the latest. The call is sent to landed when it has;
	// then err says why, or reply holds the got bytes of the reply.
	deadline time.Time
	done     chan *query
	socket   *udpSocket  // whose reader waits for the reply; its udp's lock guards it
	conn     *streamConn // the same over TCP, with the lock of its stream
	resends  int         // how often link broke and was another
	// sequence is which of the queries on link it was, and boarded when it came there.
	sequence   uint32
	movedFrom  *streamConn // where it was held up before, if it was
	assignedAt time.Time
	dohRequest *dohRequest // the same over HTTPS, with the lock of its doh
	err        error
	replyLen   int
	// writeFunc sends the query from a socket. It is made once, since a function that
	// is made to be called by an interface is allocated; failed is its result.
	writeFunc func(fd uintptr) bool
	writeErr  error
	// wakeup is rung when the flight, which goes on, may get no reply; warned says that
	// it was. nil for what is in no race.
	wakeup    chan<- struct{}
	softError atomic.Bool

	randomBytes [idBatch]byte
	randomLeft  int // bytes of ids not used yet
}

func newQuery() *query {
	q := &query{
		frame: make([]byte, 0, 2+headerLen+wire.MaxName+4+optLen),
		reply: make([]byte, initialReplySize),
		done:  make(chan *query, 1),
	}
	q.writeFunc = func(fd uintptr) bool {
		q.writeErr = sendDatagram(fd, q.message())
		return true // whatever came of it: false would wait until fd is writable
	}
	return q
}

// reset lets go of the query and of a buffer too large to keep.
func (q *query) reset() {
	q.request, q.client = nil, share.Nobody
	q.attempt = attempt{}
	if len(q.reply) > maxKeptBuffer {
		q.reply = make([]byte, initialReplySize)
	}
}

// newID is the next query ID. The IDs come from crypto/rand: math/rand/v2's default
// source is a ChaCha8 today, but its documentation promises no more than speed,
// and a guessable ID is a poisoned cache (RFC 5452, 4.3).
func (q *query) newID() uint16 {
	if q.randomLeft == 0 {
		rand.Read(q.randomBytes[:]) // never fails: the runtime ends the process instead
		q.randomLeft = idBatch
	}
	q.randomLeft -= 2
	return binary.BigEndian.Uint16(q.randomBytes[q.randomLeft:])
}

// build writes the query into frame, with an ID of its own.
func (q *query) build(edns bool) {
	b := wire.AppendQuery(append(q.frame[:0], 0, 0), q.newID(), q.request.Name(), q.request.Type, q.request, q.payload)
	if !edns {
		b = stripOPT(b)
	}
	q.setFrame(b)
}

// setFrame completes the length prefix.
func (q *query) setFrame(b []byte) {
	binary.BigEndian.PutUint16(b, uint16(len(b)-2))
	q.frame = b
}

// stripOPT takes the OPT record off a framed query of wire.AppendQuery's.
func stripOPT(b []byte) []byte {
	b = b[:len(b)-optLen]
	binary.BigEndian.PutUint16(b[2+10:], 0) // ARCOUNT
	return b
}

// message is the query without its length prefix.
func (q *query) message() []byte { return q.frame[2:] }

// sentID is the ID in frame.
func (q *query) sentID() uint16 { return binary.BigEndian.Uint16(q.frame[2:]) }

// replaceID gives the query another ID.
func (q *query) replaceID() { binary.BigEndian.PutUint16(q.frame[2:], q.newID()) }

// complete ends c's flight, with err or the reply it holds. It never blocks: landed has
// room for every call of an exchange, and a flight ends once.
func (q *query) complete(err error) {
	q.err = err
	q.done <- q
}

// sendFrom sends the query from a connected socket. It does not block.
func (q *query) sendFrom(socket syscall.RawConn) error {
	if err := socket.Write(q.writeFunc); err != nil {
		return err
	}
	return q.writeErr
}

// storeDatagram copies the reply msg, a datagram.
func (q *query) storeDatagram(msg []byte) {
	q.growReply(len(msg))
	q.replyLen = copy(q.reply, msg)
	if q.replyLen > maxDatagram { // the kernel has cut the rest off
		q.reply[2] |= tcBit
	}
}

// matches reports whether msg is the reply waited for.
func (q *query) matches(msg []byte) bool {
	if q.probe { // a server that answers anything at all is alive
		return len(msg) >= headerLen && string(msg[:2]) == string(q.frame[2:4]) && msg[2]&qrBit != 0
	}
	return wire.Matches(msg, q.message())
}

// growReply makes reply at least n bytes long and keeps what is in it.
func (q *query) growReply(n int) {
	if n > len(q.reply) {
		q.reply = append(q.reply, make([]byte, n-len(q.reply))...)
	}
}

// Bits of the header's third and fourth byte.
const (
	qrBit     = 0x80
	tcBit     = 0x02
	rdBit     = 0x01
	rcodeBits = 0x0F
)

// isTruncated reports whether msg, which has a header, has the TC bit.
func isTruncated(msg []byte) bool { return msg[2]&tcBit != 0 }

// lacksEDNS reports whether msg is how a server that knows no EDNS answers a
// query with an OPT record: FORMERR or NOTIMP, no OPT (RFC 6891, 6.2.2 and 7).
// Such replies hold no records, so that no additional record means no OPT.
func lacksEDNS(msg []byte) bool {
	rcode := wire.Rcode(msg[3] & rcodeBits)
	return (rcode == wire.FormErr || rcode == wire.NotImp) && msg[10] == 0 && msg[11] == 0
}
