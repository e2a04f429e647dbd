package share

import "net/netip"

// Holder is a client that has places.
type Holder struct {
	// Addr is the address of [Limiter.Acquire]; an IPv6-mapped IPv4 address is an IPv4 address.
	Addr   netip.Addr
	Places int
}

// Holders returns at most n clients, those with the most places first: the order in which clients lose a place when
// another one needs it. Background work, which loses its places before any client, is left out. It takes time in
// proportion to n and to the highest number of places of a client, and holds the Limiter's lock.
func (l *Limiter) Holders(n int) []Holder {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]Holder, 0, min(n, len(l.clients)))
	for places := l.most; places > 0; places-- {
		for c := l.buckets[places].first; c != NoClient; c = l.clients[c].after {
			if len(list) == n {
				return list
			}
			list = append(list, Holder{Addr: netip.AddrFrom16(l.clients[c].addr).Unmap(), Places: places})
		}
	}
	return list
}
