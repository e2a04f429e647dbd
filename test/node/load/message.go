package load

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
)

// Outcome is what became of a question.
type Outcome string

// The fates.
const (
	// Local: the agent has answered, Cluster: the cluster's DNS has.
	Local   Outcome = "local"
	Cluster Outcome = "cluster"
	// Servfail is an answer with that rcode, Other any that is none of the above.
	Servfail Outcome = "servfail"
	Other    Outcome = "other"
	// Lost: no answer came in time.
	Lost Outcome = "lost"
)

const (
	headerSize       = 12
	rcodeServfail    = 2
	typeA            = 1
	recordHeaderSize = 10 // type, class, TTL and length of a record
)

// appendQuery appends a question with the name, which ends with a dot, and its ID 0.
func appendQuery(b []byte, name string) []byte {
	b = append(b, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0) // RD, one question
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		b = append(append(b, byte(len(label))), label...)
	}
	return append(b, 0, 0, typeA, 0, 1)
}

// classify says who has written the answer to the question. ok is false for what is no
// answer to it.
func (j Job) classify(query, msg []byte) (f Outcome, ok bool) {
	if len(msg) < len(query) || msg[2]&0x80 == 0 || !bytes.Equal(query[headerSize:], msg[headerSize:len(query)]) {
		return "", false
	}
	if msg[3]&15 == rcodeServfail {
		return Servfail, true
	}
	switch addr, ttl := address(msg, len(query)); {
	case msg[3]&15 != 0:
		return Other, true
	case addr == j.Local && ttl >= j.TTL:
		return Local, true
	case addr == j.Cluster:
		return Cluster, true
	}
	return Other, true
}

// address is the one in the first record of the answer, which starts at, with its TTL in
// seconds; the zero one if that has none.
func address(msg []byte, at int) (a netip.Addr, ttl uint32) {
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
