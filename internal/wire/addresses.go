package wire

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
)

// fixedLen is the length of a record with a compressed owner before its RDATA: the
// pointer, type, class, TTL and RDLENGTH. stride4 and stride6 are the lengths of
// whole address records.
const (
	fixedLen = 2 + 2 + 2 + 4 + 2
	stride4  = fixedLen + 4
	stride6  = fixedLen + 16
)

// MaxAddrs is more than the addresses that fit into any reply: 64 KiB of A records.
const MaxAddrs = MaxMessage / stride4

// AddAddrs adds each address in packed, which holds their RDATA one after another. rtype is A
// or AAAA. It writes the same bytes as [Reply.Add] for each address, but faster: a Service may
// have hundreds of addresses. It returns the number of records written: those that fit, or
// fewer if the others would be truncated anyway and [Reply.Shuffle] would not select them.
// packed is not kept.
func (r *Reply) AddAddrs(s Section, owner int, rtype uint16, ttl uint32, packed string) int {
	if owner > maxPointed { // a pointer cannot reach the owner
		return r.addEachAddr(s, owner, rtype, ttl, packed)
	}
	stride := addrStride(rtype)
	n := len(packed) / (stride - fixedLen)
	if room := r.capacity(s, stride); n > room {
		if r.leaveOut(s, owner, rtype); r.cut {
			return 0
		}
		n = room
	}
	n = min(n, r.usefulRecords(stride))
	if n == 0 {
		return 0
	}
	r.section = s
	r.count[s] += uint16(n)
	at := len(r.b)
	r.b = slices.Grow(r.b, n*stride)[:at+n*stride]
	head := uint64(0xC000|owner)<<48 | uint64(rtype)<<32 | uint64(ClassIN)<<16 | uint64(ttl>>16)
	tail := ttl<<16 | uint32(stride-fixedLen)
	if rtype == TypeA {
		appendA(r.b[at:], head, tail, packed)
	} else {
		appendAAAA(r.b[at:], head, tail, packed)
	}
	return n
}

// AddrCapacity returns the most addresses of rtype that [Reply.AddAddrs] would write to s.
func (r *Reply) AddrCapacity(s Section, rtype uint16) int {
	stride := addrStride(rtype)
	return min(r.capacity(s, stride), r.usefulRecords(stride))
}

// usefulRecords returns the number of records of stride bytes that can affect the reply: those
// up to the first truncated one, and those that [Reply.Shuffle] may select.
func (r *Reply) usefulRecords(stride int) int {
	return max(MaxShuffled, 1+(r.limit-len(r.b))/stride)
}

// capacity returns the number of records of stride bytes that fit into s. It allows for the
// longest owner.
func (r *Reply) capacity(s Section, stride int) int {
	left := MaxMessage - len(r.b) - (MaxName + stride - 2 + optLen)
	if left < 0 || r.full || r.cut || s < r.section {
		return 0
	}
	return left/stride + 1
}

// appendA fills b with records for the IPv4 addresses in packed. head and tail are the fixed
// part of a record. The lengths are constants, so that each record takes three stores.
func appendA(b []byte, head uint64, tail uint32, packed string) {
	for len(b) >= stride4 && len(packed) >= 4 {
		binary.BigEndian.PutUint64(b, head)
		binary.BigEndian.PutUint32(b[8:], tail)
		copy(b[fixedLen:stride4], packed[:4])
		b, packed = b[stride4:], packed[4:]
	}
}

// appendAAAA is appendA for IPv6.
func appendAAAA(b []byte, head uint64, tail uint32, packed string) {
	for len(b) >= stride6 && len(packed) >= 16 {
		binary.BigEndian.PutUint64(b, head)
		binary.BigEndian.PutUint32(b[8:], tail)
		copy(b[fixedLen:stride6], packed[:16])
		b, packed = b[stride6:], packed[16:]
	}
}

// addEachAddr is AddAddrs record by record.
func (r *Reply) addEachAddr(s Section, owner int, rtype uint16, ttl uint32, packed string) (n int) {
	size := addrStride(rtype) - fixedLen
	var rdata [16]byte
	for ; len(packed) >= size && !r.full; packed = packed[size:] {
		copy(rdata[:], packed)
		before := r.count[s]
		r.Add(s, owner, rtype, ttl, rdata[:size])
		if r.cut { // the RRset was removed
			return 0
		}
		n += int(r.count[s] - before)
	}
	return n
}

// addrStride returns the length of a record of rtype, A or AAAA, with a compressed owner.
func addrStride(rtype uint16) int {
	if rtype == TypeA {
		return stride4
	}
	return stride6
}

// ShuffleLast shuffles the RDATA of the last n records. They
// must be addresses of type rtype with one owner and one TTL; owners that are
// written out keep their order. It is for answers whose order matters:
// unlike [Reply.Shuffle] it leaves the records before them alone.
//
// It is a Fisher-Yates shuffle on one random number, extended by a linear
// congruential generator of 2^64 states: load balancing needs no secret, and a
// random number for each address would cost more than writing it.
func (r *Reply) ShuffleLast(n int, rtype uint16) {
	first := len(r.b) - n*addrStride(rtype)
	if n < 2 || first < HeaderLen || u16(r.b[first:]) < 0xC000 {
		return
	}
	b, x := r.b[first+fixedLen:], rand.Uint64()
	if rtype == TypeA {
		for i := uint64(n - 1); i > 0; i-- {
			x = x*lcgFactor + lcgStep
			j := (x >> 32) * (i + 1) >> 32 // the upper bits are more random
			p, q := (*[4]byte)(b[i*stride4:]), (*[4]byte)(b[j*stride4:])
			*p, *q = *q, *p
		}
		return
	}
	for i := uint64(n - 1); i > 0; i-- {
		x = x*lcgFactor + lcgStep
		j := (x >> 32) * (i + 1) >> 32
		p, q := (*[16]byte)(b[i*stride6:]), (*[16]byte)(b[j*stride6:])
		*p, *q = *q, *p
	}
}

// The generator's constants give it its full period (step odd, factor ≡ 1 mod 4:
// Hull and Dobell). The factor is a published one whose upper bits pass the spectral
// test.
const (
	lcgFactor = 6364136223846793005
	lcgStep   = 1442695040888963407
)

// Addrs returns the addresses of the A and AAAA records among r's answers, in their order and
// without repetitions. An IPv4-mapped IPv6 address is returned as IPv4.
func (r *Reply) Addrs() (list []netip.Addr) {
	for it := r.answers(); it.next(); {
		if !it.address() || it.Class != ClassIN {
			continue
		}
		a, _ := netip.AddrFromSlice(r.b[it.Data:it.End])
		if a = a.Unmap(); !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	return list
}

// AddressList are the addresses of the answer section of a reply that can change places: the first [MaxShuffled], all
// of one type with one owner. The zero value is ready for [AddressList.Read]. It is not safe for concurrent use.
type AddressList struct {
	r       *Reply
	at      [MaxShuffled]int // offsets of their RDATA
	n, size int              // size is the length of an RDATA
}

// Read makes l the addresses of r. It has none if r has addresses of both types or of several owners. l is valid
// until r changes.
func (l *AddressList) Read(r *Reply) {
	l.r, l.n = r, 0
	if r.count[Answer] > 0 {
		l.n, l.size = r.addresses(&l.at)
	}
}

// Len returns the number of addresses.
func (l *AddressList) Len() int { return l.n }

// Addr returns address i.
func (l *AddressList) Addr(i int) netip.Addr {
	a, _ := netip.AddrFromSlice(l.r.b[l.at[i] : l.at[i]+l.size])
	return a
}

// Owner returns the owner of the addresses in wire form and lower case, in buf. It is nil if there are no addresses.
func (l *AddressList) Owner(buf *[MaxName]byte) []byte {
	left := newReadBudget(len(l.r.b))
	for it := l.r.answers(); it.next(); {
		if it.address() {
			n, _ := unpackName(buf[:], l.r.b, it.Start, &left)
			return buf[:n]
		}
	}
	return nil
}

// Swap exchanges addresses i and j, each with its TTL.
func (l *AddressList) Swap(i, j int) {
	b := l.r.b
	swap(b[l.at[i]:l.at[i]+l.size], b[l.at[j]:l.at[j]+l.size])
	swap(b[l.at[i]-6:l.at[i]-2], b[l.at[j]-6:l.at[j]-2]) // the TTL is before RDLENGTH
}

// Sort puts the addresses in the order of their ranks; those of one rank stay in order. ranks has one for each.
func (l *AddressList) Sort(ranks []uint8) {
	for i := 1; i < l.n; i++ {
		for j := i; j > 0 && ranks[j] < ranks[j-1]; j-- {
			l.Swap(j, j-1)
			ranks[j], ranks[j-1] = ranks[j-1], ranks[j]
		}
	}
}

// Parameters of SVCB and HTTPS records (RFC 9460, 14.3.2): the list of those that a client has to know, and two with addresses.
const (
	svcMandatory = 0
	svcIPv4Hint  = 4
	svcIPv6Hint  = 6
)

// EachAddress calls f for the addresses in p's records, in all sections, until f returns false: those of A and AAAA records,
// and the hints of SVCB and HTTPS records. p must not be zero. It does not allocate.
func (p Packed) EachAddress(f func(addr netip.Addr) bool) {
	msg := p.message()
	for it := recordsOf(msg, HeaderLen+len(p.Name())+4); it.next(); {
		if !it.eachAddress(f) {
			return
		}
	}
}

// EachAddress calls f for the addresses in r's records, as [Packed.EachAddress], with the TTLs of their records in seconds.
func (r *Reply) EachAddress(f func(addr netip.Addr, ttl uint32)) {
	for it := r.records(); it.next(); {
		it.eachAddress(func(addr netip.Addr) bool { f(addr, it.TTL); return true })
	}
}

// eachAddress calls f for the addresses in the record, and returns false if f has.
func (it *records) eachAddress(f func(addr netip.Addr) bool) bool {
	data := it.msg[it.Data:it.End]
	switch {
	case it.address():
		addr, _ := netip.AddrFromSlice(data)
		return f(addr)
	case it.Type == TypeSVCB || it.Type == TypeHTTPS:
		return eachHint(data, f)
	}
	return true
}

// eachHint calls f for the addresses in the RDATA of a SVCB record, and returns false if f has: a priority, an uncompressed
// name, and parameters of a key, a length and a value (RFC 9460, 2.2).
func eachHint(data []byte, f func(addr netip.Addr) bool) bool {
	for off, end := firstParameter(data); end > 0; off, end = end, parameterEnd(data, end) {
		key := u16(data[off:])
		size := map[uint16]int{svcIPv4Hint: 4, svcIPv6Hint: 16}[key]
		for at := off + 4; size > 0 && at+size <= end; at += size {
			addr, _ := netip.AddrFromSlice(data[at : at+size])
			if !f(addr) {
				return false
			}
		}
	}
	return true
}

// firstParameter returns the offsets of the first parameter in data, the RDATA of a SVCB record, and behind it; end is 0
// if there is none.
func firstParameter(data []byte) (off, end int) {
	if len(data) > 2 {
		off = skipName(data, 2)
	}
	return off, parameterEnd(data, off)
}

// parameterEnd returns the offset behind the parameter that begins at off, 0 if none does.
func parameterEnd(data []byte, off int) (end int) {
	if off <= 0 || off+4 > len(data) {
		return 0
	}
	if end = off + 4 + int(u16(data[off+2:])); end > len(data) {
		return 0
	}
	return end
}

// HasIPv6Hint reports whether [Reply.RemoveIPv6Hints] changes r.
func (r *Reply) HasIPv6Hint() bool {
	for it := r.answers(); it.next(); {
		if _, to := ipv6Hint(r.b, it.Record); to > 0 {
			return true
		}
	}
	return false
}

// RemoveIPv6Hints removes the parameter ipv6hint from r's SVCB and HTTPS records (RFC 9460, 7.3), and AD. A record whose
// parameter mandatory lists ipv6hint stays, because it would be malformed without (RFC 9460, 8). If a record cannot be
// rewritten, r stays as it is.
func (r *Reply) RemoveIPv6Hints() {
	if r.rewriteRecords(nil, true) {
		r.flags &^= flagAD
	}
}

// ipv6Hint returns the offsets in msg of the parameter ipv6hint of rr, and behind it; 0 if none is to be removed.
func ipv6Hint(msg []byte, rr Record) (from, to int) {
	if rr.Type != TypeSVCB && rr.Type != TypeHTTPS {
		return 0, 0
	}
	data := msg[rr.Data:rr.End]
	for off, end := firstParameter(data); end > 0; off, end = end, parameterEnd(data, end) {
		switch u16(data[off:]) {
		case svcMandatory:
			for at := off + 4; at+2 <= end; at += 2 {
				if u16(data[at:]) == svcIPv6Hint {
					return 0, 0
				}
			}
		case svcIPv6Hint:
			return rr.Data + off, rr.Data + end
		}
	}
	return 0, 0
}
