// These tests use checker and unpackName, which are not exported.

package wire

import (
	"math/rand/v2"
	"testing"
)

// TestNamesAreReadOnce: what a checker remembers of earlier names changes neither which names it
// takes, nor what they cost.
func TestNamesAreReadOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	taken := 0
	for range 2000 {
		msg := make([]byte, HeaderLen+r.IntN(400))
		for i := range msg { // labels of up to three bytes, and pointers to anywhere
			msg[i] = byte(r.IntN(4))
			if r.IntN(4) == 0 {
				msg[i] = 0xC0 | byte(r.IntN(2))
			} else if r.IntN(3) == 0 {
				msg[i] = byte(r.IntN(len(msg)))
			}
		}
		c := checker{left: 1 << 30, walked: walkedUnknown + 1}
		for range 4 * len(msg) { // in any order: pointers lead back and forth
			off := HeaderLen + r.IntN(len(msg)-HeaderLen+1)
			most := off + r.IntN(len(msg)-off+1)
			before := c.left
			n, end := c.name(msg, off, most)
			var buf [MaxName]byte
			left := before
			wantN, wantEnd := unpackName(buf[:], msg, off, &left)
			if wantN == 0 || wantEnd > most {
				if n != 0 {
					t.Fatalf("%x: the invalid name at %d is taken", msg, off)
				}
				continue
			}
			taken++
			if n != wantN || end != wantEnd || c.left != left {
				t.Fatalf("%x: the name at %d has %d bytes, ends at %d and takes %d steps, want %d, %d, %d",
					msg, off, n, end, before-c.left, wantN, wantEnd, before-left)
			}
		}
	}
	if taken < 10_000 {
		t.Errorf("%d names are valid, want more to compare", taken)
	}
}
