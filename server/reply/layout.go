package reply

import (
	"encoding/binary"

	"github.com/nodens-dns/nodens/internal/wire"
)

// MaxTTLs bounds the records of a reply whose TTLs count down.
const MaxTTLs = 24

// serialFromEnd is how far from the end of a SOA record its serial is (RFC 1035, 3.3.13).
const serialFromEnd = 20

// Layout is where the parts of a reply are that change when it is sent again. Offsets count from the beginning of the
// message; 0 is none.
type Layout struct {
	ttls  [MaxTTLs]uint16
	nttls int
	// Serial is the offset of the SOA record's serial, OPT that of the OPT record.
	Serial, OPT uint16
	// Rotated is the number of the addresses that change places. They are adjacent, the first one is at First, and
	// each record has Size bytes.
	First, Size, Rotated uint16
}

// TTLs returns the offsets of the TTLs that count down.
func (l *Layout) TTLs() []uint16 { return l.ttls[:l.nttls] }

// Parse makes l the layout of a's reply. It returns false if the reply can't be sent again: it is malformed or has too
// many records, or its addresses are not adjacent or not of one size.
func (l *Layout) Parse(a *Answer) bool {
	*l = Layout{}
	want := 0
	for i := 6; i < wire.HeaderLen; i += 2 {
		want += int(binary.BigEndian.Uint16(a.Reply[i:]))
	}
	for section, r := range a.Query.Records(a.Reply) {
		want--
		if !l.addRecord(a, section, r) {
			return false
		}
	}
	return want == 0
}

// addRecord notes what changes in the record r; false if that is not possible.
func (l *Layout) addRecord(a *Answer, section wire.Section, r wire.Record) bool {
	if r.Type == wire.TypeOPT {
		l.OPT = uint16(r.Start)
		return true
	}
	if a.CountsDown {
		if l.nttls == MaxTTLs {
			return false
		}
		l.ttls[l.nttls] = uint16(r.TTLOffset())
		l.nttls++
	}
	switch {
	case r.Type == wire.TypeSOA && a.Mark.Serial != 0:
		return l.addSerial(r)
	case section == wire.Answer && a.Shuffled && (r.Type == wire.TypeA || r.Type == wire.TypeAAAA):
		return l.addRotated(r)
	}
	return true
}

// addSerial notes the serial of r, a SOA record; false if there is another one.
func (l *Layout) addSerial(r wire.Record) bool {
	at := r.End - serialFromEnd
	if l.Serial != 0 || at < r.Data {
		return false
	}
	l.Serial = uint16(at)
	return true
}

// addRotated makes r one of the records that change places; false if it is not behind the others, or
// not as long.
func (l *Layout) addRotated(r wire.Record) bool {
	start, size := uint16(r.Start), uint16(r.End-r.Start)
	if l.Rotated == 0 {
		l.First, l.Size = start, size
	}
	adjacent := size == l.Size && start == l.First+l.Rotated*size
	l.Rotated++
	return adjacent
}

// patch sets the TTL and the serial in msg, which has the layout.
func (l *Layout) patch(msg []byte, ttl, serial uint32) {
	for _, at := range l.TTLs() {
		binary.BigEndian.PutUint32(msg[at:], ttl)
	}
	if l.Serial != 0 {
		binary.BigEndian.PutUint32(msg[l.Serial:], serial)
	}
}

// rotate rotates the addresses in msg, a copy of kept, by turn.
func (l *Layout) rotate(msg, kept []byte, turn uint64) {
	all := l.Rotated * l.Size
	split := uint16(turn%uint64(l.Rotated)) * l.Size //nolint:gosec // below 65,536
	from, to := kept[l.First:l.First+all], msg[l.First:]
	copy(to[copy(to, from[split:]):], from[:split])
}
