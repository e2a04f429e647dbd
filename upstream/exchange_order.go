package upstream

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
)

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
