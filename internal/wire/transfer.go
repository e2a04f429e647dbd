package wire

import "encoding/binary"

// soaTail is the size of an SOA record's fields after its names (RFC 1035, 3.3.13).
const soaTail = 20

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

// Serial returns the serial of an SOA record, 0 for what is none.
func (rr RR) Serial() uint32 {
	if rr.Type != TypeSOA || len(rr.Data) < soaTail {
		return 0
	}
	return u32(rr.Data[len(rr.Data)-soaTail:])
}

// Fits reports whether [Reply.AddRR] has room for rr in a message of limit bytes, without the OPT
// record.
func (r *Reply) Fits(rr RR, limit int) bool {
	return len(r.b)+len(rr.Owner)+recordFields+len(rr.Data) <= limit
}

// recordFields is the size of a record's fields between its owner and its RDATA.
const recordFields = 10

// AppendNotify appends a NOTIFY for the zone of soa, whose SOA record that is, to b (RFC 1996, 3.7). id must be
// unpredictable.
func AppendNotify(b []byte, id uint16, soa RR) []byte {
	b = append16(b, id)
	b = append16(b, opcodeNotify<<opcodeShift|flagAA)
	b = append(b, 0, 1, 0, 1, 0, 0, 0, 0)
	b = append(b, soa.Owner...)
	b = append16(b, TypeSOA)
	b = append16(b, ClassIN)
	b = append16(b, 0xC000|HeaderLen)
	b = append16(b, TypeSOA)
	b = append16(b, ClassIN)
	b = append32(b, soa.TTL)
	b = append16(b, uint16(len(soa.Data)))
	return append(b, soa.Data...)
}

// NotifyReply returns the rcode of reply, the answer to the NOTIFY with that id; ok is false for another message.
func NotifyReply(reply []byte, id uint16) (rcode Rcode, ok bool) {
	if len(reply) < HeaderLen || binary.BigEndian.Uint16(reply) != id {
		return 0, false
	}
	flags := u16(reply[2:])
	if flags&flagQR == 0 || flags>>opcodeShift&opcodeMask != opcodeNotify {
		return 0, false
	}
	return Rcode(flags & rcodeMask), true
}
