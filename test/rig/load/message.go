package load

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
)

// Outcome is the result of a query.
type Outcome string

// The outcomes.
const (
	// Local: the agent answered. Cluster: the cluster DNS did.
	Local   Outcome = "local"
	Cluster Outcome = "cluster"
	// Servfail is a reply with that rcode, Other any other reply.
	Servfail Outcome = "servfail"
	Other    Outcome = "other"
	// Lost: no reply in time.
	Lost Outcome = "lost"
)

const (
	headerSize       = 12
	rcodeServfail    = 2
	typeA            = 1
	recordHeaderSize = 10 // type, class, TTL and length of a record
)

// appendQuery appends a query with ID 0 for name, which ends with a dot.
func appendQuery(b []byte, name string) []byte {
	b = append(b, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0) // RD, one question
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		b = append(append(b, byte(len(label))), label...)
	}
	return append(b, 0, 0, typeA, 0, 1)
}

// classify returns the outcome for a reply. ok is false if msg is not a reply to query.
func (j Job) classify(query, msg []byte) (f Outcome, ok bool) {
	if len(msg) < len(query) || msg[2]&0x80 == 0 || !bytes.Equal(query[headerSize:], msg[headerSize:len(query)]) {
		return "", false
	}
	if msg[3]&15 == rcodeServfail {
		return Servfail, true
	}
	switch addr, ttl := firstAddress(msg, len(query)); {
	case msg[3]&15 != 0:
		return Other, true
	case addr == j.Local && ttl >= j.TTL:
		return Local, true
	case addr == j.Cluster:
		return Cluster, true
	}
	return Other, true
}

// firstAddress returns the address and the TTL in seconds of the first answer record, which begins at
// offset at; the zero Addr if that is not of type A.
func firstAddress(msg []byte, at int) (a netip.Addr, ttl uint32) {
	if binary.BigEndian.Uint16(msg[6:]) == 0 {
		return a, 0
	}
	for at < len(msg) && msg[at]&0xc0 == 0 && msg[at] != 0 {
		at += 1 + int(msg[at])
	}
	if at >= len(msg) {
		return a, 0
	}
	at++ // the root label
	if msg[at-1] != 0 {
		at++ // or a pointer
	}
	if len(msg) < at+recordHeaderSize+4 || binary.BigEndian.Uint16(msg[at:]) != typeA || binary.BigEndian.Uint16(msg[at+8:]) != 4 {
		return a, 0
	}
	return netip.AddrFrom4([4]byte(msg[at+recordHeaderSize:])), binary.BigEndian.Uint32(msg[at+4:])
}
