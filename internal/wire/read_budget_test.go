package wire

import (
	"bytes"
	"errors"
	"testing"

	"github.com/miekg/dns"
)

// TestUnpackRefuses: the names of all sections count against the budget of Unpack.
func TestUnpackRefuses(t *testing.T) {
	q := stubQuery(t, longName(63, 63, 63, 61), dns.TypeA)
	record := append(append16(nil, questionPointer), unhex(t, "0001 0001 0000003c 0004 c0000201")...)
	n := (MaxMessage - len(q.Packet)) / len(record)
	for section, name := range []string{"answer", "authority", "additional"} {
		msg := append(bytes.Clone(q.Packet), bytes.Repeat(record, n)...)
		put16(msg[2:], flagQR)
		put16(msg[6+2*section:], uint16(n))
		if _, err := Unpack(msg); !errors.Is(err, ErrResponse) {
			t.Errorf("%d long owners in the %s section: error %v", n, name, err)
		}
		put16(msg[6+2*section:], 2)
		if m, err := Unpack(msg); err != nil || len(m.Answer)+len(m.Ns)+len(m.Extra) != 2 {
			t.Errorf("two records in the %s section: error %v", name, err)
		}
	}
}
