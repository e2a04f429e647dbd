package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/miekg/dns"
)

// ErrTransfer is wrapped by the errors of [TransferIn] and [SOASerial].
var ErrTransfer = errors.New("invalid reply of the primary server")

// AppendTransferQuery appends the query of a secondary server to b: for AXFR or SOA, without RD and without EDNS
// (RFC 5936, 2.1). id must be unpredictable.
func AppendTransferQuery(b []byte, id uint16, zone Name, qtype uint16) []byte {
	b = append16(b, id)
	b = append(b, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0)
	b = append(b, zone...)
	b = append16(b, qtype)
	return append16(b, ClassIN)
}

// SOASerial returns the serial in a primary server's reply to an SOA query with this ID.
func SOASerial(msg []byte, id uint16, zone Name) (uint32, error) {
	m, err := unpackReply(msg, id, zone, dns.TypeSOA)
	if err != nil {
		return 0, err
	}
	for _, rr := range m.Answer {
		soa, ok := rr.(*dns.SOA)
		if !ok || soa.Hdr.Rdlength == 0 {
			continue
		}
		buf := make([]byte, MaxMessage+MaxName)
		if got, err := zoneRecord(buf, rr); err == nil && string(got.Owner) == string(zone) {
			return soa.Serial, nil
		}
	}
	return 0, fmt.Errorf("%w: it has no SOA record of the zone; is it a server of the zone?", ErrTransfer)
}

// TransferIn reads the messages of one AXFR (RFC 5936, 2.2). Zone and ID are set before the first one.
type TransferIn struct {
	Zone Name
	ID   uint16

	soa  []byte // RDATA of the first record
	done bool
	buf  []byte
}

// Done reports whether the transfer is complete: its last record repeats the SOA record at its beginning.
func (t *TransferIn) Done() bool { return t.done }

// Read passes the records of the next message to add, the SOA record once. Names are as those of
// [ZoneFile.Records]; a record is valid until the next one. After an error, its own or add's, the transfer is over.
func (t *TransferIn) Read(msg []byte, add func(RR) error) error {
	if t.done {
		return fmt.Errorf("%w: a message after the end of the zone", ErrTransfer)
	}
	m, err := unpackReply(msg, t.ID, t.Zone, dns.TypeAXFR)
	switch {
	case err != nil:
		return err
	case t.soa == nil && len(m.Question) == 0:
		return fmt.Errorf("%w: the first message has no question", ErrTransfer)
	case len(m.Answer) == 0:
		return fmt.Errorf("%w: a message without records", ErrTransfer)
	case t.buf == nil:
		t.buf = make([]byte, MaxMessage+MaxName)
	}
	for _, rr := range m.Answer {
		if err := t.record(rr, add); err != nil {
			return err
		}
	}
	return nil
}

// record passes one record to add.
func (t *TransferIn) record(rr dns.RR, add func(RR) error) error {
	if t.done {
		return fmt.Errorf("%w: a record after the end of the zone", ErrTransfer)
	}
	h := rr.Header()
	if h.Rdlength == 0 && !mayBeEmpty(rr) {
		return fmt.Errorf("%w: the record %s %s has no data", ErrTransfer, h.Name, dns.Type(h.Rrtype))
	}
	got, err := zoneRecord(t.buf, rr)
	if err != nil {
		return err
	}
	if got.Type == TypeSOA && string(got.Owner) == string(t.Zone) {
		return t.boundary(got, add)
	}
	if t.soa == nil {
		return fmt.Errorf("%w: the first record is not the zone's SOA record", ErrTransfer)
	}
	return add(got)
}

// boundary is record for the SOA record with which the transfer begins and ends.
func (t *TransferIn) boundary(soa RR, add func(RR) error) error {
	if t.soa == nil {
		t.soa = bytes.Clone(soa.Data)
		return add(soa)
	}
	if !bytes.Equal(soa.Data, t.soa) {
		return fmt.Errorf("%w: the SOA record at the end is another one than at the beginning; the zone has changed meanwhile", ErrTransfer)
	}
	t.done = true
	return nil
}

// mayBeEmpty reports whether a record of rr's type may have no RDATA.
func mayBeEmpty(rr dns.RR) bool {
	switch rr.(type) {
	case *dns.RFC3597, *dns.NULL, *dns.APL:
		return true
	}
	return false
}

// unpackReply reads a reply to the query with this ID, which asked for zone and qtype. The question may be missing, as in all but
// the first message of a transfer (RFC 5936, 2.2.2).
func unpackReply(msg []byte, id uint16, zone Name, qtype uint16) (*dns.Msg, error) {
	if len(msg) < HeaderLen {
		return nil, fmt.Errorf("%w: %d bytes are no message", ErrTransfer, len(msg))
	}
	var m dns.Msg
	if err := m.Unpack(msg); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTransfer, err)
	}
	switch q := m.Question; {
	case m.Id != id || !m.Response || m.Opcode != dns.OpcodeQuery:
		return nil, fmt.Errorf("%w: a message that is no reply to the query", ErrTransfer)
	case m.Rcode != dns.RcodeSuccess:
		return nil, fmt.Errorf("%w: %s; does it serve the zone, and allow this node to transfer it?", ErrTransfer, rcodeText(m.Rcode))
	case m.Truncated, len(m.Answer) != int(u16(msg[6:])):
		return nil, fmt.Errorf("%w: a message that is cut off", ErrTransfer)
	case len(q) > 0 && !asks(q, zone, qtype):
		return nil, fmt.Errorf("%w: a reply to another question", ErrTransfer)
	}
	return &m, nil
}

func rcodeText(rcode int) string {
	if text, ok := dns.RcodeToString[rcode]; ok {
		return text
	}
	return fmt.Sprintf("rcode %d", rcode)
}

// asks reports whether list is the question for zone and qtype.
func asks(list []dns.Question, zone Name, qtype uint16) bool {
	var buf [MaxName]byte
	q := list[0]
	n, err := dns.PackDomainName(q.Name, buf[:], 0, nil, false)
	if err != nil || len(list) > 1 || q.Qtype != qtype || q.Qclass != dns.ClassINET {
		return false
	}
	return string(AppendLower(buf[:0], buf[:n])) == string(zone)
}

// soaTail is the size of an SOA record's fields after its names (RFC 1035, 3.3.13).
const soaTail = 20

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
