package wire

import (
	"bytes"
	"testing"

	"github.com/miekg/dns"
)

// TestCompressedNames: names in RDATA that no sender may compress are written out in what a client gets; those of RFC 1035
// keep their pointers, and so does a reply that is too long with its names written out.
func TestCompressedNames(t *testing.T) {
	const pointer = "c00c" // to the question, 12 bytes when written out
	for name, c := range map[string]struct {
		qtype   uint16
		rdata   string
		written bool
	}{
		"SRV":                {dns.TypeSRV, "000000000035" + "0161" + pointer, true},
		"SRV, a pointer":     {dns.TypeSRV, "000000000035" + pointer, true},
		"SRV, written out":   {dns.TypeSRV, "000000000035" + "0161" + "00", false},
		"NAPTR":              {dns.TypeNAPTR, "00010001" + "0173" + "00" + "00" + pointer, true},
		"RP, the second":     {dns.TypeRP, "00" + pointer, true},
		"DNAME":              {dns.TypeDNAME, pointer, true},
		"KX":                 {dns.TypeKX, "0001" + pointer, true},
		"AFSDB":              {dns.TypeAFSDB, "0001" + pointer, true},
		"HTTPS":              {dns.TypeHTTPS, "0001" + pointer, true},
		"CNAME":              {dns.TypeCNAME, "0161" + pointer, false},
		"MX":                 {dns.TypeMX, "0001" + pointer, false},
		"MINFO":              {dns.TypeMINFO, pointer + pointer, false},
		"a type without any": {65280, "c00c", false},
	} {
		t.Run(name, func(t *testing.T) {
			q := stubQuery(t, "example.org.", c.qtype)
			rdata := unhex(t, c.rdata)
			msg := append([]byte(nil), q.Packet[:q.questionEnd()]...)
			put16(msg[2:], flagQR)
			put16(msg[6:], 1)
			put16(msg[10:], 0)
			msg = append16(append16(append16(msg, questionPointer), c.qtype), ClassIN)
			msg = append(append16(append32(msg, 60), uint16(len(rdata))), rdata...)
			resp, err := ParseResponse(msg, q)
			noError(t, err)
			reply := replyBytes(q, resp.Packed, 60, MaxMessage)
			if unchanged := bytes.HasSuffix(reply, rdata); unchanged == c.written {
				t.Errorf("unchanged %t\n%x\nof\n%x", unchanged, reply, msg)
			}
			if want, got := unpacked(t, msg).Answer[0], unpacked(t, reply).Answer[0]; !dns.IsDuplicate(want, got) {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}

// TestCompressedNamesTooLong: a reply that is too long with its names written out is passed on as it is.
func TestCompressedNamesTooLong(t *testing.T) {
	q := stubQuery(t, "a-rather-long-label.in-a-rather-long-domain.example.org.", dns.TypeSRV)
	msg := append([]byte(nil), q.Packet[:q.questionEnd()]...)
	put16(msg[2:], flagQR)
	const n = 1500
	put16(msg[6:], n)
	put16(msg[10:], 0)
	for i := range n {
		msg = append16(append(msg, unhex(t, "c00c 0021 0001 0000003c 0008 00000000")...), uint16(i))
		msg = append16(msg, questionPointer)
	}
	resp, err := ParseResponse(msg, q)
	if err != nil || resp.Answers != n {
		t.Errorf("%d answers, error %v", resp.Answers, err)
	}
}
