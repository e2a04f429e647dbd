package upstream

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

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
