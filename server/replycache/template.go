package replycache

import (
	"encoding/binary"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// maxTTLs bounds the records of a reply whose TTLs count down.
const maxTTLs = 16

// serialFromEnd is how far from the end of a SOA record its serial is (RFC 1035, 3.3.13).
const serialFromEnd = 20

// template is a finished message with the places that change when it is sent again. Offsets
// count from the beginning of the message; 0 is none.
type template struct {
	msg    []byte
	ttls   [maxTTLs]uint16
	nttls  int
	serial int
	// rotated are the equally long and adjacent records that change places, from first on.
	first, size, rotated int
}

// set makes t the template of a's reply. It returns false if there is none: the reply has too many
// records, or addresses that are not adjacent.
func (t *template) set(a *Answer) bool {
	*t = template{msg: append(t.msg[:0], a.Reply...)}
	want := 0
	for i := 6; i < wire.HeaderLen; i += 2 {
		want += int(binary.BigEndian.Uint16(a.Reply[i:]))
	}
	for section, r := range a.Query.Records(a.Reply) {
		want--
		if r.Type != wire.TypeOPT && !t.addRecord(a, section, r) {
			return false
		}
	}
	return want == 0 && (t.serial != 0 || !a.Watches[0].HasSerial())
}

// addRecord notes what changes in the record r; false if that is not possible.
func (t *template) addRecord(a *Answer, section wire.Section, r wire.Record) bool {
	if a.CountsDown {
		if t.nttls == maxTTLs {
			return false
		}
		t.ttls[t.nttls] = uint16(r.TTLOffset())
		t.nttls++
	}
	switch {
	case r.Type == wire.TypeSOA && a.Watches[0].HasSerial():
		t.serial = r.End - serialFromEnd
		return t.serial >= r.Data
	case section == wire.Answer && a.Shuffled && (r.Type == wire.TypeA || r.Type == wire.TypeAAAA):
		return t.addRotated(r)
	}
	return true
}

// addRotated makes r one of the records that change places; false if it is not behind the others, or
// not as long.
func (t *template) addRotated(r wire.Record) bool {
	size := r.End - r.Start
	if t.rotated == 0 {
		t.first, t.size = r.Start, size
	}
	t.rotated++
	return size == t.size && r.End == t.first+t.rotated*size
}

// append appends the message to buf, with the ID, the TTL and the serial, and with the records that
// change places rotated by turn.
func (t *template) append(buf []byte, id [2]byte, ttl, serial uint32, turn uint64) []byte {
	at := len(buf)
	buf = append(buf, t.msg...)
	msg := buf[at:]
	copy(msg, id[:])
	for _, ttlAt := range t.ttls[:t.nttls] {
		binary.BigEndian.PutUint32(msg[ttlAt:], ttl)
	}
	if t.serial != 0 {
		binary.BigEndian.PutUint32(msg[t.serial:], serial)
	}
	if t.rotated > 1 {
		all := t.rotated * t.size
		split := int(turn%uint64(t.rotated)) * t.size //nolint:gosec // below 65,536
		from, to := t.msg[t.first:t.first+all], msg[t.first:]
		copy(to[copy(to, from[split:]):], from[:split])
	}
	return buf
}

// ttl returns what is left at now of a life that ends then, in seconds rounded up and at most life.
func ttl(now, end time.Duration, life uint32) uint32 {
	if end <= now {
		return 0
	}
	return uint32(min((end-now+time.Second-1)/time.Second, time.Duration(life))) //nolint:gosec // at most life
}
