package upstream

import (
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// missesToDoubt is how many queries in a row a server must let pass, with no reply
	// between them, until the others are asked first. Of a server that is well, one
	// in twenty is late: half of three would doubt it every minute for slow names
	// alone, with double twice as many queries run into one that is frozen.
	missesToDoubt = 3
	// errorsToDoubt is how many SERVFAIL and REFUSED in a row mean, to `fastest`, that
	// it is not the names: broken names come in runs, as clients ask for one with
	// each of their search domains, so half would be met by one of them. Double lets
	// twice as many clients see the error.
	errorsToDoubt = 8
)

// trust is what the traffic says about a server, beside the time it takes. The zero
// value trusts. It is safe for concurrent use: what is lost of two changes at once
// the next reply or miss makes good.
type trust struct {
	// misses are the queries it let pass since its last reply, failures those it
	// answered with SERVFAIL or REFUSED since its last other reply.
	misses, errors atomic.Uint32
	// heard is when its last reply came, as a stamp of the pool.
	heard atomic.Int64
	// doubted servers are asked after the others.
	doubted atomic.Bool
	// pardoned says that a probe's reply has ended the doubt and no query's reply
	// has come since; fooled, that it came back nevertheless: then probes end none
	// any more. A resolver that is cut off from the world answers probes.
	pardoned, fooled atomic.Bool
}

// answers notes a reply of this rcode that came at now. It ends doubts, unless it is
// one more error where they are too many: then it reports that.
func (t *trust) answers(rcode wire.Rcode, now int64) (failing bool) {
	t.heard.Store(now)
	clearIf(&t.misses)
	if rcode == wire.ServFail || rcode == wire.Refused {
		if t.errors.Add(1) >= errorsToDoubt {
			return true
		}
	} else {
		clearIf(&t.errors)
	}
	if t.doubted.Load() {
		t.doubted.Store(false)
	}
	if t.pardoned.Load() || t.fooled.Load() {
		t.pardoned.Store(false)
		t.fooled.Store(false)
	}
	return false
}

// clearIf writes only where there is something: what all replies write to is passed
// from core to core.
func clearIf(n *atomic.Uint32) {
	if n.Load() != 0 {
		n.Store(0)
	}
}

// miss notes a query that was let pass, and reports whether that is one too many.
func (t *trust) miss() bool { return t.misses.Add(1) >= missesToDoubt }

// doubt reports whether the doubt is new.
func (t *trust) doubt() bool {
	if !t.doubted.CompareAndSwap(false, true) {
		return false
	}
	if t.pardoned.Load() {
		t.fooled.Store(true)
	}
	return true
}

// pardon notes the reply to a probe. It is enough for one query to be tried, and one
// more miss is enough for the doubt to come back.
func (t *trust) pardon(now int64) {
	t.heard.Store(now)
	if t.fooled.Load() || t.errors.Load() >= errorsToDoubt || !t.doubted.Load() {
		return
	}
	t.pardoned.Store(true)
	t.misses.Store(missesToDoubt - 1)
	t.doubted.Store(false)
}

// budget is how many queries may be asked twice. It is safe for concurrent use.
type budget struct {
	parts atomic.Int64 // of a query, perQuery each
}

const (
	// perQuery is how many queries allow one more: 5 %, which is what is beyond the
	// 95th percentile. Half would leave every other slow one waiting, and with double
	// every upstream carries a tenth more load for good.
	perQuery = 20
	// burst is how many may be asked twice at once. It covers those that are asked
	// until a server that freezes is doubted at some hundreds a second; half would not,
	// double is more than one loss of packets calls for.
	burst = 16
)

func newBudget() *budget {
	b := &budget{}
	b.parts.Store(burst * perQuery)
	return b
}

// earn is called for each query. Of two at once one may be lost.
func (b *budget) earn() {
	if n := b.parts.Load(); n < burst*perQuery {
		b.parts.CompareAndSwap(n, n+1)
	}
}

// spend takes one query more; false if there is none.
func (b *budget) spend() bool {
	for n := b.parts.Load(); n >= perQuery; n = b.parts.Load() {
		if b.parts.CompareAndSwap(n, n-perQuery) {
			return true
		}
	}
	return false
}

// answers is [trust.answers] of s. To the other policies a server's errors are answers.
func (p *Pool) answers(s *server, rcode wire.Rcode, now time.Time) {
	if p.order.policy != config.PolicyFastest {
		rcode = wire.NoError
	}
	if s.answers(rcode, p.stamp(now)) && s.doubt() {
		s.doubts.Add(1)
		p.opts.Logger.Info("upstream fails one name after the other: others are asked first", "to", s.name)
	}
}

// miss is [trust.miss] of s, with what follows from it.
func (p *Pool) miss(s *server) {
	if s.miss() {
		p.doubt(s)
	}
}

// doubt lets the other servers be asked before s until s is heard of, and probes s
// meanwhile.
func (p *Pool) doubt(s *server) {
	if len(p.servers()) < 2 {
		return // there is nobody to ask instead
	}
	if s.doubt() {
		s.doubts.Add(1)
		p.opts.Logger.Info("upstream is doubted: others are asked first", "to", s.name)
	}
	p.suspect(s)
}

// stamp is t in nanoseconds, as the pool counts them; never 0.
func (p *Pool) stamp(t time.Time) int64 { return max(int64(t.Sub(p.born)), 1) }
