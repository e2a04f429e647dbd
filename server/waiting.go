package server

import (
	"context"
	"runtime/debug"

	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/server/resolver"
)

// Why queries are turned away.
const (
	shedCapacity = iota // all places are taken
	shedClient          // the client holds as many as are free
	shedUpstream        // so many, or so many of the client's, are in flight to the server
	shedReasons
)

// EachShed calls f for each reason for which queries are turned away, with the number of
// those that were: with SERVFAIL, or with status 503 over HTTPS.
func (s *Server) EachShed(f func(reason string, n uint64)) {
	for i, reason := range [shedReasons]string{"capacity", "client", "upstream"} {
		f(reason, s.shed[i].Load())
	}
}

// acquire takes a place for r, which has to wait, and notes whose it is; false if there is
// none, which is counted. Each query has a place of its own, those too that wait for what
// another one asks.
func (s *Server) acquire(r *resolver.Request) bool {
	place, verdict := s.waiting.Acquire(r.Client.Addr())
	r.Place = place
	return s.admitted(verdict)
}

// admitted reports whether v is a place, and counts it if it is none.
func (s *Server) admitted(v share.Availability) bool {
	switch v {
	case share.Full:
		s.shed[shedCapacity].Add(1)
	case share.OverShare:
		s.shed[shedClient].Add(1)
	case share.Available:
	}
	return v == share.Available
}

func (s *Server) release(place share.Client) { s.waiting.Release(place) }

// Go runs f on a goroutine of its own: work for which no client waits, and which counts as
// that of one client more, whichever client caused it. It takes a place of [Limits.Waiting];
// false if there is none, f is then not run. The end of the server ends f's context and
// waits for f, a panic in it is counted like that of a query. It is safe for concurrent use
// while queries are answered.
func (s *Server) Go(f func(ctx context.Context)) bool {
	if s.waiting.AcquireShared() != share.Available {
		return false
	}
	s.workers.running.Go(func() {
		defer s.release(share.NoClient)
		defer func() {
			if p := recover(); p != nil {
				s.panics.Add(1)
				s.log.Error("asking for a name panicked", "panic", p, "stack", string(debug.Stack()))
			}
		}()
		f(s.own)
	})
	return true
}
