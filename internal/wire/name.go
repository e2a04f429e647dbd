package wire

import (
	"errors"
	"fmt"
	"strings"
)

// ErrName is wrapped by the errors of malformed names.
var ErrName = errors.New("not a domain name")

// Name is a domain name in wire form, lower case, uncompressed, with its root
// byte. The zero value is no name; the root is "\x00". A Name is comparable and
// can be the key of a map.
type Name string

// Root is the DNS root.
const Root Name = "\x00"

// ParseName reads a name in presentation form ("web.default.svc.cluster.local",
// with or without the last dot) and lower-cases it. Backslash escapes are those
// of RFC 1035, 5.1. Errors wrap [ErrName] and name the label at fault.
func ParseName(s string) (Name, error) {
	if s == "." {
		return Root, nil
	}
	if s == "" {
		return "", fmt.Errorf("%w: it is empty", ErrName)
	}
	out := make([]byte, 1, len(s)+2)
	start := 0 // of the current label's length byte
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '.' {
			if err := closeLabel(out, start, s); err != nil {
				return "", err
			}
			start = len(out)
			out = append(out, 0)
			continue
		}
		if c == '\\' {
			var n int
			if c, n = unescape(s[i+1:]); n == 0 {
				return "", fmt.Errorf("%w: %q ends inside an escape", ErrName, s)
			}
			i += n
		}
		out = append(out, lower[c])
	}
	return closeName(out, start, s)
}

// closeName closes the last label, unless a dot has, and adds the root.
func closeName(out []byte, start int, s string) (Name, error) {
	if len(out)-start > 1 {
		if err := closeLabel(out, start, s); err != nil {
			return "", err
		}
		out = append(out, 0)
	}
	if len(out) > MaxName {
		return "", fmt.Errorf("%w: %q is longer than %d bytes", ErrName, s, MaxName)
	}
	return Name(out), nil
}

func closeLabel(out []byte, start int, s string) error {
	n := len(out) - start - 1
	if n == 0 {
		return fmt.Errorf("%w: %q has an empty label", ErrName, s)
	}
	if n > MaxLabel {
		return fmt.Errorf("%w: %q has a label of %d bytes, at most %d are allowed", ErrName, s, n, MaxLabel)
	}
	out[start] = byte(n)
	return nil
}

// unescape reads what follows a backslash: three digits or one character. n is
// the number of bytes read, 0 if the escape is malformed.
func unescape(s string) (c byte, n int) {
	if len(s) >= 3 && isDigit(s[0]) && isDigit(s[1]) && isDigit(s[2]) {
		v := int(s[0]-'0')*100 + int(s[1]-'0')*10 + int(s[2]-'0')
		if v > 255 {
			return 0, 0
		}
		return byte(v), 3
	}
	if s == "" {
		return 0, 0
	}
	return s[0], 1
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// String returns the presentation form, with the trailing dot (RFC 1035, 5.1).
func (n Name) String() string {
	if n == Root {
		return "."
	}
	var b strings.Builder
	for rest := string(n); len(rest) > 1; {
		l := int(rest[0])
		if l >= len(rest) {
			break
		}
		for _, c := range []byte(rest[1 : 1+l]) {
			switch {
			case strings.IndexByte(specials, c) >= 0:
				b.WriteByte('\\')
				b.WriteByte(c)
			case c < '!' || c > '~':
				fmt.Fprintf(&b, "\\%03d", c)
			default:
				b.WriteByte(c)
			}
		}
		b.WriteByte('.')
		rest = rest[1+l:]
	}
	return b.String()
}

// specials are the printable characters that have a meaning in presentation form (RFC 1035, section 5.1), and so get a
// backslash. The apostrophe is in CoreDNS's logs, too.
const specials = `.\"();@'`

// Parent returns the name without its first label; the root's parent is the root.
func (n Name) Parent() Name {
	if len(n) < 2 {
		return Root
	}
	return n[1+n[0]:]
}

// Labels returns the number of labels in n, without the root.
func (n Name) Labels() int {
	labels := 0
	for ; len(n) > 1; n = n.Parent() {
		labels++
	}
	return labels
}

// Under reports whether name, lower case and in wire form, is zone or a name below
// it. It allocates nothing.
func Under(name []byte, zone Name) bool {
	for len(name) > len(zone) {
		name = name[min(1+int(name[0]), len(name)):]
	}
	return string(name) == string(zone)
}

// ParentDomain returns the part of name, in wire form, that names which fail together have in common: of the name above it, the
// last two labels. It allocates nothing. name may go on behind its root label.
func ParentDomain(name []byte) []byte {
	if name[0] == 0 {
		return name[:1]
	}
	end := 1 + int(name[0]) // the first label does not count
	before, last := end, end
	for name[end] != 0 {
		before, last = last, end
		end += 1 + int(name[end])
	}
	return name[before : end+1]
}

// Under reports whether n is zone or a name below it. Both are lower case, as
// every Name is.
func (n Name) Under(zone Name) bool {
	for len(n) > len(zone) {
		n = n.Parent()
	}
	return n == zone
}

// lower maps each byte to its lower case; bytes other than A-Z stay (RFC 4343).
var lower = func() (t [256]byte) {
	for i := range t {
		t[i] = byte(i)
	}
	for c := 'A'; c <= 'Z'; c++ {
		t[c] = byte(c - 'A' + 'a')
	}
	return t
}()

// AppendLower appends a name in wire form, or other bytes, to b in lower case. b may be name[:0].
func AppendLower(b, name []byte) []byte {
	for _, c := range name {
		b = append(b, lower[c])
	}
	return b
}

// skipName returns the offset after the name at off, or -1 if the name leaves msg or has a
// reserved label type. It doesn't follow pointers.
func skipName(msg []byte, off int) int {
	for off < len(msg) {
		c := int(msg[off])
		switch {
		case c == 0:
			return off + 1
		case c&0xC0 == 0xC0:
			if off+2 > len(msg) {
				return -1
			}
			return off + 2
		case c&0xC0 != 0:
			return -1
		}
		off += 1 + c
	}
	return -1
}

// unpackName copies the name at off, decompressed and in lower case, to dst. It
// returns the number of bytes written and the offset after the name in msg; n is 0 if
// the name is malformed, loops, or is longer than dst, which is not empty. It spends left for what it reads
// after the first pointer, but doesn't stop when left is used up.
//
//nolint:gocyclo // one loop over three kinds of length byte, each with its bounds; apart they are harder to check
func unpackName(dst, msg []byte, off int, left *readBudget) (n, end int) {
	jumps := 0
	end = -1
	for off < len(msg) {
		c := int(msg[off])
		if end >= 0 {
			left.spend(c)
		}
		switch {
		case c == 0:
			dst[n] = 0
			if end < 0 {
				end = off + 1
			}
			return n + 1, end
		case c&0xC0 == 0xC0:
			if off+2 > len(msg) {
				return 0, -1
			}
			to := int(u16(msg[off:]) & 0x3FFF)
			if end < 0 {
				end = off + 2
			}
			// A name in the header would change with the ID and the counts.
			if jumps++; jumps > maxPointers || to >= off || to < HeaderLen {
				return 0, -1
			}
			// A prior occurrence (RFC 1035, 4.1.4) ends before what points at it.
			msg, off = msg[:off], to
			continue
		case c&0xC0 != 0:
			return 0, -1
		}
		if off+1+c > len(msg) || n+1+c >= len(dst) { // the root label must fit, too
			return 0, -1
		}
		dst[n] = byte(c)
		for i := 1; i <= c; i++ {
			dst[n+i] = lower[msg[off+i]]
		}
		n += 1 + c
		off += 1 + c
	}
	return 0, -1
}
