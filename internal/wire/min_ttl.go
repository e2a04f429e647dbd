package wire

import (
	"encoding/binary"
	"math"
)

// MinTTL returns for how long msg, a reply, may be kept, in seconds: the lowest TTL of its records except OPT, and the MINIMUM
// field of an SOA record in the authority section (RFC 2308, 5; RFC 8484, 5.1). ok is false if there is no such record or msg is malformed.
func MinTTL(msg []byte) (ttl uint32, ok bool) {
	whole := walkTTLs(msg, func(r Record) {
		if !ok || r.TTL < ttl {
			ttl, ok = r.TTL, true
		}
	})
	if !whole {
		return 0, false
	}
	return ttl, ok
}

// Age lowers the TTLs of msg, a reply that was kept for the given number of seconds, to what is left of them: at least 0. The TTL of an
// SOA record in the authority section becomes what is left of [MinTTL]'s limit. Nothing behind malformed records changes.
func Age(msg []byte, seconds uint32) {
	walkTTLs(msg, func(r Record) {
		if r.TTL > math.MaxInt32 {
			r.TTL = 0 // RFC 2181, 8
		}
		binary.BigEndian.PutUint32(msg[r.ttlOffset():], r.TTL-min(r.TTL, seconds))
	})
}

// walkTTLs calls f with each record of msg except OPT; its TTL is limited by [denialTTL] in the authority section. It
// returns false if msg is malformed.
func walkTTLs(msg []byte, f func(Record)) bool {
	if len(msg) < HeaderLen {
		return false
	}
	off := HeaderLen
	for range u16(msg[4:]) {
		if off = skipName(msg, off); off < 0 {
			return false
		}
		off += 4
	}
	it := recordsOf(msg, off)
	for it.next() {
		if it.Type == TypeOPT {
			continue
		}
		r := it.Record
		if it.section == Authority {
			r.TTL = denialTTL(msg, r)
		}
		f(r)
	}
	return !it.bad
}

// denialTTL returns the TTL of r, a record of msg's authority section: of an SOA record at most its last field, MINIMUM.
func denialTTL(msg []byte, r Record) uint32 {
	if r.Type != TypeSOA || r.End-r.Data < soaNumbers {
		return r.TTL
	}
	return min(r.TTL, u32(msg[r.End-4:]))
}
