package upstream

import (
	"encoding/binary"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/nodens-dns/nodens/internal/share"
)

// udpSocket is one connected socket and the calls in flight on it. What its reader
// alone uses stands first; the lock of its [udpTransport] guards the rest.
type udpSocket struct {
	conn net.Conn
	raw  syscall.RawConn
	// readErr is why the socket can't be used any more.
	readErr error

	openedAt time.Time // when it was opened
	sent     int       // the queries sent from it
	// retired ports get no more queries; the reader closes them once none is in
	// flight.
	retired    bool
	unexpected int
	// wakeAt is when the reader wakes up without a datagram; zero is never.
	wakeAt time.Time

	// ids are those of calls, index by index and in no order. Only the first
	// flying of both are in use. A look-up reads 256 bytes at most, in a row.
	ids      [maxQueriesPerSocket]uint16
	queries  [maxQueriesPerSocket]*query
	inFlight int
	division *share.Division // the queries in flight on all ports of the udp
	// orphanIDs are the IDs of queries nobody waits for any more, whose replies may come
	// still; nil for most ports. There are maxUses at most.
	orphanIDs []uint16
}

// indexOf gives the index of the call with this ID, -1 if there is none.
func (p *udpSocket) indexOf(id uint16) int {
	for i, other := range p.ids[:p.inFlight] {
		if other == id {
			return i
		}
	}
	return -1
}

// add takes c in, under an ID that no other call here has.
func (p *udpSocket) add(c *query) {
	for p.indexOf(c.sentID()) >= 0 {
		c.replaceID()
	}
	p.ids[p.inFlight], p.queries[p.inFlight] = c.sentID(), c
	c.socket = p
	p.inFlight++
	p.division.Add(c.client)
	p.sent++
}

// remove takes the i-th call out; the last one takes its place.
func (p *udpSocket) remove(i int) {
	p.division.Remove(p.queries[i].client)
	p.queries[i].socket = nil
	p.inFlight--
	last := p.inFlight
	p.ids[i], p.queries[i] = p.ids[last], p.queries[last]
	p.queries[last] = nil
}

// orphan takes the i-th call out, whose reply may come still.
func (p *udpSocket) orphan(i int) *query {
	c := p.queries[i]
	p.orphanIDs = append(p.orphanIDs, p.ids[i])
	p.remove(i)
	return c
}

// takeOrphanReply reports whether msg is the reply to a query that nobody waits for any more:
// no forger, only a server that was slow.
func (p *udpSocket) takeOrphanReply(msg []byte) bool {
	if len(msg) < headerLen || msg[2]&qrBit == 0 {
		return false
	}
	i := slices.Index(p.orphanIDs, binary.BigEndian.Uint16(msg))
	if i < 0 {
		return false
	}
	p.orphanIDs = slices.Delete(p.orphanIDs, i, i+1)
	return true
}

// complete is the end of the i-th call's flight: with err, or with the reply it holds.
func (p *udpSocket) complete(i int, err error) {
	c := p.queries[i]
	p.remove(i)
	c.complete(err)
}

// deliver ends the flight of the call that msg, a datagram, is the reply to; false
// if there is none. msg is copied.
func (p *udpSocket) deliver(msg []byte) bool {
	if len(msg) < headerLen {
		return false
	}
	i := p.indexOf(binary.BigEndian.Uint16(msg))
	if i < 0 || !p.queries[i].matches(msg) {
		return false
	}
	p.queries[i].storeDatagram(msg)
	p.complete(i, nil)
	return true
}

// expire ends the flights whose time is over at now, and gives when the next one's
// is; zero if none is left.
func (p *udpSocket) expire(now time.Time) (next time.Time) {
	for i := p.inFlight - 1; i >= 0; i-- { // downwards: what takes i's place was seen
		switch until := p.queries[i].deadline; {
		case !until.After(now):
			p.orphan(i).complete(os.ErrDeadlineExceeded)
		case next.IsZero() || until.Before(next):
			next = until
		}
	}
	return next
}

// failAll ends all flights with err.
func (p *udpSocket) failAll(err error) {
	for p.inFlight > 0 {
		p.complete(p.inFlight-1, err)
	}
}

// immediately as the time to wake up is at once.
var immediately = time.Unix(1, 0)

// wakeBy makes the reader wake up at at the latest. It costs a timer only where the
// reader would sleep for longer: once per port, nearly, since all queries have the
// same time.
func (p *udpSocket) wakeBy(at time.Time) {
	if p.wakeAt.IsZero() || at.Before(p.wakeAt) {
		p.wakeAt = at
		_ = p.conn.SetReadDeadline(at) // fails on a closed socket, whose reader is gone
	}
}

// finished reports whether nothing is left to do but to close the socket.
func (p *udpSocket) finished() bool { return p.retired && p.inFlight == 0 }
