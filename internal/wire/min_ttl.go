package wire

// MinTTL returns for how long msg, a reply, may be kept, in seconds: the lowest TTL of its records except OPT, and the MINIMUM
// field of an SOA record in the authority section (RFC 2308, 5; RFC 8484, 5.1). ok is false if there is no such record or msg is malformed.
func MinTTL(msg []byte) (ttl uint32, ok bool) {
	if len(msg) < HeaderLen {
		return 0, false
	}
	off := HeaderLen
	for range u16(msg[4:]) {
		if off = skipName(msg, off); off < 0 {
			return 0, false
		}
		off += 4
	}
	authority := int(u16(msg[6:]))
	additional := authority + int(u16(msg[8:]))
	for i := range additional + int(u16(msg[10:])) {
		r, fine := readRecord(msg, off)
		if !fine {
			return 0, false
		}
		off = r.End
		if r.Type == TypeOPT {
			continue
		}
		if i >= authority && i < additional {
			r.TTL = denialTTL(msg, r)
		}
		if !ok {
			ttl, ok = r.TTL, true
		}
		ttl = min(ttl, r.TTL)
	}
	return ttl, ok
}

// denialTTL returns the TTL of r, a record of msg's authority section: of an SOA record at most its last field, MINIMUM.
func denialTTL(msg []byte, r Record) uint32 {
	if r.Type != TypeSOA || r.End-r.Data < soaNumbers {
		return r.TTL
	}
	return min(r.TTL, u32(msg[r.End-4:]))
}
