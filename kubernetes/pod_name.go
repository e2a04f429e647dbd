package kubernetes

import "bytes"

// appendDashed appends the label that stands for a packed address: its text with
// dashes for dots and colons. A label must not end in a dash, so an IPv6 address
// that would (fd00::) gets a zero, which names the same address.
func appendDashed(b []byte, addr string) []byte {
	start := len(b)
	b = unpackAddr(addr).AppendTo(b)
	for i := start; i < len(b); i++ {
		if b[i] == '.' || b[i] == ':' {
			b[i] = '-'
		}
	}
	if b[len(b)-1] == '-' {
		b = append(b, '0')
	}
	return b
}

// parseDashed reads an address with dashes, packed as RDATA. Three dashes with
// something between them are IPv4; in all else dashes are colons. An IPv4 address
// written as IPv6 (::ffff:a00:1) is IPv4.
func parseDashed(text []byte) (addr packedAddr, ok bool) {
	if bytes.Count(text, dash) == 3 && !bytes.Contains(text, doubleDash) {
		return parseDashedIPv4(text)
	}
	return parseDashedIPv6(text)
}

// packedAddr is an address in its RDATA form without a place on the heap: 4 or 16
// bytes of it count, 0 is none.
type packedAddr struct {
	bytes [16]byte
	size  uint8
}

var (
	dash       = []byte("-")
	doubleDash = []byte("--")
)

func parseDashedIPv4(text []byte) (a packedAddr, ok bool) {
	a.size = 4
	for i := range 4 {
		part := text
		if i < 3 {
			end := bytes.IndexByte(text, '-')
			part, text = text[:end], text[end+1:]
		}
		v, ok := parseOctet(part)
		if !ok {
			return packedAddr{}, false
		}
		a.bytes[i] = v
	}
	return a, true
}

// parseOctet reads one byte of an IPv4 address: no leading zeros, which some readers
// take for octal.
func parseOctet(part []byte) (byte, bool) {
	if len(part) == 0 || len(part) > 3 || len(part) > 1 && part[0] == '0' {
		return 0, false
	}
	v := 0
	for _, c := range part {
		if c < '0' || c > '9' {
			return 0, false
		}
		v = 10*v + int(c-'0')
	}
	return byte(v), v <= 255
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	}
	return 0, false
}

// parseDashedIPv6 reads groups of one to four hex digits between dashes, with "--" at
// most once for one or more groups of zeros (RFC 4291, 2.2).
func parseDashedIPv6(text []byte) (packedAddr, bool) {
	var b [16]byte
	n, gap := 0, -1
	if bytes.HasPrefix(text, doubleDash) {
		gap, text = 0, text[2:]
	}
	for len(text) > 0 {
		v, digits := hexGroup(text)
		if digits == 0 || digits > 4 || n == len(b) {
			return packedAddr{}, false
		}
		b[n], b[n+1] = byte(v>>8), byte(v)
		n += 2
		var sep separator
		switch sep, text = cutSeparator(text[digits:]); {
		case sep == badSeparator, sep == gapSeparator && gap >= 0:
			return packedAddr{}, false
		case sep == gapSeparator:
			gap = n
		}
	}
	return expandGap(b, n, gap)
}

// hexGroup reads the hex digits that text starts with, five at most.
func hexGroup(text []byte) (v, digits int) {
	for digits < len(text) && digits < 5 {
		d, ok := hexDigit(text[digits])
		if !ok {
			break
		}
		v = v<<4 | int(d)
		digits++
	}
	return v, digits
}

// separator is what stands between two groups.
type separator uint8

const (
	badSeparator separator = iota
	noSeparator
	dashSeparator
	gapSeparator
)

// cutSeparator reads what stands behind a group, and gives what is behind that. Only a
// double dash may end the text.
func cutSeparator(text []byte) (separator, []byte) {
	switch {
	case len(text) == 0:
		return noSeparator, text
	case bytes.HasPrefix(text, doubleDash):
		return gapSeparator, text[2:]
	case text[0] == '-' && len(text) > 1:
		return dashSeparator, text[1:]
	}
	return badSeparator, text
}

// expandGap puts the zeros of "--" where they stood.
func expandGap(b [16]byte, n, gap int) (a packedAddr, ok bool) {
	switch {
	case gap < 0 && n != 16, gap >= 0 && n == 16:
		return a, false
	case gap >= 0:
		tail := n - gap
		var whole [16]byte
		copy(whole[:], b[:gap])
		copy(whole[16-tail:], b[gap:n])
		b = whole
	}
	return packedAddr{bytes: b, size: 16}.unmap(), true
}

// unmap is the IPv4 address in an IPv4-mapped one.
func (a packedAddr) unmap() packedAddr {
	for i, c := range a.bytes[:12] {
		want := byte(0)
		if i >= 10 {
			want = 0xFF
		}
		if c != want {
			return a
		}
	}
	out := packedAddr{size: 4}
	copy(out.bytes[:], a.bytes[12:])
	return out
}

// equals reports whether a is the packed address addr.
func (a *packedAddr) equals(addr string) bool { return string(a.bytes[:a.size]) == addr }
