package server

import (
	"github.com/nodens-dns/nodens/internal/stat"
)

// Panics returns the number of queries that panicked. They were answered SERVFAIL.
func (s *Server) Panics() uint64 { return s.panics.Load() }

// ConnsRefused returns the number of TCP connections closed because [Limits.Conns] or
// [Limits.ClientConns] was reached and every other connection had pending queries.
func (s *Server) ConnsRefused() uint64 { return s.refused.Load() }

// ConnsEvicted returns the number of idle TCP connections closed to make room for new ones.
func (s *Server) ConnsEvicted() uint64 { return s.evicted.Load() }

// ConnsCut returns the number of TCP connections closed because the client took too long
// to send a query or to read its replies.
func (s *Server) ConnsCut() uint64 { return s.cut.Load() }

// HandshakesFailed returns the number of failed TLS handshakes, including those that took
// too long.
func (s *Server) HandshakesFailed() uint64 { return s.handshakesFailed.Load() }

// SocketDelay returns how long UDP packets have waited in the sockets before they were
// read, in seconds. It is sampled, at most once per millisecond and reader.
func (s *Server) SocketDelay() stat.Snapshot { return s.delays.Read() }

// statusesAt returns the counters of addr, which last as long as s. The caller holds
// s.mu.
func (s *Server) statusesAt(addr ListenAddr) *httpStatuses {
	c := s.httpStatuses[addr]
	if c == nil {
		c = new(httpStatuses)
		s.httpStatuses[addr] = c
	}
	return c
}

// EachHTTPStatus calls f for each HTTP status that the server has replied with at addr,
// with the number of replies. The counts last as long as s.
func (s *Server) EachHTTPStatus(addr ListenAddr, f func(status int, n uint64)) {
	s.mu.Lock()
	c := s.httpStatuses[addr]
	s.mu.Unlock()
	if c == nil {
		return
	}
	for i, status := range countedStatuses {
		if n := c[i].Load(); n > 0 {
			f(status, n)
		}
	}
}

// codesAt returns the counters of addr, which last as long as s. The caller holds s.mu.
func (s *Server) codesAt(addr ListenAddr) *doqCodes {
	if s.doqCodes == nil {
		s.doqCodes = make(map[ListenAddr]*doqCodes)
	}
	c := s.doqCodes[addr]
	if c == nil {
		c = new(doqCodes)
		s.doqCodes[addr] = c
	}
	return c
}

// EachDoQCode calls f for each error code of DNS over QUIC with which the server has ended
// queries or connections at addr, with their number; code 0 is a reply (RFC 9250, 8.4). The counts last
// as long as s.
func (s *Server) EachDoQCode(addr ListenAddr, f func(code int, n uint64)) {
	s.mu.Lock()
	c := s.doqCodes[addr]
	s.mu.Unlock()
	if c == nil {
		return
	}
	for code := range c {
		if n := c[code].Load(); n > 0 {
			f(code, n)
		}
	}
}
