package upstream

import (
	"math/rand/v2"
	"sync/atomic"

	"github.com/nodens-dns/nodens/internal/config"
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
