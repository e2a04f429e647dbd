package kernelpath

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// CopyInfo describes the copy of an answer at one moment.
type CopyInfo struct {
	// Listener is where it is given, Type the record type, and Form what its queries have.
	Listener netip.AddrPort
	Type     uint16
	Form     Form
	Rcode    wire.Rcode
	State    CopyState
	// Grouped says that only one [Group] of clients gets it.
	Grouped bool
	// Left is the time until it expires, 0 afterwards; -1 if it has no expiry. Idle is the time since it was last
	// given, -1 if it never was.
	Left, Idle time.Duration
}

// Form is the bits of queries that distinguish replies.
type Form struct{ RD, AD, CD, EDNS, DO bool }

// CopyState says whether a copy is given.
type CopyState uint8

// The states of copies.
const (
	ValidCopy    CopyState = iota
	ExpiredCopy            // its time is over
	OutdatedCopy           // what it was made from has changed
)

func (s CopyState) String() string { return [...]string{"valid", "expired", "outdated"}[s] }

// qtype returns the record type of k.
func (k *programKey) qtype() uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], k.Type)
	return binary.BigEndian.Uint16(b[:])
}

// describe describes the answer in s, except for its key, at now on the kernel's clock.
func (s *programSlot) describe(now time.Duration, epochs []atomic.Uint64) CopyInfo {
	has := func(v programVariant) bool { return programVariant(s.Key.Variant)&v != 0 }
	c := CopyInfo{
		Form:  Form{RD: has(programVariantRD), AD: has(programVariantAD), CD: has(programVariantCD), EDNS: has(programVariantEDNS), DO: has(programVariantDO)},
		Rcode: wire.Rcode(s.Head[1] & 0xF), Left: -1, Idle: -1, Grouped: s.Group != 0,
	}
	if used := atomic.LoadUint64(&s.Used); used != 0 {
		c.Idle = max(0, now-time.Duration(used))
	}
	if s.Expires != noExpiry {
		c.Left = max(0, time.Duration(s.Expires)-now)
	}
	switch {
	case c.Left == 0:
		c.State = ExpiredCopy
	case s.outdated(epochs):
		c.State = OutdatedCopy
	}
	return c
}

// outdated reports whether one of the counters that s depends on has moved.
func (s *programSlot) outdated(epochs []atomic.Uint64) bool {
	for i := range s.More {
		if epochs[s.MoreAt[i]].Load() != s.MoreEpoch[i] {
			return true
		}
	}
	return epochs[s.EpochAt].Load() != s.Epoch
}

// ClientInfo describes what the programs know of a client at one moment.
type ClientInfo struct {
	// Interface is the index of the interface on which its last query came. Answering reports whether queries are
	// answered on it; otherwise they are only watched.
	Interface int
	Answering bool
	// Result is what comes of a query for which there is a valid copy, as in [Counters]: "client_limit" or
	// "client_limit_passed" while the client has exceeded its limit.
	Result string
}

// result returns what comes of a query of the client to the listener with that number at now on the kernel's clock, if
// there is a valid copy, as the program decides (admitted in bpf/client.h).
func (s *programClientState) result(listener uint32, now uint64) programResult {
	if now < atomic.LoadUint64(&s.Barred) {
		return programResultMOVED
	}
	for i := range s.Passes {
		until := atomic.LoadUint64(&s.Passes[i].Until)
		switch {
		case stampNumber(until) != int(listener):
		case now>>programBoundSTAMP_TIME >= until>>programBoundSTAMP_BITS:
			return programResultSTRANGER
		case now >= atomic.LoadUint64(&s.Passes[i].Renew):
			return programResultRENEWAL
		default:
			return programResultANSWERED
		}
	}
	return programResultSTRANGER
}

// Unsupported returns why the program answers no query of the form of q, or with the reply, nil if it is not known; "" if
// it may.
func Unsupported(q *wire.Query, reply []byte) string {
	switch _, ok := variant(q); {
	case !ok:
		return "the query has flags, records or options that are not answered in the kernel"
	case len(q.Name()) > maxName:
		return "the name is longer than 128 bytes"
	case len(reply) > int(programBoundMAX_MESSAGE):
		return "the reply is longer than 512 bytes"
	case len(reply)-q.QuestionEnd() > 8*len(programSlot{}.Tail):
		return "the records of the reply are longer than 368 bytes"
	}
	return ""
}
