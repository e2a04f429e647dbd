package wire

import (
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// ClassANY is the class that a query or a template has for all classes (RFC 1035, 3.2.5). No query
// of this class is served.
const ClassANY uint16 = 255

// String returns the rcode's name in the IANA registry, or its number.
func (c Rcode) String() string {
	if name, ok := dns.RcodeToString[int(c)]; ok {
		return name
	}
	return strconv.Itoa(int(c))
}

// ParseRcode returns the rcode with this name in the IANA registry, in any case. ok is false if
// there is none.
func ParseRcode(name string) (c Rcode, ok bool) {
	n, ok := dns.StringToRcode[strings.ToUpper(name)]
	return Rcode(n), ok
}

// TypeName returns the type's name in the IANA registry, or TYPE and its number (RFC 3597,
// section 5).
func TypeName(t uint16) string { return dns.Type(t).String() }

// RegisteredTypeName returns the type's name in the IANA registry, "" if it has none.
func RegisteredTypeName(t uint16) string { return dns.TypeToString[t] }

// ParseType returns the type with this name in the IANA registry, in any case. ok is false if
// there is none. It doesn't read TYPE and a number.
func ParseType(name string) (t uint16, ok bool) {
	t, ok = dns.StringToType[strings.ToUpper(name)]
	return t, ok && t != 0
}

// ClassName returns the class's name in the IANA registry, or CLASS and its number (RFC 3597,
// section 5).
func ClassName(c uint16) string { return dns.Class(c).String() }

// ParseClass returns the class with this name in the IANA registry, in any case. ok is false if
// there is none. It doesn't read CLASS and a number.
func ParseClass(name string) (c uint16, ok bool) {
	c, ok = dns.StringToClass[strings.ToUpper(name)]
	return c, ok && c != 0
}

// FullyQualified returns name, in presentation form, with a trailing dot. A dot that is escaped
// (RFC 1035, 5.1) is none. It doesn't check name.
func FullyQualified(name string) string { return dns.Fqdn(name) }
