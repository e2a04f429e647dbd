// These tests use parseKey, port and ported, which are not exported.

package config

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/wire"
)

// prefix is the IPv4 prefix p with its second byte set to n.
func prefix(t *testing.T, p string, n int) netip.Prefix {
	t.Helper()
	base := netip.MustParsePrefix(p)
	bytes := base.Addr().As4()
	bytes[1] = byte(n)
	return netip.PrefixFrom(netip.AddrFrom4(bytes), base.Bits())
}

func TestParseKey(t *testing.T) {
	for _, tt := range []struct {
		text   string
		zones  []string
		port   uint16
		ported bool
	}{
		{"cluster.local", []string{"cluster.local."}, 0, false},
		{"Cluster.LOCAL.:54", []string{"cluster.local."}, 54, true},
		{".", []string{"."}, 0, false},
		{".:53", []string{"."}, 53, true},
		{"dns://.:1053", []string{"."}, 1053, true},
		{"_tcp.example.org:0", []string{"_tcp.example.org."}, 0, true},
		{"10.0.0.0/8", []string{"10.in-addr.arpa."}, 0, false},
		{"10.1.2.3/8:54", []string{"10.in-addr.arpa."}, 54, true},
		{"10.1.2.3/32", []string{"3.2.1.10.in-addr.arpa."}, 0, false},
		{"0.0.0.0/0", []string{"in-addr.arpa."}, 0, false},
		{"192.0.2.0/23", []string{"2.0.192.in-addr.arpa.", "3.0.192.in-addr.arpa."}, 0, false},
		{"192.0.2.4/30:5", []string{"4.2.0.192.in-addr.arpa.", "5.2.0.192.in-addr.arpa.", "6.2.0.192.in-addr.arpa.", "7.2.0.192.in-addr.arpa."}, 5, true},
		{"2001:db8::/32", []string{"8.b.d.0.1.0.0.2.ip6.arpa."}, 0, false},
		{"2001:db8::/32:53", []string{"8.b.d.0.1.0.0.2.ip6.arpa."}, 53, true},
		{"2001:db8::/31", []string{"8.b.d.0.1.0.0.2.ip6.arpa.", "9.b.d.0.1.0.0.2.ip6.arpa."}, 0, false},
		{"::/0", []string{"ip6.arpa."}, 0, false},
		{"0/25.2.0.192.in-addr.arpa", []string{"0/25.2.0.192.in-addr.arpa."}, 0, false},
	} {
		t.Run(tt.text, func(t *testing.T) {
			k, err := parseKey(tt.text)
			if err != nil {
				t.Fatal(err)
			}
			if k.port != tt.port || k.ported != tt.ported {
				t.Errorf("port %d (%t), want %d (%t)", k.port, k.ported, tt.port, tt.ported)
			}
			var got []string
			for _, z := range k.zones {
				got = append(got, z.String())
			}
			if diff := cmp.Diff(tt.zones, got); diff != "" {
				t.Errorf("zones (-want +got):\n%s", diff)
			}
		})
	}
}

// TestReverseZones holds that the zones of a prefix take in the addresses of the
// prefix and no other, at each length.
func TestReverseZones(t *testing.T) {
	for _, base := range []string{"10.160.77.133", "2001:db8:a5a5:5a5a::f00f"} {
		bits := netip.MustParseAddr(base).BitLen()
		for n := 0; n <= bits; n++ {
			p := netip.PrefixFrom(netip.MustParseAddr(base), n).Masked()
			zones := reverseZones(p)
			if len(zones) > 128 {
				t.Fatalf("%v is %d zones", p, len(zones))
			}
			for bit := range bits {
				other := flip(netip.MustParseAddr(base), bit)
				if got, want := under(t, other, zones), p.Contains(other); got != want {
					t.Fatalf("%v: the zones hold %v: %t, want %t", p, other, got, want)
				}
			}
			if !under(t, netip.MustParseAddr(base), zones) {
				t.Fatalf("%v: the zones do not hold %s", p, base)
			}
		}
	}
}

// flip is a with one bit changed, counted from the left.
func flip(a netip.Addr, bit int) netip.Addr {
	bytes := a.AsSlice()
	bytes[bit/8] ^= 0x80 >> (bit % 8)
	out, _ := netip.AddrFromSlice(bytes)
	return out
}

// under counts the zones that hold a's PTR record: one, or none.
func under(t *testing.T, a netip.Addr, zones []wire.Name) bool {
	t.Helper()
	ptr := reverseZones(netip.PrefixFrom(a, a.BitLen()))[0]
	count := 0
	for _, z := range zones {
		if ptr.Under(z) {
			count++
		}
	}
	if count > 1 {
		t.Fatalf("%v is in %d of the zones", a, count)
	}
	return count == 1
}

func TestParseKeyFaults(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", `"" is not a zone: not a domain name: it is empty`},
		{"a..b", `"a..b" is not a zone: not a domain name: "a..b" has an empty label`},
		{"a.test:", `"a.test:" has a bad port; allowed: 0 to 65535`},
		{"a.test:65536", `"a.test:65536" has a bad port; allowed: 0 to 65535`},
		{"a.test:dns", `"a.test:dns" is not a zone with a port such as cluster.local:53`},
		{".:53{", `".:53{" is not a zone; put a space before the brace: ".:53 {"`},
		{"}", `"}" is not a zone; is there a brace too many or too few above it?`},
		{"ftp://.", `"ftp://." has an unknown scheme "ftp"; allowed: dns, grpc, https, https3, quic, tls`},
		{"10.0.0.1", "\"10.0.0.1\" is an address, not a zone; write its reverse zone as ADDRESS/BITS, or say with `bind` where to listen"},
		{"[::1]:53", "\"[::1]:53\" is an address, not a zone; write its reverse zone as ADDRESS/BITS, or say with `bind` where to listen"},
		{"10.0.0.0/33", `"10.0.0.0/33" is not a CIDR such as 10.0.0.0/8`},
		{"2001:db8::/129", `"2001:db8::/129" is not a CIDR such as 10.0.0.0/8`},
	} {
		t.Run(tt.text, func(t *testing.T) {
			_, err := parseKey(tt.text)
			if err == nil || err.Error() != tt.want {
				t.Errorf("error %v\nwant  %s", err, tt.want)
			}
		})
	}
}
