// These tests use isPlainData, which is not exported.

package wire

import (
	"math/rand/v2"
	"testing"

	"github.com/miekg/dns"
)

// TestPlainData: RDATA that is taken without miekg/dns is RDATA that it reads, too, and needs
// nothing else of the message.
func TestPlainData(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, rtype := range []uint16{TypeDS, TypeDNSKEY, typeCDS, typeCDNSKEY, TypeTLSA, TypeRRSIG, TypeNSEC} {
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
		"0001 00":                                 true,
		"0001 0161 00 0001 0003 026832":           true,
		"0001 00 0001 0003 026832 0003 0002 01bb": true,
		"0001 00 0003 0002 01bb 0001 0003 026832": false, // keys in descending order
		"0001 00 0003 0002 01bb 0003 0002 01bb":   false, // a key twice
		"0001 00 0003 0003 01bb":                  false, // cut off
		"0001 00 0003":                            false,
		"0001 c00c":                               false, // a pointer
		"0001":                                    false,
	} {
		if got := isPlainData(TypeHTTPS, unhex(t, text)); got != want {
			t.Errorf("HTTPS %s: %v", text, got)
		}
	}
}
