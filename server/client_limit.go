package server

import (
	"net/netip"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/server/resolver"
)

// overLimit reports whether the query in r, which has not been parsed, is over the limit of its client, and counts it
// then. Client, Arrival and Stripe of r are set.
func (s *Server) overLimit(rt *resolver.Routes, r *resolver.Request) bool {
	l := s.limits.Client
	if l == nil || l.Allow(r.Client.Addr(), r.Arrival) {
		return false
	}
	rt.CountOverLimit(r.Stripe, r.Client.Addr())
	return true
}

// overLimit is [Server.overLimit] for a request of the client addr whose query has not been read.
func (h *dohHandler) overLimit(addr netip.Addr, stripe int) bool {
	l := h.s.limits.Client
	if l == nil || l.Allow(addr, clock.Now()) {
		return false
	}
	h.l.config.Load().Routes.CountOverLimit(stripe, addr)
	return true
}
