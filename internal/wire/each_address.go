package wire

import "net/netip"

// Parameters of SVCB and HTTPS records that hold addresses (RFC 9460, 14.3.2).
const (
	svcIPv4Hint = 4
	svcIPv6Hint = 6
)

// EachAddress calls f for the addresses in p's records, in all sections, until f returns false: those of A and AAAA records,
// and the hints of SVCB and HTTPS records. p must not be zero. It does not allocate.
func (p Packed) EachAddress(f func(addr netip.Addr) bool) {
	msg := p.message()
	for it := recordsOf(msg, HeaderLen+len(p.Name())+4); it.next(); {
		data := msg[it.Data:it.End]
		switch {
		case it.address():
			addr, _ := netip.AddrFromSlice(data)
			if !f(addr) {
				return
			}
		case it.Type == TypeSVCB || it.Type == TypeHTTPS:
			if !eachHint(data, f) {
				return
			}
		}
	}
}

// eachHint calls f for the addresses in the RDATA of a SVCB record, and returns false if f has: a priority, an uncompressed
// name, and parameters of a key, a length and a value (RFC 9460, 2.2).
func eachHint(data []byte, f func(addr netip.Addr) bool) bool {
	off := -1
	if len(data) > 2 {
		off = skipName(data, 2)
	}
	for off >= 0 && off+4 <= len(data) {
		key, end := u16(data[off:]), off+4+int(u16(data[off+2:]))
		if end > len(data) {
			break
		}
		size := map[uint16]int{svcIPv4Hint: 4, svcIPv6Hint: 16}[key]
		for at := off + 4; size > 0 && at+size <= end; at += size {
			addr, _ := netip.AddrFromSlice(data[at : at+size])
			if !f(addr) {
				return false
			}
		}
		off = end
	}
	return true
}
