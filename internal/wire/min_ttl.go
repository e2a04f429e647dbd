package wire

// MinTTL gives the least TTL of msg's records but for its OPT record, in seconds: for how
// long all of it holds. ok is false where it has none, or is not a message.
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
