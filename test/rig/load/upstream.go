package load

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Zones of the upstream. Names below Missing do not exist, answers for names below
// Late come Delay after the question, and for those below Slow SlowDelay after it. Names below
// Brief have the TTL BriefTTL, and names below Ten have ten addresses; all other names have one.
const (
	Missing = "none.example."
	Late    = "late.example."
	Slow    = "slow.example."
	Brief   = "brief.example."
	Ten     = "ten.example."
)

// Delay is how long the upstream takes over a late name: what a resolver in the
// same region takes for a name it knows. SlowDelay is what one takes for a name
// whose servers are far away.
const (
	Delay     = 2 * time.Millisecond
	SlowDelay = 500 * time.Millisecond
)

// TTL of what the upstream says, in seconds: an hour is longer than a
// run, so that nothing expires in it. BriefTTL is that of names below Brief.
const (
	TTL      = 3600
	BriefTTL = 1
)

var (
	missingWire = []byte("\x04none\x07example\x00")
	lateWire    = []byte("\x04late\x07example\x00")
	slowWire    = []byte("\x04slow\x07example\x00")
	briefWire   = []byte("\x05brief\x07example\x00")
	tenWire     = []byte("\x03ten\x07example\x00")
)

// maxDelayed is how many answers with the same delay may wait: at 20,000 queries a second and two
// milliseconds some 40 do, and a server that repeats its questions after a stall
// may ask each several times. An answer for which there is no place is never sent.
const maxDelayed = 1 << 14

// size is the length of the longest answer: header and question take 271 bytes at
// most, ten addresses 160, the SOA record and the OPT record together less than 80.
const size = 512

// reply is an answer that waits for its time.
type reply struct {
	due time.Duration
	to  address
	n   int
	msg [size]byte
}

// delayLine is a ring of answers that all wait equally long, so that the order of
// arrival is that of departure.
type delayLine struct {
	queue      []reply
	head, tail int
}

// next returns the place for the next answer; nil if there is none.
func (d *delayLine) next() *reply {
	if d.head-d.tail == len(d.queue) {
		return nil
	}
	return &d.queue[d.head%len(d.queue)]
}

// flush sends what is due.
func (d *delayLine) flush(fd int, now time.Duration) {
	for d.tail != d.head {
		r := &d.queue[d.tail%len(d.queue)]
		if r.due > now || send(fd, r.msg[:r.n], &r.to) == unix.EAGAIN {
			return
		}
		d.tail++
	}
}

// upstream answers questions. Only the loop uses it, but for the counters and the budget.
type upstream struct {
	fd         int
	buf, out   [size]byte
	late, slow delayLine
	budget     atomic.Pointer[Budget]

	asked, delayed, dropped atomic.Uint64
}

// receive takes one question and answers it or puts the answer into a queue.
func (u *upstream) receive(now time.Duration) {
	var from address
	n, ok := u.read(&from)
	if !ok {
		return
	}
	msg, delay := respond(u.out[:0], u.buf[:n])
	if msg == nil {
		return
	}
	if delay == 0 {
		u.asked.Add(1)
		_ = send(u.fd, msg, &from)
		return
	}
	line := &u.late
	if delay == SlowDelay {
		line = &u.slow
	}
	r := line.next()
	if r == nil {
		u.dropped.Add(1)
		return
	}
	u.delayed.Add(1)
	r.due, r.to, r.n = now+delay, from, copy(r.msg[:], msg)
	line.head++
}

// read reads one datagram; false if there is none, or none within the budget.
func (u *upstream) read(from *address) (n int, ok bool) {
	b := u.budget.Load()
	if b == nil {
		n, errno := receive(u.fd, u.buf[:], from)
		return n, errno == 0
	}
	// The network would drop it when it arrives, whenever the loop has its core.
	n, at, errno := receiveStamped(u.fd, u.buf[:], from)
	return n, errno == 0 && b.take(at)
}

// flush sends what is due.
func (u *upstream) flush(now time.Duration) {
	u.late.flush(u.fd, now)
	u.slow.flush(u.fd, now)
}

// waits says whether an answer waits for its time.
func (u *upstream) waits() bool { return u.late.head != u.late.tail || u.slow.head != u.slow.tail }

// respond appends the answer to a query, and returns how long it takes. It
// returns nil for what is no query with one question.
func respond(out, query []byte) (msg []byte, delay time.Duration) {
	end := question(query)
	if end == 0 {
		return nil, 0
	}
	name := query[12 : end-4]
	rcode, answers := content(name, binary.BigEndian.Uint16(query[end-4:]))
	authority, ttl := byte(0), uint32(TTL)
	if ends(name, briefWire) {
		ttl = BriefTTL
	}
	if answers == 0 {
		authority = 1
	}
	out = append(out, query[0], query[1], 0x80|query[2]&0x79, 0x80|rcode, 0, 1, 0, answers, 0, authority, 0, 0)
	out = append(out, query[12:end]...)
	for i := range answers {
		out = append(out, 0xc0, 12, 0, 1, 0, 1)
		out = binary.BigEndian.AppendUint32(out, ttl)
		out = append(out, 0, 4, 192, 0, 2, 1+i)
	}
	if answers == 0 {
		out = appendSOA(out)
	}
	// A query with an OPT record gets one (RFC 6891, 6.1.1): the root's name, the
	// type, the size of a datagram that passes everywhere.
	if query[11] > 0 && len(query) >= end+3 && query[end] == 0 && query[end+2] == 41 {
		out[11] = 1
		out = append(out, 0, 0, 41, 1232>>8, 1232&0xff, 0, 0, 0, 0, 0, 0)
	}
	return out, delayOf(name)
}

// delayOf is how long the answer for a name takes.
func delayOf(name []byte) time.Duration {
	switch {
	case ends(name, lateWire):
		return Delay
	case ends(name, slowWire):
		return SlowDelay
	default:
		return 0
	}
}

// content is what there is about a name: its rcode and the number of addresses.
func content(name []byte, qtype uint16) (rcode, answers byte) {
	switch address := qtype == 1; {
	case ends(name, missingWire):
		return 3, 0
	case address && ends(name, tenWire):
		return 0, 10
	case address:
		return 0, 1
	default:
		return 0, 0
	}
}

// appendSOA appends the SOA record of example.
func appendSOA(out []byte) []byte {
	out = append(out, "\x07example\x00\x00\x06\x00\x01"...)
	out = binary.BigEndian.AppendUint32(out, TTL)
	names := "\x02ns\x07example\x00" + "\x04host\x07example\x00"
	out = binary.BigEndian.AppendUint16(out, uint16(len(names)+20))
	out = append(out, names...)
	for _, n := range []uint32{1, TTL, TTL, TTL, TTL} {
		out = binary.BigEndian.AppendUint32(out, n)
	}
	return out
}

// question returns where the one question of the query ends, or 0.
func question(query []byte) int {
	if len(query) < 12 || query[2]&0x80 != 0 || query[4] != 0 || query[5] != 1 {
		return 0
	}
	i := 12
	for i < len(query) && query[i] != 0 {
		if query[i] > 63 {
			return 0
		}
		i += 1 + int(query[i])
	}
	if i += 5; i > len(query) || i > 12+255+4 {
		return 0
	}
	return i
}

// ends says whether the name is below the zone or is it; both in wire form, the
// zone in lower case.
func ends(name, zone []byte) bool {
	i := 0
	for len(name)-i > len(zone) {
		i += 1 + int(name[i])
	}
	if len(name)-i != len(zone) {
		return false
	}
	for j, c := range zone {
		got := name[i+j]
		if got >= 'A' && got <= 'Z' {
			got |= 0x20
		}
		if got != c {
			return false
		}
	}
	return true
}
