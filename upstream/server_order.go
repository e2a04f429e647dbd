package upstream

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// serverOrder implements the policy of a forward directive: the order in which servers are
// asked.
type serverOrder struct {
	policy   config.Policy
	rotation atomic.Uint32 // first server of the next query, for round_robin
}

// appendOrder appends the indices 0 to n-1 to dst in the order in which to ask the servers:
// shuffled for random, rotated by one more each time for round_robin, as configured for
// sequential. For fastest it is shuffled, too; the exchange then compares the first two and
// asks the faster one first ("power of two choices"), so that simultaneous queries do not
// all go to the server that was the fastest a moment ago.
func (o *serverOrder) appendOrder(dst []int, n int) []int {
	for i := range n {
		dst = append(dst, i)
	}
	if n < 2 {
		return dst
	}
	switch o.policy {
	case config.PolicyFastest, config.PolicyRandom:
		// math/rand suffices: the choice is visible on the network anyway.
		rand.Shuffle(n, func(i, j int) { dst[i], dst[j] = dst[j], dst[i] })
	case config.PolicyRoundRobin:
		first := int((o.rotation.Add(1) - 1) % uint32(n))
		copy(dst[1:], dst[:first])
		dst[0] = first
	case config.PolicySequential:
	}
	return dst
}

// orderServers sets the order in which the servers are asked: the policy's, with
// suspect servers last and without servers that are down. If all are down the order is
// random, since the probes may be at fault rather than all servers.
func (x *exchange) orderServers() {
	p := x.pool
	all := p.order.appendOrder(x.order[:0], len(x.servers))
	x.order = slices.DeleteFunc(all, func(i int) bool { return p.down(x.servers[i]) })
	if len(x.order) == 0 && len(all) > 0 {
		x.enterAllDown()
		return
	}
	trusted := x.moveSuspectsBack()
	if p.order.policy == config.PolicyFastest && trusted > 1 && x.expectedTime(x.order[1]) < x.expectedTime(x.order[0]) {
		x.order[0], x.order[1] = x.order[1], x.order[0]
	}
}

// moveSuspectsBack moves suspect servers behind the others and returns the number of the
// others.
func (x *exchange) moveSuspectsBack() (trusted int) {
	for _, i := range x.order {
		trusted += 1 - x.suspectRank(i)
	}
	if trusted > 0 && trusted < len(x.order) {
		slices.SortStableFunc(x.order, func(a, b int) int { return x.suspectRank(a) - x.suspectRank(b) })
	}
	return trusted
}

// enterAllDown handles the case that all servers are down: one of them is asked, and
// another one if it is late, unless failfast_all_unhealthy_upstreams is set.
func (x *exchange) enterAllDown() {
	if x.rounds.later == 0 {
		x.pool.allDownCount.Add(1)
	}
	x.allDown, x.order, x.failuresLeft, x.hedgesLeft = true, x.order[:0], 1, 1
	if x.pool.cfg.FailfastAllUnhealthy {
		return
	}
	for i := range x.servers {
		x.order = append(x.order, i)
	}
	rand.Shuffle(len(x.order), func(i, j int) { x.order[i], x.order[j] = x.order[j], x.order[i] })
	x.nextIndex = 0
}

// suspectRank is 1 for a suspect server and 0 for others.
func (x *exchange) suspectRank(i int) int {
	if x.servers[i].suspected.Load() {
		return 1
	}
	return 0
}

// unmeasuredRTT stands for the RTT of a server without measurements, in nanoseconds. Such a
// server is asked once all others are slower; shadow queries measure it meanwhile.
const unmeasuredRTT = int64(time.Second)

// expectedTime estimates how long a server takes to answer, in nanoseconds: its smoothed
// RTT times the queries it has in flight, this one included. This balances equally fast
// servers and quickly avoids one that has stopped answering.
func (x *exchange) expectedTime(i int) int64 {
	s := x.servers[i]
	_, times := s.transportFor(x.tcp)
	smooth := times.srtt.Load()
	if smooth == 0 {
		smooth = unmeasuredRTT
	}
	return smooth * int64(s.inFlight.Load()+1)
}

// Candidate is a server of a pool, as a query finds it.
type Candidate struct {
	To            netip.AddrPort
	Down, Suspect bool
	// RTT is the smoothed response time over the protocol of the query; 0 without samples.
	RTT time.Duration
}

// Candidates returns the servers in the order in which a query would try them now, those that are down last. For
// the policy random it is the configured order, for fastest the order of the expected times, of which an
// exchange compares two at random. It changes nothing. overTCP is [From.TCP].
func (p *Pool) Candidates(overTCP bool) []Candidate {
	servers := p.servers()
	x := exchange{pool: p, servers: servers, tcp: p.cfg.ForceTCP || overTCP && !p.cfg.PreferUDP}
	order := p.order.peek(len(servers))
	slices.SortStableFunc(order, func(a, b int) int {
		if c := cmp.Compare(rankOf(p, servers[a]), rankOf(p, servers[b])); c != 0 || p.order.policy != config.PolicyFastest {
			return c
		}
		return cmp.Compare(x.expectedTime(a), x.expectedTime(b))
	})
	list := make([]Candidate, 0, len(servers))
	for _, i := range order {
		s := servers[i]
		_, times := s.transportFor(x.tcp)
		list = append(list, Candidate{To: s.addr, Down: p.down(s), Suspect: s.suspected.Load(), RTT: time.Duration(times.srtt.Load())})
	}
	return list
}

// rankOf is higher for servers that are asked later.
func rankOf(p *Pool, s *server) int {
	switch {
	case p.down(s):
		return 2
	case s.suspected.Load():
		return 1
	}
	return 0
}

// peek returns the order of the next query, without those of fastest and random being shuffled.
func (o *serverOrder) peek(n int) []int {
	order := make([]int, n)
	first := 0
	if o.policy == config.PolicyRoundRobin && n > 1 {
		first = int(o.rotation.Load() % uint32(n))
	}
	for i := range order {
		order[i] = i
	}
	if first > 0 {
		copy(order[1:], order[:first])
		order[0] = first
	}
	return order
}

// From returns the zone whose names the pool takes.
func (p *Pool) From() wire.Name { return p.cfg.From }

// Policy returns the policy by its name in the Corefile.
func (p *Pool) Policy() string {
	return map[config.Policy]string{
		config.PolicyFastest: "fastest", config.PolicyRandom: "random", config.PolicyRoundRobin: "round_robin", config.PolicySequential: "sequential",
	}[p.cfg.Policy]
}
