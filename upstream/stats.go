package upstream

import (
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/internal/stat"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Stats is a snapshot of a Pool's counters. All only grow, but
// Down, Doubted and RTT. Counters
// read while queries are under way need not add up to the last one.
type Stats struct {
	Servers []Server
	// HealthcheckBroken is how often all servers were down when one was needed.
	HealthcheckBroken uint64
	// MaxConcurrentRejects is how often Exchange was [ErrTooMany].
	MaxConcurrentRejects uint64
}

// Server is what is counted per upstream.
type Server struct {
	To   netip.AddrPort
	Down bool
	// Suspected says that the traffic speaks against it: others are asked first.
	Suspected bool
	// RTT is the smoothed time of its replies, 0 where none has come: over UDP, or
	// over what else it is asked.
	RTT time.Duration
	// Hedges are the queries it got because another server was late, HedgeWins those
	// of them that it answered first, Doubts how often it became doubted.
	Hedges, HedgeWins, SuspectedTotal uint64
	// Broken are the connections that could not be made, or broke with queries in
	// flight.
	Broken uint64
	// Durations is how long the exchanges took, in seconds, by the rcode they
	// ended with; only those that were seen.
	Durations           map[wire.Rcode]stat.Snapshot
	HealthcheckFailures uint64
	UDP, TCP            Reuse
	// UnexpectedReplies are the messages dropped because their ID or question was another
	// one, or because they had no question and were no error. What came from another
	// address the kernel has dropped, uncounted.
	UnexpectedReplies uint64
}

// Reuse is how often a query found a connection open, and how often not.
type Reuse struct {
	Hits, Misses uint64
}

// Stats takes a snapshot. The caller owns it.
func (p *Pool) Stats() Stats {
	out := Stats{HealthcheckBroken: p.allDownCount.Load(), MaxConcurrentRejects: p.rejectedCount.Load()}
	for _, s := range p.servers() {
		v := Server{
			To:                  s.addr,
			Down:                p.down(s),
			Durations:           s.durations.snapshot(),
			HealthcheckFailures: s.probeFailures.Load(),
			UnexpectedReplies:   s.unexpected.Load(),
			Suspected:           s.suspected.Load(),
			RTT:                 s.displayedRTT(),
			Hedges:              s.hedges.Load(),
			HedgeWins:           s.hedgeWins.Load(),
			SuspectedTotal:      s.suspectedCount.Load(),
			Broken:              s.brokenConns.Load(),
		}
		if s.udp != s.tcp {
			v.UDP.Hits, v.UDP.Misses = s.udp.reuse()
		}
		v.TCP.Hits, v.TCP.Misses = s.tcp.reuse()
		out.Servers = append(out.Servers, v)
	}
	return out
}

// displayedRTT is [Server.RTT].
func (s *server) displayedRTT() time.Duration {
	if t := s.udpRTT.srtt.Load(); t > 0 {
		return time.Duration(t)
	}
	return time.Duration(s.tcpRTT.srtt.Load())
}

// durations is a histogram for each rcode of the header's four bits; extended
// ones have become SERVFAIL in wire.
type durations [16]*stat.Histogram

func newDurations() (d durations) {
	for i := range d {
		d[i] = stat.NewHistogram(stat.Seconds)
	}
	return d
}

func (d *durations) observe(c wire.Rcode, took time.Duration) {
	d[int(c)%len(d)].Observe(max(took, 0).Seconds())
}

func (d *durations) snapshot() map[wire.Rcode]stat.Snapshot {
	out := make(map[wire.Rcode]stat.Snapshot)
	for rcode, h := range d {
		if s := h.Read(); s.Count > 0 {
			out[wire.Rcode(rcode)] = s
		}
	}
	return out
}
