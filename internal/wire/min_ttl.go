package wire

// MinTTL returns the lowest TTL, in seconds, of the records of msg except OPT. ok is false if
// there is no such record or msg is malformed.
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
	for range int(u16(msg[6:])) + int(u16(msg[8:])) + int(u16(msg[10:])) {
		r, fine := readRecord(msg, off)
		if !fine {
			return 0, false
		}
		off = r.End
		if r.Type == TypeOPT {
			continue
		}
		if !ok || r.TTL < ttl {
			ttl, ok = r.TTL, true
		}
	}
	return ttl, ok
}
