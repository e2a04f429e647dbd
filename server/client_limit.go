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
	if l == nil || !l.Covers(r.Proto) || l.Allow(r.Client.Addr(), r.Arrival) {
		return false
	}
	rt.CountOverLimit(r.Stripe, r.Client.Addr())
	return true
}

// overLimit is [Server.overLimit] for a request whose query has not been read.
func (l *listener) overLimit(client netip.AddrPort, stripe int) bool {
	limit := l.s.limits.Client
	if limit == nil || !limit.Covers(resolver.TCP) || limit.Allow(client.Addr(), clock.Now()) {
		return false
	}
	l.config.Load().Routes.CountOverLimit(stripe, client.Addr())
	return true
}

// countRejected counts a stream that has lost its place, or got none, before its query was read.
func (l *listener) countRejected(client netip.AddrPort, stripe, reason int) {
	l.s.shed[reason].Add(1)
	l.config.Load().Routes.CountRejected(stripe, client.Addr())
}
