package server

import (
	"context"
	"runtime/debug"

	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/server/resolver"
)

// Reasons for which queries are rejected.
const (
	shedCapacity = iota // all places are in use
	shedClient          // the client has its share of the places
	shedUpstream        // the limit of queries in flight to the upstream server
	shedReasons
)

// EachShed calls f for each reason for which queries are rejected, with the number of queries
// rejected for it: with SERVFAIL, or with status 503 over HTTPS.
func (s *Server) EachShed(f func(reason string, n uint64)) {
	for i, reason := range [shedReasons]string{"capacity", "client", "upstream"} {
		f(reason, s.shed[i].Load())
	}
}

// acquire takes a place for r, which has to wait. It returns false if there is none and
// counts that. Every waiting query has its own place, including those that wait for the same
// upstream query.
func (s *Server) acquire(r *resolver.Request) bool {
	place, verdict := s.waiting.Acquire(r.Client.Addr())
	r.Place = place
	return s.admitted(verdict)
}

// admitted reports whether v is a place, and counts it if not.
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

// Go runs f on its own goroutine: background work that no client waits for. It needs a place
// of [Limits.Waiting], as the work of one additional client; if there is none, it returns
// false and does not run f. The end of the server cancels f's context and waits for f. A panic
// in f is counted and logged. Go is safe for concurrent use while queries are answered.
func (s *Server) Go(f func(ctx context.Context)) bool {
	if s.waiting.AcquireShared() != share.Available {
		return false
	}
	s.workers.running.Go(func() {
		defer s.release(share.NoClient)
		defer func() {
			if p := recover(); p != nil {
				s.panics.Add(1)
				s.log.Error("background query panicked", "panic", p, "stack", string(debug.Stack()))
			}
		}()
		f(s.own)
	})
	return true
}
