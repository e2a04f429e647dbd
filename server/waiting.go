package server

import (
	"context"
	"runtime/debug"
	"sync"

	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/server/resolver"
)

// Reasons for which queries are rejected.
const (
	shedCapacity = iota // no place can be made free
	shedClient          // the client has lost its place to another client
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

// acquire makes p the place of r, which has to wait. It returns false if there is none and
// counts that. Every waiting query has its own place, including those that wait for the same
// upstream query.
func (s *Server) acquire(p *share.Place, r *resolver.Request) bool {
	if !s.waiting.Acquire(p, s.limits.PodRanges.Client(r.Client.Addr())) {
		s.shed[shedCapacity].Add(1)
		return false
	}
	r.Place = p.Client()
	return true
}

// background is work that no client waits for.
type background struct {
	place share.Place
	ctx   context.Context // place's, marked as background work
}

// backgrounds holds finished ones for reuse.
var backgrounds = sync.Pool{New: func() any {
	b := new(background)
	b.ctx = resolver.Background(&b.place)
	return b
}}

// Go runs f on its own goroutine: background work that no client waits for. It needs a place
// of [Limits.Waiting] and leaves an eighth of them free; if there is none, it returns false
// and does not run f. f's context ends when a client needs the place, and with the server,
// which waits for f. f must not keep it. A panic in f is counted and logged. Go is safe for
// concurrent use while queries are answered.
func (s *Server) Go(f func(ctx context.Context)) bool {
	b := backgrounds.Get().(*background)
	if !s.waiting.AcquireBackground(&b.place) {
		backgrounds.Put(b)
		return false
	}
	s.workers.running.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				s.panics.Add(1)
				s.log.Error("background query panicked", "panic", p, "stack", string(debug.Stack()))
			}
			s.waiting.Release(&b.place)
			backgrounds.Put(b)
		}()
		f(b.ctx)
	})
	return true
}
