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

// port is one connected socket and the calls in flight on it. What its reader
// alone uses stands first; the lock of its [udp] guards the rest.
type port struct {
	conn net.Conn
	raw  syscall.RawConn
	// failed is why the socket can't be used any more.
	failed error

	since time.Time // when it was opened
	uses  int       // the queries sent from it
	// retired ports get no more queries; the reader closes them once none is in
	// flight.
	retired bool
	strays  int
	// alarm is when the reader wakes up without a datagram; zero is never.
	alarm time.Time

	// ids are those of calls, index by index and in no order. Only the first
	// flying of both are in use. A look-up reads 256 bytes at most, in a row.
	ids    [maxUses]uint16
	calls  [maxUses]*call
	flying int
	all    *share.Division // the queries in flight on all ports of the udp
	// late are the IDs of queries nobody waits for any more, whose replies may come
	// still; nil for most ports. There are maxUses at most.
	late []uint16
}

// find gives the index of the call with this ID, -1 if there is none.
func (p *port) find(id uint16) int {
	for i, other := range p.ids[:p.flying] {
		if other == id {
			return i
		}
	}
	return -1
}

// put takes c in, under an ID that no other call here has.
func (p *port) put(c *call) {
	for p.find(c.sentID()) >= 0 {
		c.redraw()
	}
	p.ids[p.flying], p.calls[p.flying] = c.sentID(), c
	c.port = p
	p.flying++
	p.all.Add(c.client)
	p.uses++
}

// remove takes the i-th call out; the last one takes its place.
func (p *port) remove(i int) {
	p.all.Remove(p.calls[i].client)
	p.calls[i].port = nil
	p.flying--
	last := p.flying
	p.ids[i], p.calls[i] = p.ids[last], p.calls[last]
	p.calls[last] = nil
}

// abandon takes the i-th call out, whose reply may come still.
func (p *port) abandon(i int) *call {
	c := p.calls[i]
	p.late = append(p.late, p.ids[i])
	p.remove(i)
	return c
}

// belated reports whether msg is the reply to a query that nobody waits for any more:
// no forger, only a server that was slow.
func (p *port) belated(msg []byte) bool {
	if len(msg) < headerLen || msg[2]&qrBit == 0 {
		return false
	}
	i := slices.Index(p.late, binary.BigEndian.Uint16(msg))
	if i < 0 {
		return false
	}
	p.late = slices.Delete(p.late, i, i+1)
	return true
}

// end is the end of the i-th call's flight: with err, or with the reply it holds.
func (p *port) end(i int, err error) {
	c := p.calls[i]
	p.remove(i)
	c.land(err)
}

// deliver ends the flight of the call that msg, a datagram, is the reply to; false
// if there is none. msg is copied.
func (p *port) deliver(msg []byte) bool {
	if len(msg) < headerLen {
		return false
	}
	i := p.find(binary.BigEndian.Uint16(msg))
	if i < 0 || !p.calls[i].answeredBy(msg) {
		return false
	}
	p.calls[i].keep(msg)
	p.end(i, nil)
	return true
}

// expire ends the flights whose time is over at now, and gives when the next one's
// is; zero if none is left.
func (p *port) expire(now time.Time) (next time.Time) {
	for i := p.flying - 1; i >= 0; i-- { // downwards: what takes i's place was seen
		switch until := p.calls[i].until; {
		case !until.After(now):
			p.abandon(i).land(os.ErrDeadlineExceeded)
		case next.IsZero() || until.Before(next):
			next = until
		}
	}
	return next
}

// fail ends all flights with err.
func (p *port) fail(err error) {
	for p.flying > 0 {
		p.end(p.flying-1, err)
	}
}

// longAgo as the time to wake up is at once.
var longAgo = time.Unix(1, 0)

// wake makes the reader wake up at at the latest. It costs a timer only where the
// reader would sleep for longer: once per port, nearly, since all queries have the
// same time.
func (p *port) wake(at time.Time) {
	if p.alarm.IsZero() || at.Before(p.alarm) {
		p.alarm = at
		_ = p.conn.SetReadDeadline(at) // fails on a closed socket, whose reader is gone
	}
}

// over reports whether nothing is left to do but to close the socket.
func (p *port) over() bool { return p.retired && p.flying == 0 }
