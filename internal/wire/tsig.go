package wire

import (
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // hmac-sha1 must be implemented (RFC 8945, 6)
	"crypto/sha256"
	"crypto/sha512"
	"hash"
	"time"
)

// Errors of a TSIG record (RFC 8945, 3). The reply's rcode is then [NotAuth].
const (
	BadSig   Rcode = 16
	BadKey   Rcode = 17
	BadTime  Rcode = 18
	BadTrunc Rcode = 22
)

const (
	typeTSIG uint16 = 250
	classANY uint16 = 255
	// tsigFudge is by how many seconds the clocks of client and server may differ (RFC 8945, 10).
	tsigFudge = 300
	// tsigTimeLen is the size of "Time Signed" and of the server's time in "Other Data".
	tsigTimeLen = 6
	// tsigFields is the size of the RDATA without the algorithm, the MAC and the other data.
	tsigFields = tsigTimeLen + 10
	// minMAC is the size of the shortest MAC, in bytes; half of the hash's size is the other bound (RFC 8945, 5.2.2.1).
	minMAC = 10
)

// TSIGKeys are secrets by the names of their keys.
type TSIGKeys map[Name][]byte

// TSIG signs the replies to one signed query (RFC 8945). It is not safe for concurrent use.
type TSIG struct {
	key, algorithm Name
	secret         []byte
	hash           func() hash.Hash // nil: the algorithm is not known
	mac            []byte           // of the query, then of each reply
	signed         uint64           // when the query was signed, in seconds since 1970
	fudge          uint16
	err            Rcode
	timersOnly     bool // a reply has been signed
}

// tsigHash returns the hash of an algorithm (RFC 8945, 6); nil for one that is not known.
func tsigHash(algorithm Name) func() hash.Hash {
	switch algorithm {
	case "\x09hmac-sha1\x00":
		return sha1.New
	case "\x0bhmac-sha224\x00":
		return sha256.New224
	case "\x0bhmac-sha256\x00":
		return sha256.New
	case "\x0bhmac-sha384\x00":
		return sha512.New384
	case "\x0bhmac-sha512\x00":
		return sha512.New
	}
	return nil
}

// VerifyTSIG verifies the signature of q, which has been parsed. It returns nil for a query without TSIG record. ok is false for a
// record that is malformed or not the last one, whose reply is [FormErr] (RFC 8945, 5.2). The result keeps nothing of q.
func VerifyTSIG(q *Query, keys TSIGKeys, now time.Time) (t *TSIG, ok bool) {
	rr, found, ok := findTSIG(q)
	if !found || !ok {
		return nil, ok
	}
	r, ok := readTSIG(q.Packet, rr)
	if !ok {
		return nil, false
	}
	t = &r.TSIG
	t.secret, ok = keys[t.key]
	if t.hash = tsigHash(t.algorithm); !ok || t.hash == nil {
		t.err, t.mac = BadKey, nil
		return t, true
	}
	size := t.hash().Size()
	if n := len(t.mac); n > size || n < max(minMAC, size/2) {
		return nil, false
	}
	r.verify(q.Packet[:rr.Start], now)
	return t, true
}

// verify sets the error of r to what is wrong with the MAC of packet, the query without its TSIG record, in the order of RFC 8945, 5.2.
func (r *tsigRecord) verify(packet []byte, now time.Time) {
	t := &r.TSIG
	h := hmac.New(t.hash, t.secret)
	head := [HeaderLen]byte(packet)
	put16(head[:], r.id)
	put16(head[10:], u16(head[10:])-1)
	h.Write(head[:])
	h.Write(packet[HeaderLen:])
	h.Write(t.appendVariables(nil, t.signed, t.fudge, r.queryErr, r.other))
	switch skew := now.Unix() - int64(t.signed); {
	case !hmac.Equal(h.Sum(nil)[:len(t.mac)], t.mac):
		t.err, t.mac = BadSig, nil
	case max(skew, -skew) > int64(t.fudge):
		t.err = BadTime
	case len(t.mac) < h.Size():
		t.err = BadTrunc
	}
}

// findTSIG returns q's TSIG record. ok is false if a record follows it, or if it is in another section.
func findTSIG(q *Query) (rr Record, found, ok bool) {
	for it := recordsOf(q.Packet, q.questionEnd()); it.next(); {
		if it.Type == typeTSIG {
			return it.Record, true, it.left[Additional] == 0 && it.section == Additional && it.Class == classANY && it.TTL == 0
		}
	}
	return rr, false, true
}

// tsigRecord is the TSIG record of a query.
type tsigRecord struct {
	TSIG
	id, queryErr uint16
	other        []byte
}

// readTSIG reads rr, a record of packet.
func readTSIG(packet []byte, rr Record) (r tsigRecord, ok bool) {
	packet = packet[:rr.End]
	left := newReadBudget(len(packet))
	var name [MaxName]byte
	n, end := unpackName(name[:], packet, rr.Start, &left)
	if end < 0 {
		return r, false
	}
	r.key = Name(name[:n])
	if n, end = unpackName(name[:], packet, rr.Data, &left); end < 0 || end+tsigFields > rr.End {
		return r, false
	}
	r.algorithm = Name(name[:n])
	data := packet[end:]
	r.signed = uint64(u16(data))<<32 | uint64(u32(data[2:]))
	r.fudge = u16(data[tsigTimeLen:])
	size := int(u16(data[8:]))
	if tsigFields+size > len(data) {
		return r, false
	}
	r.mac = append([]byte(nil), data[10:10+size]...)
	data = data[10+size:]
	r.id, r.queryErr, r.other = u16(data), u16(data[2:]), data[6:]
	return r, len(r.other) == int(u16(data[4:]))
}

// Err returns why the query is not valid; [NoError] if it is.
func (t *TSIG) Err() Rcode { return t.err }

// Len returns the number of bytes by which [TSIG.Sign] enlarges a message.
func (t *TSIG) Len() int {
	n := len(t.key) + recordFields + len(t.algorithm) + tsigFields
	if t.err != BadKey && t.err != BadSig {
		n += t.hash().Size()
	}
	if t.err == BadTime {
		n += tsigTimeLen
	}
	return n
}

// Sign appends the TSIG record to msg, a whole reply with at most [MaxMessage] - [TSIG.Len] bytes. The first call is for the reply to
// the query, further ones for the messages that follow it (RFC 8945, 5.3.1). The reply to a query with a wrong key or signature has no
// MAC.
func (t *TSIG) Sign(msg []byte, now time.Time) []byte {
	signed, other := uint64(now.Unix()), []byte(nil)
	if t.err == BadTime { // RFC 8945, 5.2.3
		other = append48(nil, signed)
		signed = t.signed
	}
	t.sum(msg, signed, other)
	put16(msg[10:], u16(msg[10:])+1)
	id := u16(msg)
	msg = append(msg, t.key...)
	msg = append16(msg, typeTSIG)
	msg = append16(msg, classANY)
	msg = append32(msg, 0)
	msg = append16(msg, uint16(len(t.algorithm)+tsigFields+len(t.mac)+len(other)))
	msg = append(msg, t.algorithm...)
	msg = append48(msg, signed)
	msg = append16(msg, tsigFudge)
	msg = append16(msg, uint16(len(t.mac)))
	msg = append(msg, t.mac...)
	msg = append16(msg, id)
	msg = append16(msg, uint16(t.err))
	msg = append16(msg, uint16(len(other)))
	return append(msg, other...)
}

// sum makes t.mac the MAC of the reply msg.
func (t *TSIG) sum(msg []byte, signed uint64, other []byte) {
	if t.err == BadKey || t.err == BadSig {
		return
	}
	h := hmac.New(t.hash, t.secret)
	h.Write(append16(nil, uint16(len(t.mac))))
	h.Write(t.mac)
	h.Write(msg)
	if t.timersOnly {
		h.Write(append16(append48(nil, signed), tsigFudge))
	} else {
		h.Write(t.appendVariables(nil, signed, tsigFudge, uint16(t.err), other))
	}
	t.mac, t.timersOnly = h.Sum(nil), true
}

// appendVariables appends the TSIG variables that a MAC covers (RFC 8945, 4.3.3).
func (t *TSIG) appendVariables(b []byte, signed uint64, fudge, err uint16, other []byte) []byte {
	b = append(b, t.key...)
	b = append16(b, classANY)
	b = append32(b, 0)
	b = append(b, t.algorithm...)
	b = append16(append48(b, signed), fudge)
	b = append16(append16(b, err), uint16(len(other)))
	return append(b, other...)
}

// append48 appends the 48 low bits of v.
func append48(b []byte, v uint64) []byte { return append32(append16(b, uint16(v>>32)), uint32(v)) }
