package upstream

import (
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/internal/stat"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Stats is a snapshot of a Pool's counters. All of them only grow, except Down, Suspected, RTT
// and InFlight. Counters read while queries are in flight may not add up.
type Stats struct {
	Servers []Server
	// HealthcheckBroken counts the queries for which all servers were down.
	HealthcheckBroken uint64
	// MaxConcurrentRejects counts the exchanges that returned [ErrTooMany].
	MaxConcurrentRejects uint64
	// InFlight is the number of exchanges, MaxConcurrent the most that there may be; 0 is no bound.
	InFlight, MaxConcurrent int
}

// Server has the counters of one upstream address.
type Server struct {
	To netip.AddrPort
	// GRPC says that the server is one of the directive `grpc`.
	GRPC bool
	Down bool
	// Suspected says that the server left queries unanswered, so that others are asked
	// first.
	Suspected bool
	// RTT is the smoothed response time, over UDP if it is used; 0 without samples.
	RTT time.Duration
	// Hedges counts the queries sent to it because another server was late, HedgeWins those
	// that it answered first, and SuspectedTotal how often it became suspect.
	Hedges, HedgeWins, SuspectedTotal uint64
	// Broken counts the connections that could not be opened, or failed with queries in
	// flight.
	Broken uint64
	// Durations has the durations of exchanges, in seconds, for each rcode received.
	Durations           map[wire.Rcode]stat.Snapshot
	HealthcheckFailures uint64
	// Unanswered counts the queries without a valid reply: in time, or before a server that was asked no
	// earlier had answered.
	Unanswered uint64
	// UDP, TCP, TLS and QUIC count the connections used; TCP includes HTTPS and gRPC.
	UDP, TCP, TLS, QUIC Reuse
	// InFlight is the number of queries without a reply yet, MaxInFlight the most that there may
	// be over the transport that the pool prefers.
	InFlight, MaxInFlight int
	// UnexpectedReplies counts the messages dropped because their ID or question matches no
	// query, or because they have no question and no error rcode. The kernel drops messages
	// from other addresses, which are not counted.
	UnexpectedReplies uint64
	// Budget is that of `max_rate` for this address, over all pools; nil without `max_rate`.
	Budget *BudgetStats
}

// BudgetStats describe the budget of an upstream address. All counters only grow.
type BudgetStats struct {
	// Limit is the number of queries per second; 0: `max_rate auto` has found no limit yet.
	Limit float64
	// Auto says that the agent looks for the limit itself.
	Auto bool
	// Used is the fraction of Limit that the queries of the last second took; 0 without a limit.
	// A burst can raise it above 1.
	Used float64
	// Waiting is the number of queries that wait for their turn.
	Waiting int
	// Waited counts the queries that had to wait, Expired those that failed with [ErrOverBudget], and
	// GivenUp the hedges, copies, probes and background queries that were not sent.
	Waited, Expired, GivenUp uint64
	// Clients are those with the most waiting queries, the first with most; at most five.
	Clients []BudgetClient
}

// BudgetClient is a client whose queries wait for a budget.
type BudgetClient struct {
	Addr    netip.Addr // see [From.Addr]
	Waiting int
}

// Reuse counts the queries that used an existing connection (Hits) and those that did not.
type Reuse struct {
	Hits, Misses uint64
}

// EachExchanges calls f for each server with the number of its exchanges. Unlike [Pool.Stats] it does
// not allocate.
func (p *Pool) EachExchanges(f func(to netip.AddrPort, n uint64)) {
	for _, s := range p.servers() {
		var n uint64
		for _, h := range s.durations {
			n += h.Count()
		}
		f(s.addr, n)
	}
}

// durations has a histogram for each rcode of the header's four bits; internal/wire has
// turned extended rcodes into SERVFAIL.
type durations [16]*stat.Histogram

func newDurations() (d durations) {
	for i := range d {
		d[i] = stat.NewHistogram(stat.DurationBuckets)
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
