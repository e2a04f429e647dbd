package config

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/nodens-dns/nodens/internal/wire"
)

// key is the parsed key of a server block.
type key struct {
	transport Transport
	zones     []wire.Name
	port      uint16
	// ported: the key has a port.
	ported bool
}

// parseKey parses a key as CoreDNS does: [SCHEME://]ZONE[:PORT], where SCHEME is that of a [Transport]. ZONE is a name,
// or a CIDR for its reverse zones. Its errors don't include the file and line.
func parseKey(text string) (key, error) {
	rest := text
	var via Transport
	if scheme, after, ok := strings.Cut(text, "://"); ok {
		var err error
		if via, err = parseScheme(scheme, text); err != nil {
			return key{}, err
		}
		rest = after
	}
	if strings.HasSuffix(rest, "{") {
		return key{}, fmt.Errorf("%q is not a zone; put a space before the brace: %q", text, strings.TrimSuffix(text, "{")+" {")
	}
	if strings.ContainsAny(rest, "{}") {
		return key{}, fmt.Errorf("%q is not a zone; is there a brace too many or too few above it?", text)
	}
	zone, port, ported := cutPort(rest)
	k := key{transport: via, ported: ported}
	if ported {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return key{}, fmt.Errorf("%q has a bad port; allowed: 0 to 65535", text)
		}
		k.port = uint16(n)
	}
	var err error
	k.zones, err = parseZone(zone, text)
	return k, err
}

// parseScheme parses the text before "://".
func parseScheme(scheme, text string) (Transport, error) {
	for _, t := range []Transport{PlainDNS, DNSOverTLS, DNSOverHTTPS, DNSOverQUIC, DNSOverHTTP3, DNSOverGRPC} {
		if scheme == t.String() {
			return t, nil
		}
	}
	return 0, fmt.Errorf("%q has an unknown scheme %q; allowed: dns, grpc, https, https3, quic, tls", text, scheme)
}

// defaultPort returns the port for keys without one; plain is the port for plain DNS.
func (t Transport) defaultPort(plain uint16) uint16 {
	switch t {
	case DNSOverTLS, DNSOverQUIC:
		return 853
	case DNSOverHTTPS, DNSOverGRPC, DNSOverHTTP3:
		return 443
	default:
		return plain
	}
}

// cutPort removes :PORT. The text after the last colon is a port if it is all digits, unless s
// is an IPv6 address, bare or in brackets.
func cutPort(s string) (zone, port string, ok bool) {
	colon := strings.LastIndexByte(s, ':')
	if colon < 0 {
		return s, "", false
	}
	if _, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return s, "", false
	}
	port = s[colon+1:]
	if strings.Trim(port, "0123456789") != "" {
		return s, "", false
	}
	return s[:colon], port, true
}

// parseZone parses a zone without scheme and port; text is the whole word.
func parseZone(zone, text string) ([]wire.Name, error) {
	if _, err := netip.ParseAddr(strings.Trim(zone, "[]")); err == nil {
		return nil, fmt.Errorf("%q is an address, not a zone; write its reverse zone as ADDRESS/BITS, or say with `bind` where to listen", text)
	}
	if ip, _, ok := strings.Cut(zone, "/"); ok {
		prefix, err := netip.ParsePrefix(zone)
		if err == nil {
			return reverseZones(prefix.Masked()), nil
		}
		if _, err := netip.ParseAddr(ip); err == nil {
			return nil, fmt.Errorf("%q is not a CIDR such as 10.0.0.0/8", text)
		}
	}
	if strings.ContainsAny(zone, ":[]") {
		return nil, fmt.Errorf("%q is not a zone with a port such as cluster.local:53", text)
	}
	name, err := wire.ParseName(zone)
	if err != nil {
		return nil, fmt.Errorf("%q is not a zone: %w", text, err)
	}
	return []wire.Name{name}, nil
}

// reverseZones returns the zones with the PTR records of prefix: one if its length is at a
// label of the reverse tree (8 bits, or 4 in IPv6), else all zones at the next label, at most
// 128 (RFC 1035, 3.5; RFC 3596, 2.5).
func reverseZones(prefix netip.Prefix) []wire.Name {
	unit, digits, suffix := 8, prefix.Addr().AsSlice(), "in-addr.arpa"
	if prefix.Addr().Is6() {
		unit, suffix, digits = 4, "ip6.arpa", nil
		for _, b := range prefix.Addr().AsSlice() {
			digits = append(digits, b>>4, b&15)
		}
	}
	labels := (prefix.Bits() + unit - 1) / unit
	missing := labels*unit - prefix.Bits()
	zones := make([]wire.Name, 0, 1<<missing)
	for n := range 1 << missing {
		var b strings.Builder
		for i := labels - 1; i >= 0; i-- {
			digit := int(digits[i])
			if i == labels-1 {
				digit |= n
			}
			if unit == 4 {
				b.WriteString(strconv.FormatInt(int64(digit), 16))
			} else {
				b.WriteString(strconv.Itoa(digit))
			}
			b.WriteByte('.')
		}
		name, err := wire.ParseName(b.String() + suffix)
		if err != nil {
			continue // digits and dots always form a name
		}
		zones = append(zones, name)
	}
	return zones
}

// reverse reports whether zone is in the reverse tree.
func reverse(zone wire.Name) bool {
	for _, text := range []string{"in-addr.arpa", "ip6.arpa"} {
		if root, err := wire.ParseName(text); err == nil && zone.Under(root) {
			return true
		}
	}
	return false
}
