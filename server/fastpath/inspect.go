package fastpath

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

// Copies returns the copies of answers for name, in lower case and wire form: at the listener at, and of the
// record type qtype. A zero value means all. The order is not specified. Nothing is counted or kept in use.
func (p *Program) Copies(name []byte, qtype uint16, at netip.AddrPort) []CopyInfo {
	return p.table.copies(name, qtype, p.listenerNumbers(at), p.epochs)
}

// listenerNumbers returns the numbers of the listener at, or of all for a zero at, each with an address.
func (p *Program) listenerNumbers(at netip.AddrPort) map[uint32]netip.AddrPort {
	p.mu.Lock()
	defer p.mu.Unlock()
	numbers := make(map[uint32]netip.AddrPort)
	for door, n := range p.listeners {
		if addr := doorAddr(&door); door.Any == 0 && (!at.IsValid() || at == addr) {
			numbers[n] = addr
		}
	}
	return numbers
}

// copies implements [Program.Copies]. epochs are the counters that copies depend on.
func (t *table) copies(name []byte, qtype uint16, listeners map[uint32]netip.AddrPort, epochs []atomic.Uint64) (list []CopyInfo) {
	var want programKey
	want.setName(name)
	now := kernelNow()
	t.mu.Lock()
	defer t.mu.Unlock()
	for place := range t.info {
		s := &t.slots[place]
		if t.info[place].reporter == nil || int(s.Key.NameLen) != len(name) || s.Key.Name != want.Name {
			continue
		}
		listener, ok := listeners[s.Key.Door]
		if found := s.Key.qtype(); ok && (qtype == 0 || found == qtype) {
			info := s.describe(now, epochs)
			info.Listener, info.Type = listener, found
			list = append(list, info)
		}
	}
	return list
}

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

// Client returns what the programs know of the client addr, for queries to the listener at. ok is false if it has
// not asked over the interface of a pod for a minute, or if there is no such listener.
func (p *Program) Client(addr netip.Addr, at netip.AddrPort) (c ClientInfo, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	listener := p.listeners[listenerKey(at)]
	state, ok := p.clients.state(addr)
	if !ok || listener == 0 {
		return c, false
	}
	now := uint64(kernelNow())
	result := state.result(listener, now)
	if now >= atomic.LoadUint64(&p.state.Deadline) {
		result = programResultLAPSED
	}
	if over := p.limit.result(addr, &p.clients.limited.buckets[state.Number], now); over != programResultRESULTS {
		result = over
	}
	c = ClientInfo{Interface: stampNumber(atomic.LoadUint64(&state.Place)), Result: results[result]}
	if a := p.links[c.Interface]; a != nil {
		c.Answering = a.answering
	}
	return c, true
}

// state returns the state of a client, false if it has none.
func (c *clients) state(addr netip.Addr) (*programClientState, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	client := newClient(addr)
	n, ok := c.number(client)
	if !ok || c.states[n].Client != client { // the program may have just given the number to another client
		return nil, false
	}
	return &c.states[n], true
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
