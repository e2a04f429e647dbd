package upstream

import (
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// suspectAfterUnanswered is how many queries in a row a server must let pass, with no reply
	// between them, until the others are asked first. Of a server that is well, one
	// in twenty is late: half of three would doubt it every minute for slow names
	// alone, with double twice as many queries run into one that is frozen.
	suspectAfterUnanswered = 3
	// suspectAfterErrors is how many SERVFAIL and REFUSED in a row mean, to `fastest`, that
	// it is not the names: broken names come in runs, as clients ask for one with
	// each of their search domains, so half would be met by one of them. Double lets
	// twice as many clients see the error.
	suspectAfterErrors = 8
)

// passiveHealth is what the traffic says about a server, beside the time it takes. The zero
// value trusts. It is safe for concurrent use: what is lost of two changes at once
// the next reply or miss makes good.
type passiveHealth struct {
	// unanswered are the queries it let pass since its last reply, failures those it
	// answered with SERVFAIL or REFUSED since its last other reply.
	unanswered, errors atomic.Uint32
	// lastReply is when its last reply came, as a stamp of the pool.
	lastReply atomic.Int64
	// suspected servers are asked after the others.
	suspected atomic.Bool
	// reinstated says that a probe's reply has ended the doubt and no query's reply
	// has come since; fooled, that it came back nevertheless: then probes end none
	// any more. A resolver that is cut off from the world answers probes.
	reinstated, probeUnreliable atomic.Bool
}

// recordReply notes a reply of this rcode that came at now. It ends doubts, unless it is
// one more error where they are too many: then it reports that.
func (h *passiveHealth) recordReply(rcode wire.Rcode, now int64) (failing bool) {
	h.lastReply.Store(now)
	resetNonZero(&h.unanswered)
	if rcode == wire.ServFail || rcode == wire.Refused {
		if h.errors.Add(1) >= suspectAfterErrors {
			return true
		}
	} else {
		resetNonZero(&h.errors)
	}
	if h.suspected.Load() {
		h.suspected.Store(false)
	}
	if h.reinstated.Load() || h.probeUnreliable.Load() {
		h.reinstated.Store(false)
		h.probeUnreliable.Store(false)
	}
	return false
}

// resetNonZero writes only where there is something: what all replies write to is passed
// from core to core.
func resetNonZero(n *atomic.Uint32) {
	if n.Load() != 0 {
		n.Store(0)
	}
}

// recordUnanswered notes a query that was let pass, and reports whether that is one too many.
func (h *passiveHealth) recordUnanswered() bool { return h.unanswered.Add(1) >= suspectAfterUnanswered }

// markSuspect reports whether the doubt is new.
func (h *passiveHealth) markSuspect() bool {
	if !h.suspected.CompareAndSwap(false, true) {
		return false
	}
	if h.reinstated.Load() {
		h.probeUnreliable.Store(true)
	}
	return true
}

// reinstate notes the reply to a probe. It is enough for one query to be tried, and one
// more miss is enough for the doubt to come back.
func (h *passiveHealth) reinstate(now int64) {
	h.lastReply.Store(now)
	if h.probeUnreliable.Load() || h.errors.Load() >= suspectAfterErrors || !h.suspected.Load() {
		return
	}
	h.reinstated.Store(true)
	h.unanswered.Store(suspectAfterUnanswered - 1)
	h.suspected.Store(false)
}

// hedgeBudget is how many queries may be asked twice. It is safe for concurrent use.
type hedgeBudget struct {
	credit atomic.Int64 // of a query, perQuery each
}

const (
	// queriesPerHedge is how many queries allow one more: 5 %, which is what is beyond the
	// 95th percentile. Half would leave every other slow one waiting, and with double
	// every upstream carries a tenth more load for good.
	queriesPerHedge = 20
	// maxHedgeBurst is how many may be asked twice at once. It covers those that are asked
	// until a server that freezes is doubted at some hundreds a second; half would not,
	// double is more than one loss of packets calls for.
	maxHedgeBurst = 16
)

func newHedgeBudget() *hedgeBudget {
	b := &hedgeBudget{}
	b.credit.Store(maxHedgeBurst * queriesPerHedge)
	return b
}

// deposit is called for each query. Of two at once one may be lost.
func (b *hedgeBudget) deposit() {
	if n := b.credit.Load(); n < maxHedgeBurst*queriesPerHedge {
		b.credit.CompareAndSwap(n, n+1)
	}
}

// withdraw takes one query more; false if there is none.
func (b *hedgeBudget) withdraw() bool {
	for n := b.credit.Load(); n >= queriesPerHedge; n = b.credit.Load() {
		if b.credit.CompareAndSwap(n, n-queriesPerHedge) {
			return true
		}
	}
	return false
}

// recordReply is [passiveHealth.recordReply] of s. To the other policies a server's errors are answers.
func (p *Pool) recordReply(s *server, rcode wire.Rcode, now time.Time) {
	if p.order.policy != config.PolicyFastest {
		rcode = wire.NoError
	}
	if s.recordReply(rcode, p.timestamp(now)) && s.markSuspect() {
		s.suspectedCount.Add(1)
		p.opts.Logger.Info("upstream fails one name after the other: others are asked first", "to", s.label)
	}
}

// recordUnanswered is [passiveHealth.recordUnanswered] of s, with what follows from it.
func (p *Pool) recordUnanswered(s *server) {
	if s.recordUnanswered() {
		p.suspect(s)
	}
}

// suspect lets the other servers be asked before s until s is heard of, and probes s
// meanwhile.
func (p *Pool) suspect(s *server) {
	if len(p.servers()) < 2 {
		return // there is nobody to ask instead
	}
	if s.markSuspect() {
		s.suspectedCount.Add(1)
		p.opts.Logger.Info("upstream is doubted: others are asked first", "to", s.label)
	}
	p.startProbe(s)
}

// timestamp is t in nanoseconds, as the pool counts them; never 0.
func (p *Pool) timestamp(t time.Time) int64 { return max(int64(t.Sub(p.created)), 1) }
