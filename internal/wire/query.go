package wire

import (
	"fmt"
	"iter"
)

// ParseResult says how a packet is answered.
type ParseResult uint8

const (
	// Serve: a well-formed query with one question.
	Serve ParseResult = iota
	// Drop: too short for a header, or a response. It is not answered, so that no one can
	// use the server as a reflector.
	Drop
	// Malformed: answered FORMERR with a bare header.
	Malformed
	// Unsupported: an opcode other than QUERY, answered NOTIMP with a bare
	// header.
	Unsupported
)

// Query is a DNS query read in place. Its zero value is ready for [Query.Parse], and it can
// be reused. It is not safe for concurrent use.
type Query struct {
	// Packet is the whole message as received. It belongs to the caller and
	// must not change while the Query is in use.
	Packet []byte

	ID   uint16
	Type uint16
	// Class is [ClassIN] also for a question about all classes; the packet and the reply keep theirs.
	Class uint16

	// EDNS says whether the query has an OPT record; the fields below are
	// meaningless without it.
	EDNS bool
	DO   bool
	NSID bool // the client asks for the server's identifier (RFC 5001, 2.1)
	// Keepalive says that the query has the option edns-tcp-keepalive (RFC 7828), which is an
	// error over QUIC.
	Keepalive bool
	// Padded says that the query has the option padding (RFC 7830).
	Padded  bool
	Version uint8
	// UDPSize is the UDP payload size in the OPT record. It may be less than [MinUDP]; see
	// [Query.Limit].
	UDPSize uint16

	// Options are EDNS options in wire form (RFC 6891, 6.1.2) that upstream servers get with the
	// query. They belong to the caller, like Packet, which does not hold them.
	Options []byte
	// Uncached says that the reply is of no use for other queries, so that caches are not asked.
	Uncached bool

	flags   uint16
	nameLen int
	labels  int
	name    [MaxName]byte
}

// Parse reads packet. It accepts the counts that stub resolvers send: one question, at most
// one record in the answer and authority sections (NOTIFY, IXFR), and at most two in the
// additional section (OPT and TSIG).
func (q *Query) Parse(packet []byte) ParseResult {
	q.Packet = packet
	q.nameLen, q.labels = 0, 0
	q.Options, q.Uncached = nil, false
	q.EDNS, q.DO, q.NSID, q.Keepalive, q.Padded, q.Version, q.UDPSize = false, false, false, false, false, 0, 0
	if len(packet) < HeaderLen {
		return Drop
	}
	q.ID = u16(packet)
	q.flags = u16(packet[2:])
	if q.flags&flagQR != 0 {
		return Drop
	}
	if q.flags>>opcodeShift&opcodeMask != 0 {
		return Unsupported
	}
	if u16(packet[4:]) != 1 || u16(packet[6:]) > 1 || u16(packet[8:]) > 1 || u16(packet[10:]) > 2 {
		return Malformed
	}
	off := q.parseName(packet)
	if off < 0 || off+4 > len(packet) {
		return Malformed
	}
	q.Type, q.Class = u16(packet[off:]), classAt(packet[off+2:])
	return q.parseRecords(packet, off+4)
}

// classAt returns the class of a question, [ClassIN] for all classes.
func classAt(b []byte) uint16 {
	class := u16(b)
	if class == classANY {
		return ClassIN
	}
	return class
}

// parseName reads the question's name and returns the offset after it, or -1. A
// compressed question has nothing to point at and is malformed.
func (q *Query) parseName(packet []byte) int {
	off := HeaderLen
	for off < len(packet) {
		c := int(packet[off])
		if c == 0 {
			q.name[q.nameLen] = 0
			q.nameLen++
			return off + 1
		}
		// One byte is kept free for the root, hence not MaxName itself.
		if c > MaxLabel || off+1+c > len(packet) || q.nameLen+1+c > MaxName-1 {
			return -1
		}
		q.name[q.nameLen] = byte(c)
		for i := 1; i <= c; i++ {
			q.name[q.nameLen+i] = lower[packet[off+i]]
		}
		q.nameLen += 1 + c
		q.labels++
		off += 1 + c
	}
	return -1
}

// parseRecords reads the records after the question and looks for the OPT record.
func (q *Query) parseRecords(packet []byte, off int) ParseResult {
	before := int(u16(packet[6:])) + int(u16(packet[8:])) // records ahead of the additional section
	total := before + int(u16(packet[10:]))
	for i := range total {
		rr, ok := readRecord(packet, off)
		if !ok {
			return Malformed
		}
		off = rr.End
		if rr.Type != TypeOPT || i < before {
			continue
		}
		// RFC 6891, 6.1.1: a second OPT, or one not at the root, is FORMERR.
		if q.EDNS || packet[rr.Start] != 0 {
			return Malformed
		}
		q.EDNS = true
		q.UDPSize = rr.Class
		q.Version = byte(rr.TTL >> 16)
		q.DO = rr.TTL&(1<<15) != 0
		if rr.End > rr.Data && !q.readOptions(packet[rr.Data:rr.End]) {
			return Malformed
		}
	}
	return Serve
}

// ParseNotify reads the packet of a Query that Parse has found [Unsupported], and reports whether it is a NOTIFY about the SOA
// record of a zone, which is Name (RFC 1996, 3.7). Of its records only an OPT record counts: EDNS says that there is one.
func (q *Query) ParseNotify() bool {
	if q.Opcode() != opcodeNotify || u16(q.Packet[4:]) != 1 {
		return false
	}
	off := q.parseName(q.Packet)
	if off < 0 || off+4 > len(q.Packet) {
		return false
	}
	q.Type, q.Class = u16(q.Packet[off:]), u16(q.Packet[off+2:])
	if q.parseRecords(q.Packet, off+4) == Malformed {
		q.EDNS = false
	}
	return q.Type == TypeSOA && q.Class == ClassIN
}

// AppendNotified appends the reply to the NOTIFY in q, which ParseNotify has read, to b: the message with QR and AA set, its question
// (RFC 1996, 4.7), and an OPT record if the NOTIFY has one (RFC 6891, 6.1.1).
func AppendNotified(b []byte, q *Query) []byte {
	at := len(b)
	b = AppendRefusal(b, q.Packet, NoError, false)
	put16(b[at+2:], u16(b[at+2:])|flagAA)
	if q.EDNS {
		b = appendOPT(b, q.UDPSize, 0, false, 0)
		put16(b[at+10:], 1)
	}
	return b
}

// Name returns the qname in lower case and wire form. It is valid until the next
// Parse and must not be changed.
func (q *Query) Name() []byte { return q.name[:q.nameLen] }

// Labels returns the number of labels in the qname, without the root.
func (q *Query) Labels() int { return q.labels }

// Opcode returns the header's opcode (RFC 1035, 4.1.1).
func (q *Query) Opcode() int { return int(q.flags >> opcodeShift & opcodeMask) }

// RD returns the "recursion desired" bit (RFC 1035, 4.1.1).
func (q *Query) RD() bool { return q.flags&flagRD != 0 }

// ChangeRD sets the "recursion desired" bit if set has it, and clears it if drop has it. The
// packet stays as it is.
func (q *Query) ChangeRD(set, drop Flags) {
	q.flags = q.flags&^(uint16(drop)&flagRD) | uint16(set)&flagRD
}

// CD returns the "checking disabled" bit (RFC 4035, 3.2.2).
func (q *Query) CD() bool { return q.flags&flagCD != 0 }

// AD returns the AD bit, with which a query asks for the AD bit of the reply (RFC 6840, 5.7).
func (q *Query) AD() bool { return q.flags&flagAD != 0 }

// Limit returns the maximum size of a UDP reply in bytes: 512 without EDNS, otherwise the
// client's payload size, but at least 512 (RFC 6891, 6.2.3).
func (q *Query) Limit() int {
	if !q.EDNS || q.UDPSize < MinUDP {
		return MinUDP
	}
	return int(q.UDPSize)
}

// questionEnd returns the offset after the question section.
func (q *Query) questionEnd() int { return HeaderLen + q.nameLen + 4 }

// AppendQuery appends a query for name to b, with an OPT record for payload size size. Its
// RD, CD and DO bits are taken from like; if like is nil, only RD is set. With like it has AD
// set (RFC 6840, 5.7), because the reply may be cached for a client that asks for AD;
// [Reply.Finish] clears AD for others. id must be unpredictable (RFC 5452, 9.2).
func AppendQuery(b []byte, id uint16, name []byte, qtype uint16, like *Query, size uint16) []byte {
	flags, do := flagRD, false
	if like != nil {
		flags |= like.flags&flagCD | flagAD
		if !like.RD() {
			flags &^= flagRD
		}
		do = like.EDNS && like.DO
	}
	b = append16(b, id)
	b = append16(b, flags)
	b = append(b, 0, 1, 0, 0, 0, 0, 0, 1)
	b = append(b, name...)
	b = append16(b, qtype)
	b = append16(b, ClassIN)
	return appendOPT(b, size, 0, do, 0)
}

// appendOPT appends an OPT record of version 0 up to its options, which take options bytes, to b (RFC 6891, 6.1.2).
func appendOPT(b []byte, size uint16, rcode Rcode, do bool, options int) []byte {
	flags := byte(0)
	if do {
		flags = 0x80
	}
	return append(b, 0, 0, byte(TypeOPT), byte(size>>8), byte(size), byte(rcode>>4), 0, flags, 0, byte(options>>8), byte(options))
}

// QuestionEnd returns the offset after the question section of q and of replies to q.
func (q *Query) QuestionEnd() int { return q.questionEnd() }

// Records iterates over the records of reply, a whole reply to q, in order, each with its
// section. It ends early at a record that exceeds the message.
func (q *Query) Records(reply []byte) iter.Seq2[Section, Record] {
	return func(yield func(Section, Record) bool) {
		for it := recordsOf(reply, q.questionEnd()); it.next() && yield(it.section, it.Record); {
		}
	}
}

// AppendClientQuery appends a query as a client sends it to b: with RD, an OPT record for
// [SafeUDP] bytes, and the bits DO and CD if do and cd are true.
func AppendClientQuery(b []byte, id uint16, name []byte, qtype uint16, do, cd bool) []byte {
	like := Query{flags: flagRD, EDNS: do, DO: do}
	if cd {
		like.flags |= flagCD
	}
	begin := len(b)
	b = AppendQuery(b, id, name, qtype, &like, SafeUDP)
	b[begin+3] &^= flagAD
	return b
}

// Restore parses and packs msg, a message written by [Packed.Append] in this or another
// process. It checks msg like a reply from an upstream, because a file may have been changed,
// but allows more compression pointers. q becomes the query for the reply, with RD set, DO and CD as given, and no OPT
// record; the buffer of q.Packet is reused, so that a caller who restores many messages
// allocates it once. The response holds no reference to msg or q. Errors wrap [ErrResponse]; q
// must not be used after one.
func (q *Query) Restore(msg []byte, do, cd bool) (Response, error) {
	if len(msg) < HeaderLen || len(msg) > MaxMessage {
		return Response{}, fmt.Errorf("%w: a message cannot have %d bytes", ErrResponse, len(msg))
	}
	if flags := u16(msg[2:]); flags&flagQR == 0 || flags>>opcodeShift&opcodeMask != 0 || u16(msg[4:]) != 1 {
		return Response{}, fmt.Errorf("%w: not a reply to a query with one question", ErrResponse)
	}
	flags := flagRD
	if cd {
		flags |= flagCD
	}
	if !q.setQuestion(msg, flags) {
		return Response{}, fmt.Errorf("%w: the question is truncated or malformed", ErrResponse)
	}
	q.EDNS, q.DO = do, do
	// msg may be shorter than the reply that was accepted, whose OPT record is dropped and whose
	// names are compressed again. It has to be good for rewriting only.
	return parseResponse(msg, q, rewriteBudget(msg))
}

// setQuestion makes q the query with the first question of msg and the given flags. msg has a
// whole header.
func (q *Query) setQuestion(msg []byte, flags uint16) bool {
	end := skipName(msg, HeaderLen) + 4
	if end < HeaderLen+4 || end > len(msg) {
		return false
	}
	packet := append(q.Packet[:0], 0, 0, byte(flags>>8), byte(flags), 0, 1, 0, 0, 0, 0, 0, 0)
	packet = append(packet, msg[HeaderLen:end]...)
	return q.Parse(packet) == Serve
}

// IXFRSerial returns the serial that the client has, from the SOA record in the authority section of a
// query of type IXFR (RFC 1995, 3). ok is false if the query has no such record.
func (q *Query) IXFRSerial() (serial uint32, ok bool) {
	if u16(q.Packet[6:]) != 0 || u16(q.Packet[8:]) != 1 {
		return 0, false
	}
	rr, ok := readRecord(q.Packet, q.questionEnd())
	if !ok || rr.Type != TypeSOA {
		return 0, false
	}
	off := skipName(q.Packet[:rr.End], rr.Data)
	if off > 0 {
		off = skipName(q.Packet[:rr.End], off)
	}
	if off < 0 || rr.End-off != soaTail {
		return 0, false
	}
	return u32(q.Packet[off:]), true
}
