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
	if bytes.Count(text, dash) == 3 && !bytes.Contains(text, dashes) {
		return parseDashed4(text)
	}
	return parseDashed6(text)
}

// packedAddr is an address in its RDATA form without a place on the heap: 4 or 16
// bytes of it count, 0 is none.
type packedAddr struct {
	bytes [16]byte
	size  uint8
}

var (
	dash   = []byte("-")
	dashes = []byte("--")
)

func parseDashed4(text []byte) (a packedAddr, ok bool) {
	a.size = 4
	for i := range 4 {
		part := text
		if i < 3 {
			end := bytes.IndexByte(text, '-')
			part, text = text[:end], text[end+1:]
		}
		v, ok := decimal(part)
		if !ok {
			return packedAddr{}, false
		}
		a.bytes[i] = v
	}
	return a, true
}

// decimal reads one byte of an IPv4 address: no leading zeros, which some readers
// take for octal.
func decimal(part []byte) (byte, bool) {
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

func hex(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	}
	return 0, false
}

// parseDashed6 reads groups of one to four hex digits between dashes, with "--" at
// most once for one or more groups of zeros (RFC 4291, 2.2).
func parseDashed6(text []byte) (packedAddr, bool) {
	var b [16]byte
	n, gap := 0, -1
	if bytes.HasPrefix(text, dashes) {
		gap, text = 0, text[2:]
	}
	for len(text) > 0 {
		v, digits := group(text)
		if digits == 0 || digits > 4 || n == len(b) {
			return packedAddr{}, false
		}
		b[n], b[n+1] = byte(v>>8), byte(v)
		n += 2
		var sep separator
		switch sep, text = separated(text[digits:]); {
		case sep == wrong, sep == double && gap >= 0:
			return packedAddr{}, false
		case sep == double:
			gap = n
		}
	}
	return spread(b, n, gap)
}

// group reads the hex digits that text starts with, five at most.
func group(text []byte) (v, digits int) {
	for digits < len(text) && digits < 5 {
		d, ok := hex(text[digits])
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
	wrong separator = iota
	end
	single
	double
)

// separated reads what stands behind a group, and gives what is behind that. Only a
// double dash may end the text.
func separated(text []byte) (separator, []byte) {
	switch {
	case len(text) == 0:
		return end, text
	case bytes.HasPrefix(text, dashes):
		return double, text[2:]
	case text[0] == '-' && len(text) > 1:
		return single, text[1:]
	}
	return wrong, text
}

// spread puts the zeros of "--" where they stood.
func spread(b [16]byte, n, gap int) (a packedAddr, ok bool) {
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
	return packedAddr{bytes: b, size: 16}.unmapped(), true
}

// unmapped is the IPv4 address in an IPv4-mapped one.
func (a packedAddr) unmapped() packedAddr {
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

// is reports whether a is the packed address addr.
func (a *packedAddr) is(addr string) bool { return string(a.bytes[:a.size]) == addr }
