package kubernetes

import (
	"cmp"
	"strings"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Protocols a port can have, as they stand in [portList]. Zero is none of them.
const (
	tcp byte = 1 + iota
	udp
	sctp
)

// parseProtocol returns the protocol of that name in lower case, 0 if it is unknown.
func parseProtocol(name []byte) byte {
	switch string(name) {
	case "tcp":
		return tcp
	case "udp":
		return udp
	case "sctp":
		return sctp
	}
	return 0
}

// protocolOf returns the protocol that an object calls proto, in any case; 0 if it is unknown.
func protocolOf(proto string) byte {
	if len(proto) > len("sctp") {
		return 0
	}
	return parseProtocol([]byte(strings.ToLower(proto)))
}

// portList is a list of ports in one string, which takes one allocation instead of one per
// name. Each port is its protocol, its number (two bytes, 0 is none), the length of its
// name, and the name in lower case.
type portList string

// smallPortList is the size up to which a portList is built on the stack.
const smallPortList = 128

// packPort appends a port to b, a portList under construction.
func packPort(b []byte, name string, proto byte, number uint16) []byte {
	b = append(b, proto, byte(number>>8), byte(number), byte(len(name)))
	return append(b, name...)
}

// steps is the cost of reading p.
func (p portList) steps() int { return sliceSteps + len(p)/typicalPortBytes }

// typicalPortBytes is the usual size of a port in a portList.
const typicalPortBytes = 8

// next returns the first port and the rest. p must not be empty.
func (p portList) next() (name string, proto byte, number uint16, rest portList) {
	end := 4 + int(p[3])
	return string(p[4:end]), p[0], uint16(p[1])<<8 | uint16(p[2]), p[end:]
}

// portMatch selects ports by protocol (0 is any) and name ("" is any).
type portMatch struct {
	proto byte
	name  []byte
}

func (m portMatch) isAny() bool { return m.proto == 0 && len(m.name) == 0 }

func (m portMatch) matches(name string, proto byte) bool {
	return (m.proto == 0 || m.proto == proto) && (len(m.name) == 0 || string(m.name) == name)
}

// has reports whether m selects a port of p. If m selects any port, p may be empty.
func (p portList) has(m portMatch) bool {
	if m.isAny() {
		return true
	}
	for p != "" {
		name, proto, _, rest := p.next()
		if m.matches(name, proto) {
			return true
		}
		p = rest
	}
	return false
}

// hasNamed reports whether p has a named port of that protocol.
func (p portList) hasNamed(proto byte) bool {
	for p != "" {
		name, pr, _, rest := p.next()
		if name != "" && pr == proto {
			return true
		}
		p = rest
	}
	return false
}

// findDNSPort returns the port for DNS: configured unless that is 0, else the port named
// dns, else 53 if the list has it; 0 if there is none. A slice without ports does not
// restrict them.
func (p portList) findDNSPort(configured uint16) uint16 {
	if configured != 0 || p == "" {
		return cmp.Or(configured, dnsPort)
	}
	var found uint16
	for p != "" {
		name, proto, number, rest := p.next()
		p = rest
		if proto == sctp {
			continue
		}
		if name == dnsPortName {
			return number
		}
		if number == dnsPort {
			found = dnsPort
		}
	}
	return found
}

// wellFormed reports whether [appendPort] can make p.
func (p portList) wellFormed() bool {
	for p != "" {
		if len(p) < 4 || len(p) < 4+int(p[3]) {
			return false
		}
		name, proto, _, rest := p.next()
		if proto < tcp || proto > sctp || name != "" && (lowerLabel(name) != name || len(name) == wire.MaxLabel) {
			return false
		}
		p = rest
	}
	return true
}

// count returns the number of ports of p that m selects, up to [maxPairs].
func (m portMatch) count(p portList, b *Budget) (n int) {
	for b.spend(1) && p != "" && n < maxPairs {
		label, proto, _, rest := p.next()
		if m.matches(label, proto) {
			n++
		}
		p = rest
	}
	return n
}
