package transfer

import (
	"errors"
	"iter"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// maxMessage is the size of the messages of a transfer, in bytes: compression pointers reach this far, and
	// a slow client takes it within the write timeout.
	maxMessage = 16 << 10
	// reserve is the room that a message with one large record keeps for OPT and TSIG records, in bytes.
	reserve = 1 << 10
)

var errTooLarge = errors.New("a record does not fit into a message")

// Stream is the answer to a query for a whole zone: a sequence of messages. It is not safe for concurrent use, and
// must be closed.
type Stream struct {
	soa     wire.RR
	next    func() (wire.RR, bool)
	stop    func()
	pending wire.RR // the next record
	state   state
	records int
}

// state is where the pending record comes from.
type state uint8

const (
	atFirstSOA state = iota
	atRecords
	atLastSOA
	atEnd
)

// NewStream returns the stream of a zone. records may have the SOA record; it is left out. The bytes of records must not
// change while the stream is in use.
func NewStream(soa wire.RR, records iter.Seq[wire.RR]) *Stream {
	s := &Stream{soa: soa, pending: soa}
	s.next, s.stop = iter.Pull(records)
	return s
}

// Close ends the iteration over the records.
func (s *Stream) Close() { s.stop() }

// More reports whether records are left for another message.
func (s *Stream) More() bool { return s.state != atEnd }

// Fill writes as many records to r, an empty reply, as a message of the transfer has. The error is for a record that
// does not fit into any message.
func (s *Stream) Fill(r *wire.Reply) error {
	var known wire.Compression
	r.SetAuthoritative()
	for s.More() {
		switch {
		case r.Count(wire.Answer) > 0 && !r.Fits(s.pending, maxMessage):
			return nil
		case !r.Fits(s.pending, wire.MaxMessage-reserve):
			return errTooLarge
		}
		r.AddRR(&known, wire.Answer, s.pending)
		s.records++
		s.advance()
	}
	return nil
}

// advance makes the following record pending.
func (s *Stream) advance() {
	if s.state == atLastSOA {
		s.state = atEnd
		return
	}
	s.state = atRecords
	for {
		rr, ok := s.next()
		if !ok {
			s.state, s.pending = atLastSOA, s.soa
			return
		}
		if rr.Type != wire.TypeSOA {
			s.pending = rr
			return
		}
	}
}

// UpToDate reports whether a client with the serial has the zone of soa, or a later version of it (RFC 1995, 2; RFC
// 1982).
func UpToDate(soa wire.RR, serial uint32) bool { return int32(serial-soa.Serial()) >= 0 }

const (
	// minRate is the least number of bytes that a client takes per second, on average over paceWindow. A slower one would keep one of
	// the places from others.
	minRate    = 32 << 10
	paceWindow = 10 * time.Second
)

// Pace judges whether a client takes a transfer fast enough. It is not safe for concurrent use.
type Pace struct {
	since time.Duration // the beginning of the window, by package clock
	bytes int           // taken since then
}

// NewPace returns the Pace of a transfer that begins now.
func NewPace(now time.Duration) Pace { return Pace{since: now} }

// Sustains counts a message of n bytes that the client has taken by now. It returns false if the client is too slow.
func (p *Pace) Sustains(now time.Duration, n int) bool {
	p.bytes += n
	elapsed := now - p.since
	if elapsed < paceWindow {
		return true
	}
	enough := p.bytes >= int(minRate*elapsed.Seconds())
	*p = NewPace(now)
	return enough
}
