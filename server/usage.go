package server

import (
	"net/netip"

	"github.com/nodens-dns/nodens/internal/share"
)

// Usage is how much of one limit is in use.
type Usage struct {
	// Used is what is in use, Limit the most that there may be.
	Used, Limit int
	// Addr is the listening address with the highest use if the limit is for each address.
	Addr netip.AddrPort
}

// Usages is how much of the server's limits is in use.
type Usages struct {
	// Waiting are queries that wait for upstreams or a view, Unsent bytes of replies that TCP clients have
	// not accepted.
	Waiting, Unsent Usage
	// Conns are the connections, Requests the requests in flight over HTTPS, of an address.
	Conns, Requests Usage
}

// Usage returns how much of the limits is in use.
func (s *Server) Usage() Usages {
	u := Usages{
		Waiting: Usage{Used: s.waiting.InUse(), Limit: s.limits.Waiting},
		Unsent:  Usage{Used: max(0, int(s.unsent.Load())), Limit: maxUnsent},
		Conns:   Usage{Limit: s.limits.Conns}, Requests: Usage{Limit: s.limits.Waiting},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for addr, l := range s.listeners {
		if l.quic != nil {
			u.Conns.raise(l.quic.connCount(), addr.AddrPort)
			u.Requests.raise(l.quic.requests.InUse(), addr.AddrPort)
			continue
		}
		u.Conns.raise(l.tcp.connCount(), addr.AddrPort)
		if l.https != nil {
			u.Requests.raise(l.https.requests.InUse(), addr.AddrPort)
		}
	}
	return u
}

// WaitingClients returns at most n clients with queries that wait, those with the most first: the order in which
// they lose a place when another client needs it. It is safe for concurrent use.
func (s *Server) WaitingClients(n int) []share.Holder { return s.waiting.Holders(n) }

// raise makes addr the address with the highest use if it uses more than the others.
func (u *Usage) raise(used int, addr netip.AddrPort) {
	if used > u.Used {
		u.Used, u.Addr = used, addr
	}
}
