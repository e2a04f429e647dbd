// These tests use isPlainData, which is not exported.

package wire

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/miekg/dns"
)

// TestPlainData: RDATA that is taken without miekg/dns is RDATA that it reads, too, and needs
// nothing else of the message.
func TestPlainData(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, rtype := range slices.AppendSeq([]uint16{TypeRRSIG, TypeNSEC, TypeSVCB, TypeHTTPS}, maps.Keys(plainHeads)) {
		taken := 0
		for range 20_000 {
			data := make([]byte, r.IntN(40))
			for i := range data {
				data[i] = byte(r.IntN(4))
			}
			if !isPlainData(rtype, data) {
				continue
			}
			taken++
			head := dns.RR_Header{Rrtype: rtype, Class: ClassIN, Rdlength: uint16(len(data))}
			if _, _, err := dns.UnpackRRWithHeader(head, data, 0); err != nil {
				t.Fatalf("%s %x is taken: %v", dns.Type(rtype), data, err)
			}
		}
		if taken < 100 {
			t.Errorf("%s: %d are valid, want more to compare", dns.Type(rtype), taken)
		}
	}
	for text, want := range map[string]bool{
		"0001 00":                                            true,
		"0001 0161 00 0001 0003 026832":                      true,
		"0001 00 0001 0003 026832 0003 0002 01bb":            true,
		"0001 00 0003 0002 01bb 0001 0003 026832":            false, // keys in descending order
		"0001 00 0003 0002 01bb 0003 0002 01bb":              false, // a key twice
		"0001 00 0003 0003 01bb":                             false, // cut off
		"0001 00 0003":                                       false,
		"0001 c00c":                                          false, // a pointer
		"0001":                                               false,
		"0001 00 0001 0003 036832":                           false, // alpn: a string that is cut off
		"0001 00 0002 0000 0003 0001 01":                     false, // port: one byte
		"0001 00 0004 0004 c0000201":                         true,
		"0001 00 0004 0005 c000020100":                       false, // ipv4hint: five bytes
		"0001 00 0006 0010 20010db8000000000000000000000001": true,
		"0001 00 0006 0010 00000000000000000000ffffc0000201": false, // ipv6hint: an IPv4 address
		"0001 00 ffff 0000":                                  false, // a reserved key
	} {
		if got := isPlainData(TypeHTTPS, unhex(t, text)); got != want {
			t.Errorf("HTTPS %s: %v", text, got)
		}
	}
}

// TestLongKeys: a record may have a key or a certificate that fills the message.
func TestLongKeys(t *testing.T) {
	for rtype := range plainHeads {
		q := stubQuery(t, "long.test.", rtype)
		msg := append([]byte(nil), q.Packet[:q.questionEnd()]...)
		put16(msg[2:], flagQR)
		put16(msg[6:], 1)
		put16(msg[10:], 0)
		msg = append16(append16(append16(msg, questionPointer), rtype), ClassIN)
		msg = append(append16(append32(msg, 60), 60_000), make([]byte, 60_000)...)
		if _, err := ParseResponse(msg, q); err != nil {
			t.Errorf("%s: %v", dns.Type(rtype), err)
		}
	}
}
