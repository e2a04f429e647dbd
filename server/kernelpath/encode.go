package kernelpath

import (
	"encoding/binary"
	"math"

	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/reply"
)

// Bits of the header's flags (RFC 1035, 4.1.1; RFC 4035, 3.2).
const (
	flagTC = 0x0200
	flagRD = 0x0100
	flagAD = 0x0020
	flagCD = 0x0010
)

const (
	optLen     = 11 // an OPT record without options
	optPadding = 12 // RFC 7830, 3
	doFlag     = 0x80
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
	if !s.setMarks(a) {
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
	var l reply.Layout
	if !l.Parse(&a.Answer) || !s.setLayout(&l, a, b[:len(tail)]) {
		return false
	}
	s.Sum = fold(sumOf(s.Head[:], 0) + sumOf(b[:len(tail)], behind))
	for i := range s.Tail {
		s.Tail[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return true
}

// setMarks makes s depend on a's marks and group. It returns false if a has too many marks.
func (s *programSlot) setMarks(a *Answer) bool {
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

// setLayout makes the program fill in what l says that changes, and clears that in the tail of a's reply. It returns
// false if the program cannot: only an OPT record without options at the end can be filled in, and only records of an
// even size below 256 rotate.
func (s *programSlot) setLayout(l *reply.Layout, a *Answer, tail []byte) bool {
	behind := uint16(a.Query.QuestionEnd())
	if (l.OPT != 0) != a.Query.EDNS || l.OPT != 0 && int(l.OPT) != len(a.Reply)-optLen || l.Size%2 != 0 || l.Size > math.MaxUint8 {
		return false
	}
	s.MaxSize, s.Ttls, s.Odd, s.TtlAt = 0, 0, 0, [reply.MaxTTLs]uint16{}
	if l.OPT != 0 {
		s.MaxSize = a.MaxSize
		clear(tail[len(tail)-optLen+3:][:2])
	}
	for i, at := range l.TTLs() {
		s.TtlAt[i] = at - behind
		s.Ttls++
		s.Odd += uint8(at & 1)
		clear(tail[s.TtlAt[i]:][:4])
	}
	s.Serial, s.SerialAt = 0, 0
	if l.Serial != 0 {
		s.Serial, s.SerialAt = a.Mark.Serial, l.Serial-behind
		clear(tail[s.SerialAt:][:4])
	}
	s.Turns, s.TurnSize, s.TurnAt = uint8(l.Rotated), uint8(l.Size), 0
	if l.Rotated > 0 {
		s.TurnAt = l.First - behind
	}
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

// hasMore reports whether s depends on exactly these marks besides its first.
func (s *programSlot) hasMore(marks []epoch.Mark) bool {
	if int(s.More) != len(marks) {
		return false
	}
	for i, m := range marks {
		if s.MoreAt[i] != m.Index || s.MoreEpoch[i] != m.Value {
			return false
		}
	}
	return true
}
