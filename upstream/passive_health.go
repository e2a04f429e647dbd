package upstream

import (
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// suspectAfterUnanswered is how many queries in a row a server must leave unanswered to
	// become suspect. One in twenty replies of a healthy server is late.
	suspectAfterUnanswered = 3
	// suspectAfterErrors is how many SERVFAIL or REFUSED replies in a row make a server
	// suspect under the policy fastest, each for a name in another domain. Broken domains, and names that a server refuses,
	// such as single labels, cause runs of errors that say nothing about the server: clients ask for each with all
	// their search domains, and again.
	suspectAfterErrors = 8
)

// passiveHealth judges a server by the replies to clients' queries. The zero value trusts
// the server. It is safe for concurrent use; if one of two concurrent changes is lost, the
// next reply corrects that.
type passiveHealth struct {
	// unanswered counts the queries left unanswered since the last reply; errors counts the domains
	// with SERVFAIL and REFUSED replies since the last other reply.
	unanswered, errors atomic.Uint32
	mu                 sync.Mutex
	failedDomains      [suspectAfterErrors]uint64 // the hashes of the first errors of them; guarded by mu
	// lastReply is the time of the last reply, as a timestamp of the pool.
	lastReply atomic.Int64
	// suspected servers are asked after the others.
	suspected atomic.Bool
	// reinstated says that a probe's reply has ended the suspicion and no query has been
	// answered since. probeUnreliable says that the server became suspect again after that:
	// probes then no longer end the suspicion. A resolver without a connection to the
	// internet answers probes.
	reinstated, probeUnreliable atomic.Bool
}

// recordReply records a reply with rcode for name at now. It ends a suspicion, except that it
// returns true if the reply is one error too many.
func (h *passiveHealth) recordReply(rcode wire.Rcode, name []byte, now int64) (failing bool) {
	h.lastReply.Store(now)
	resetNonZero(&h.unanswered)
	if rcode == wire.ServFail || rcode == wire.Refused {
		if h.recordError(name) >= suspectAfterErrors {
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

// domainSeed is the seed of the hashes of domains.
var domainSeed = maphash.MakeSeed()

// recordError counts the domain of name, if it was not counted before, and returns the number of domains.
func (h *passiveHealth) recordError(name []byte) uint32 {
	domain := maphash.Bytes(domainSeed, wire.ParentDomain(name))
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.errors.Load()
	if n < suspectAfterErrors && !slices.Contains(h.failedDomains[:n], domain) {
		h.failedDomains[n] = domain
		n++
		h.errors.Store(n)
	}
	return n
}

// resetNonZero sets n to 0. It writes only if necessary, because all cores share n's cache
// line.
func resetNonZero(n *atomic.Uint32) {
	if n.Load() != 0 {
		n.Store(0)
	}
}

// resetFlag sets f to false; see resetNonZero.
func resetFlag(f *atomic.Bool) {
	if f.Load() {
		f.Store(false)
	}
}

// recordUnanswered records an unanswered query and reports whether the server becomes
// suspect.
func (h *passiveHealth) recordUnanswered() bool { return h.unanswered.Add(1) >= suspectAfterUnanswered }

// markSuspect marks the server suspect and reports whether it was not before.
func (h *passiveHealth) markSuspect() bool {
	if !h.suspected.CompareAndSwap(false, true) {
		return false
	}
	if h.reinstated.Load() {
		h.probeUnreliable.Store(true)
	}
	return true
}

// reinstate records the reply to a probe. It lets one query try the server; if that one is
// left unanswered, too, the server is suspect again.
func (h *passiveHealth) reinstate(now int64) {
	h.lastReply.Store(now)
	if h.probeUnreliable.Load() || h.errors.Load() >= suspectAfterErrors || !h.suspected.Load() {
		return
	}
	h.reinstated.Store(true)
	h.unanswered.Store(suspectAfterUnanswered - 1)
	h.suspected.Store(false)
}

// recordReply records a reply of s. Error rcodes count as errors of s only under the policy
// fastest. name is the query's, in wire form; it may go on behind its root label.
func (m *healthMonitor) recordReply(s *server, rcode wire.Rcode, name []byte, now time.Time) {
	m.absence.end()
	if m.cfg.Policy != config.PolicyFastest {
		rcode = wire.NoError
	}
	if s.recordReply(rcode, name, m.timestamp(now)) && len(m.members.servers()) > 1 && s.markSuspect() {
		s.suspectedCount.Add(1)
		m.opts.Logger.Info("upstream is suspect: too many error replies", "to", s.label)
	}
}

// recordUnanswered records a query that s left unanswered, and may make s suspect.
func (m *healthMonitor) recordUnanswered(s *server) {
	if s.recordUnanswered() {
		m.suspect(s)
	}
}

// recordFailure records that a has ended with err, and checks whether its server is alive
// unless the failure is local.
func (m *healthMonitor) recordFailure(a *attempt, err error) {
	s := a.server
	switch {
	case isUnreachable(err):
		s.unansweredCount.Add(1)
		m.suspect(s)
		m.startProbe(s)
	case isLocal(err): // our own failure, or the server has been removed
	default:
		s.unansweredCount.Add(1)
		if !a.unanswered {
			m.recordUnanswered(s)
		}
		m.startProbe(s)
	}
}

// suspect marks s suspect, so that other servers are asked first until s replies, and
// starts probing it.
func (m *healthMonitor) suspect(s *server) {
	if len(m.members.servers()) < 2 {
		return // there is no other server
	}
	if s.markSuspect() {
		s.suspectedCount.Add(1)
		m.opts.Logger.Info("upstream is suspect: queries unanswered", "to", s.label)
	}
	m.startProbe(s)
}
