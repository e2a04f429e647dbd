package server

import (
	"time"

	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/reply"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/udp"
)

// replySink is where a reader of a UDP socket leaves replies that answer the same query again without the query path:
// its own cache ([keptReplies]), or the kernel ([kernelReplies]). Only the reader uses it. A panic must not end the
// reader: begin, find and end recover from their own, and the path goes on without the replies.
type replySink interface {
	// begin begins a batch that is answered with cfg.
	begin(cfg *activeConfig, now time.Duration)
	// find makes d's reply the one that is kept for its query, r. If there is none, wanted reports whether the
	// path's reply is to be offered.
	find(r *resolver.Request, d *udp.Packet) (found, wanted bool)
	// keep keeps a, the path's reply to r, which may be sent again as t says.
	keep(r *resolver.Request, t *resolver.Reusable, a *reply.Answer)
	// end ends the batch, whose queries that are still to be counted began at since, and counts the hits.
	end(routes *resolver.Routes, since time.Duration)
	// panicked counts and logs v, with which keep has panicked.
	panicked(v any)
	// close reports which replies were in use.
	close()
}

// reusedReplies are the replies of one reader that are sent again.
type reusedReplies struct {
	sink replySink // nil: no reply is sent again
	// tables has the counters that replies depend on. If they have moved since before the path was run, the data
	// behind the reply may have changed.
	tables *reply.Tables
	before reply.Epochs
	// terms and answer are scratch space.
	terms  resolver.Reusable
	answer reply.Answer
}

// newReusedReplies returns the replies of the reader with that stripe.
func newReusedReplies(s *Server, stripe int) reusedReplies {
	switch {
	case s.kernelPath != nil:
		return reusedReplies{sink: &kernelReplies{s: s, path: s.kernelPath}, tables: &s.kernelPath.tables}
	case s.replyCaches != nil:
		kept := &keptReplies{s: s, stripe: stripe, cache: newReplyCache(s), hits: make([]clients.Hit, 0, udp.BatchSize)}
		return reusedReplies{sink: kept, tables: &s.replyCaches.tables}
	}
	return reusedReplies{}
}

// find is [replySink.find].
func (u *reusedReplies) find(r *resolver.Request, d *udp.Packet) (found, wanted bool) {
	if u.sink != nil {
		found, wanted = u.sink.find(r, d)
	}
	return found, wanted
}

// beginPath is called before the path is run, if find has reported that its reply is wanted.
func (u *reusedReplies) beginPath() { u.before = u.tables.Now() }

// offer gives msg, the path's reply to r, to the sink if it may be sent again.
func (u *reusedReplies) offer(r *resolver.Request, msg []byte) {
	if msg == nil {
		return
	}
	defer func() {
		if v := recover(); v != nil {
			u.sink.panicked(v)
		}
	}()
	var ok bool
	if u.terms, ok = r.Reusable(); !ok || u.tables.Moved(&u.terms.Terms, u.before) {
		return
	}
	u.answer = reply.Answer{Terms: u.terms.Terms, Query: &r.Query, Reply: msg}
	u.sink.keep(r, &u.terms, &u.answer)
}

func (u *reusedReplies) begin(cfg *activeConfig, now time.Duration) {
	if u.sink != nil {
		u.sink.begin(cfg, now)
	}
}

func (u *reusedReplies) end(routes *resolver.Routes, since time.Duration) {
	if u.sink != nil {
		u.sink.end(routes, since)
	}
}

func (u *reusedReplies) close() {
	if u.sink != nil {
		u.sink.close()
	}
}
