package wire

import (
	"net/netip"
	"slices"

	"github.com/miekg/dns"
)

// plainHeads has types whose RDATA ends in a key, a digest, a signature or a text of any length, and the bytes before it
// (RFC 4034, RFC 4255, RFC 4398, RFC 4701, RFC 6698, RFC 7344, RFC 7553, RFC 7929, RFC 8162, RFC 8976). A key may
// fill the message.
var plainHeads = map[uint16]int{
	TypeDS: 4, TypeDNSKEY: 4, typeCDS: 4, typeCDNSKEY: 4, dns.TypeKEY: 4, TypeTLSA: 3, dns.TypeSMIMEA: 3, dns.TypeSSHFP: 2,
	dns.TypeCERT: 5, dns.TypeOPENPGPKEY: 0, dns.TypeDHCID: 0, dns.TypeZONEMD: 6, dns.TypeURI: 4,
}

// isPlainData reports whether data is valid RDATA, without pointers, of a common type that is not
// in rdataNames: one of plainHeads, RRSIG, NSEC, SVCB or HTTPS. It is false for other types.
func isPlainData(t uint16, data []byte) bool {
	if head, ok := plainHeads[t]; ok {
		return len(data) > head
	}
	switch t {
	case TypeRRSIG:
		return len(data) > 18 && plainName(data[18:]) > 0
	case TypeNSEC:
		n := plainName(data)
		return n > 0 && isTypeBitmap(data[n:])
	case TypeSVCB, TypeHTTPS:
		if len(data) < 3 {
			return false
		}
		n := plainName(data[2:])
		return n > 0 && areParameters(data[2+n:])
	}
	return false
}

// plainName returns the length of the name that data begins with, 0 if it is none or has a
// pointer.
func plainName(data []byte) int {
	for n := 0; n < min(len(data), MaxName); n += 1 + int(data[n]) {
		if data[n] == 0 {
			return n + 1
		}
		if data[n] > MaxLabel {
			break
		}
	}
	return 0
}

// isTypeBitmap reports whether data has the form of RFC 4034, 4.1.2.
func isTypeBitmap(data []byte) bool {
	for window := -1; len(data) > 0; {
		if len(data) < 3 || int(data[0]) <= window || data[1] == 0 || data[1] > 32 || int(data[1]) > len(data)-2 {
			return false
		}
		window, data = int(data[0]), data[2+int(data[1]):]
	}
	return true
}

// areParameters reports whether data has the form of the parameters of RFC 9460, 2.2.
func areParameters(data []byte) bool {
	for key := -1; len(data) > 0; {
		if len(data) < 4 || int(u16(data)) <= key || int(u16(data[2:])) > len(data)-4 {
			return false
		}
		key = int(u16(data))
		value := data[4 : 4+int(u16(data[2:]))]
		if !isParameterValue(key, value) {
			return false
		}
		data = data[4+len(value):]
	}
	return true
}

// isParameterValue reports whether value has the form that RFC 9460, 7 and 8, gives the parameter with this key.
func isParameterValue(key int, value []byte) bool {
	switch dns.SVCBKey(key) {
	case dns.SVCB_MANDATORY:
		return len(value)%2 == 0
	case dns.SVCB_ALPN:
		return stringsFill(value)
	case dns.SVCB_NO_DEFAULT_ALPN:
		return len(value) == 0
	case dns.SVCB_PORT:
		return len(value) == 2
	case dns.SVCB_IPV4HINT:
		return areAddresses(value, 4)
	case dns.SVCB_IPV6HINT:
		return areAddresses(value, 16) && !hasMappedIPv4(value)
	}
	return key != 65535 // reserved
}

// areAddresses reports whether data is one or more addresses of size bytes.
func areAddresses(data []byte, size int) bool { return len(data) > 0 && len(data)%size == 0 }

// hasMappedIPv4 reports whether one of the IPv6 addresses in data is an IPv4 address.
func hasMappedIPv4(data []byte) bool {
	for a := range slices.Chunk(data, 16) {
		if netip.AddrFrom16([16]byte(a)).Is4In6() {
			return true
		}
	}
	return false
}
