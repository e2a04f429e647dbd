package upstream

import (
	"math/rand/v2"
	"sync/atomic"

	"github.com/nodens-dns/nodens/internal/config"
)

// serverOrder is the policy: which server is asked first, and which then.
type serverOrder struct {
	policy   config.Policy
	rotation atomic.Uint32 // of round_robin
}

// appendOrder appends the indices 0 to n-1 to dst in the order in which the servers are
// to be asked. random is a fair shuffle; round_robin starts one further each
// time and goes on with the rest as configured; sequential is as configured. For
// fastest it is a fair shuffle too: the race puts the better of the first two first
// (the power of two choices: those who ask at the same time don't all take the one
// that was the fastest a moment ago).
func (o *serverOrder) appendOrder(dst []int, n int) []int {
	for i := range n {
		dst = append(dst, i)
	}
	if n < 2 {
		return dst
	}
	switch o.policy {
	case config.PolicyFastest, config.PolicyRandom:
		// No secret: who is asked shows on the network anyway.
		rand.Shuffle(n, func(i, j int) { dst[i], dst[j] = dst[j], dst[i] })
	case config.PolicyRoundRobin:
		first := int((o.rotation.Add(1) - 1) % uint32(n))
		copy(dst[1:], dst[:first])
		dst[0] = first
	case config.PolicySequential:
	}
	return dst
}
