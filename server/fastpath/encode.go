package fastpath

import (
	"encoding/binary"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Bits of the header's flags (RFC 1035, 4.1.1; RFC 4035, 3.2).
const (
	flagTC = 0x0200
	flagRD = 0x0100
	flagAD = 0x0020
	flagCD = 0x0010
)

const (
	headerLen  = wire.HeaderLen
	optLen     = 11 // an OPT record without options
	optPadding = 12 // RFC 7830, 3
	doFlag     = 0x80
	// maxTTLs is how many TTLs of one answer can count down.
	maxTTLs = len(programSlot{}.TtlAt)
	// maxName is the longest name, in bytes.
	maxName = 8 * len(programKey{}.Name)
)

// variant returns the bits of q that distinguish replies. ok is false for queries that the
// program does not answer. It answers queries with one question of class IN, nothing
// unusual in the header, no record except OPT, no option except padding, and no trailing
// bytes.
func variant(q *wire.Query) (v programVariant, ok bool) {
	p := q.Packet
	flags := binary.BigEndian.Uint16(p[2:])
	if flags&^(flagRD|flagAD|flagCD) != 0 || binary.BigEndian.Uint64(p[4:])>>16 != 1<<32 || binary.BigEndian.Uint16(p[q.QuestionEnd()-2:]) != wire.ClassIN {
		return 0, false
	}
	for _, f := range [...]struct {
		flag uint16
		bit  programVariant
	}{{flagRD, programVariantRD}, {flagAD, programVariantAD}, {flagCD, programVariantCD}} {
		if flags&f.flag != 0 {
			v |= f.bit
		}
	}
	rest := p[q.QuestionEnd():]
	switch binary.BigEndian.Uint16(p[10:]) {
	case 0:
		return v, len(rest) == 0
	case 1:
		if !plainOPT(rest) {
			return 0, false
		}
		v |= programVariantEDNS
		if q.DO {
			v |= programVariantDO
		}
		return v, true
	}
	return 0, false
}

// plainOPT reports whether b is an OPT record of version 0 with no flag except DO and no
// option except padding (RFC 6891, 6.1.2).
func plainOPT(b []byte) bool {
	if len(b) < optLen {
		return false
	}
	head := [optLen]byte(b)
	clear(head[3:5]) // the size
	head[7] &^= doFlag
	options := b[optLen:]
	binary.BigEndian.PutUint16(head[9:], binary.BigEndian.Uint16(head[9:])-uint16(len(options)))
	if head != [optLen]byte{2: byte(wire.TypeOPT)} {
		return false
	}
	return len(options) == 0 || len(options) >= 4 && binary.BigEndian.Uint16(options) == optPadding &&
		int(binary.BigEndian.Uint16(options[2:])) == len(options)-4
}

// newKey returns the key of an answer to q at the listeners with that number; false if q
// is not answered in the kernel.
func newKey(door uint32, q *wire.Query) (k programKey, ok bool) {
	v, ok := variant(q)
	name := q.Name()
	if !ok || len(name) > maxName {
		return k, false
	}
	k.Door, k.Variant, k.NameLen = door, uint8(v), uint8(len(name))
	k.Type = binary.NativeEndian.Uint16(q.Packet[q.QuestionEnd()-4:])
	k.setName(name)
	return k, true
}

// setName sets the name of k, of which it takes maxName bytes at most.
func (k *programKey) setName(name []byte) {
	var b [maxName]byte
	copy(b[:], name)
	for i := range k.Name {
		k.Name[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
}

// tag returns the hash by which the program finds k; never 0.
func (k *programKey) tag(seed uint64) uint64 {
	mix := func(tag, word uint64) uint64 {
		tag = (tag ^ word) * seed
		return tag ^ tag>>32
	}
	tag := uint64(k.Door)
	for _, w := range k.Name[:(int(k.NameLen)+7)/8] {
		tag = mix(tag, w)
	}
	return max(1, mix(tag, uint64(k.Type)<<8|uint64(k.Variant)))
}

// encode makes t.fresh the answer a, except for its key. It returns false if the program
// cannot give such an answer.
func (t *table) encode(a *Answer) bool {
	s, msg, behind := &t.fresh, a.Reply, a.Query.QuestionEnd()
	tail := msg[behind:]
	if !t.setMarks(a) {
		return false
	}
	if len(msg) > int(programBoundMAX_MESSAGE) || len(tail) == 0 || len(tail) > 8*len(s.Tail) || binary.BigEndian.Uint16(msg[2:])&flagTC != 0 {
		return false
	}
	var b [8 * len(s.Tail)]byte
	copy(b[:], tail)
	s.Expires, s.Ends, s.Life = t.expiry(a), uint64(a.Ends+t.offset), a.Life
	s.Waste = flag(a.Waste)
	s.TailLen = uint16(len(tail))
	s.Head = [10]byte(msg[2:])
	l := layout{slot: s, query: a.Query, tail: b[:]}
	if !l.parse(a) {
		return false
	}
	sum := sumOf(s.Head[:], 0) + sumOf(b[:len(tail)], behind)
	s.Sum = fold(sum)
	for i := range s.Tail {
		s.Tail[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return true
}

// setMarks makes t.fresh depend on a's marks and group. It returns false if a has too many marks.
func (t *table) setMarks(a *Answer) bool {
	s := &t.fresh
	if len(a.More) > len(s.MoreAt) {
		return false
	}
	s.Epoch, s.EpochAt, s.Group, s.GroupAt = a.Mark.Value, a.Mark.Index, a.Group.Number, a.Group.Mark.Index
	s.More = uint8(len(a.More))
	for i, m := range a.More {
		s.MoreEpoch[i], s.MoreAt[i] = m.Value, m.Index
	}
	return true
}

// layout finds the places in the tail of a reply that the program changes.
type layout struct {
	slot  *programSlot
	query *wire.Query
	tail  []byte
	opt   bool
	next  int // offset of the next record that rotates
}

func (l *layout) parse(a *Answer) bool {
	s, want := l.slot, 0
	s.Ttls, s.Odd, s.Turns, s.TurnSize, s.TurnAt, s.MaxSize, s.Serial, s.SerialAt = 0, 0, 0, 0, 0, 0, 0, 0
	for i := 6; i < headerLen; i += 2 {
		want += int(binary.BigEndian.Uint16(a.Reply[i:]))
	}
	for section, r := range l.query.Records(a.Reply) {
		want--
		if l.opt || !l.addRecord(a, section, r) { // OPT is the last
			return false
		}
	}
	return want == 0 && l.opt == l.query.EDNS
}

// addRecord handles one record; false if the program cannot.
func (l *layout) addRecord(a *Answer, section wire.Section, r wire.Record) bool {
	switch {
	case r.Type == wire.TypeOPT:
		return l.addOPT(a, r.Start-l.query.QuestionEnd())
	case a.Counts && !l.addTTL(r):
		return false
	case r.Type == wire.TypeSOA && a.Mark.Serial != 0:
		return l.addSerial(a, r)
	case section == wire.Answer && a.Shuffled:
		return l.addRotated(r)
	}
	return true
}

// addOPT handles the OPT record at that offset of the tail; its size is taken from the
// query.
func (l *layout) addOPT(a *Answer, at int) bool {
	if at != int(l.slot.TailLen)-optLen {
		return false
	}
	l.opt, l.slot.MaxSize = true, a.MaxSize
	clear(l.tail[at+3 : at+5])
	return true
}

// addTTL makes the TTL of r count down.
func (l *layout) addTTL(r wire.Record) bool {
	s, at := l.slot, r.TTLOffset()-l.query.QuestionEnd()
	if int(s.Ttls) == maxTTLs {
		return false
	}
	s.TtlAt[s.Ttls] = uint16(at)
	s.Ttls++
	s.Odd += uint8(r.TTLOffset() & 1)
	clear(l.tail[at : at+4])
	return true
}

// serialBack is how far from the end of a SOA record its serial is (RFC 1035, 3.3.13).
const serialBack = 20

// addSerial makes the program fill in the serial of r, a SOA record.
func (l *layout) addSerial(a *Answer, r wire.Record) bool {
	s, at := l.slot, r.End-serialBack-l.query.QuestionEnd()
	if s.SerialAt != 0 || r.End-r.Data < serialBack {
		return false
	}
	s.Serial, s.SerialAt = a.Mark.Serial, uint16(at)
	clear(l.tail[at : at+4])
	return true
}

// addRotated makes r change places with others, if it is an address. It returns false for
// addresses that are not adjacent or whose records differ in size.
func (l *layout) addRotated(r wire.Record) bool {
	s, at, size := l.slot, r.Start-l.query.QuestionEnd(), r.End-r.Start
	if r.Type != wire.TypeA && r.Type != wire.TypeAAAA {
		return s.Turns == 0
	}
	if s.Turns == 0 {
		s.TurnAt, s.TurnSize, l.next = uint16(at), uint8(size), at
	}
	if at != l.next || size != int(s.TurnSize) || size%2 != 0 {
		return false
	}
	s.Turns++
	l.next += size
	return true
}

// sumOf returns the Internet checksum's sum (RFC 1071) of b, which is at that offset of a
// message, in the machine's byte order.
func sumOf(b []byte, at int) (sum uint32) {
	if at&1 != 0 {
		sum, b = uint32(b[0])<<8, b[1:] // little endian: the second byte of a word is the high one
	}
	for len(b) > 1 {
		sum += uint32(binary.LittleEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) > 0 {
		sum += uint32(b[0])
	}
	return sum
}

func fold(sum uint32) uint32 {
	sum = sum&0xFFFF + sum>>16
	return sum&0xFFFF + sum>>16
}
