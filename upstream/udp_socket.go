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
func (s *udpSocket) indexOf(id uint16) int {
	for i, other := range s.ids[:s.inFlight] {
		if other == id {
			return i
		}
	}
	return -1
}

// add takes c in, under an ID that no other call here has.
func (s *udpSocket) add(q *query) {
	for s.indexOf(q.sentID()) >= 0 {
		q.replaceID()
	}
	s.ids[s.inFlight], s.queries[s.inFlight] = q.sentID(), q
	q.socket = s
	s.inFlight++
	s.division.Add(q.client)
	s.sent++
}

// remove takes the i-th call out; the last one takes its place.
func (s *udpSocket) remove(i int) {
	s.division.Remove(s.queries[i].client)
	s.queries[i].socket = nil
	s.inFlight--
	last := s.inFlight
	s.ids[i], s.queries[i] = s.ids[last], s.queries[last]
	s.queries[last] = nil
}

// orphan takes the i-th call out, whose reply may come still.
func (s *udpSocket) orphan(i int) *query {
	q := s.queries[i]
	s.orphanIDs = append(s.orphanIDs, s.ids[i])
	s.remove(i)
	return q
}

// takeOrphanReply reports whether msg is the reply to a query that nobody waits for any more:
// no forger, only a server that was slow.
func (s *udpSocket) takeOrphanReply(msg []byte) bool {
	if len(msg) < headerLen || msg[2]&qrBit == 0 {
		return false
	}
	i := slices.Index(s.orphanIDs, binary.BigEndian.Uint16(msg))
	if i < 0 {
		return false
	}
	s.orphanIDs = slices.Delete(s.orphanIDs, i, i+1)
	return true
}

// complete is the end of the i-th call's flight: with err, or with the reply it holds.
func (s *udpSocket) complete(i int, err error) {
	q := s.queries[i]
	s.remove(i)
	q.complete(err)
}

// deliver ends the flight of the call that msg, a datagram, is the reply to; false
// if there is none. msg is copied.
func (s *udpSocket) deliver(msg []byte) bool {
	if len(msg) < headerLen {
		return false
	}
	i := s.indexOf(binary.BigEndian.Uint16(msg))
	if i < 0 || !s.queries[i].matches(msg) {
		return false
	}
	s.queries[i].storeDatagram(msg)
	s.complete(i, nil)
	return true
}

// expire ends the flights whose time is over at now, and gives when the next one's
// is; zero if none is left.
func (s *udpSocket) expire(now time.Time) (next time.Time) {
	for i := s.inFlight - 1; i >= 0; i-- { // downwards: what takes i's place was seen
		switch until := s.queries[i].deadline; {
		case !until.After(now):
			s.orphan(i).complete(os.ErrDeadlineExceeded)
		case next.IsZero() || until.Before(next):
			next = until
		}
	}
	return next
}

// failAll ends all flights with err.
func (s *udpSocket) failAll(err error) {
	for s.inFlight > 0 {
		s.complete(s.inFlight-1, err)
	}
}

// immediately as the time to wake up is at once.
var immediately = time.Unix(1, 0)

// wakeBy makes the reader wake up at at the latest. It costs a timer only where the
// reader would sleep for longer: once per port, nearly, since all queries have the
// same time.
func (s *udpSocket) wakeBy(at time.Time) {
	if s.wakeAt.IsZero() || at.Before(s.wakeAt) {
		s.wakeAt = at
		_ = s.conn.SetReadDeadline(at) // fails on a closed socket, whose reader is gone
	}
}

// finished reports whether nothing is left to do but to close the socket.
func (s *udpSocket) finished() bool { return s.retired && s.inFlight == 0 }
