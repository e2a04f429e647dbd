package wire_test

import (
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

// TestSpecialCharacters: printable characters with a meaning in presentation form (RFC 1035, section 5.1) are escaped, as
// in CoreDNS. A space is escaped, too, but as \032, which is one word.
func TestSpecialCharacters(t *testing.T) {
	for c := byte('!'); c <= '~'; c++ {
		packed := []byte{3, 'a', c, 'b', 0}
		want, _, err := dns.UnpackDomainName(packed, 0)
		if err != nil {
			t.Fatal(err)
		}
		n := wire.Name(packed)
		if got := n.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if back, err := wire.ParseName(n.String()); err != nil || len(back) != len(n) {
			t.Errorf("%s is read as %q, %v", n, back, err)
		}
	}
	if got := wire.Name("\x03a b\x00").String(); got != `a\032b.` {
		t.Errorf("%q", got)
	}
}
