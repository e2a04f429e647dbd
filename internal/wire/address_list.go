package wire

import "net/netip"

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
