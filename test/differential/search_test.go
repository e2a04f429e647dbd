package differential

import (
	"strings"
)

// unknownClientAddr is an address that no pod has.
const unknownClientAddr = "127.0.1.99"

// knownSearches are about clients' search paths.
func knownSearches() []*knownDifference {
	return []*knownDifference{
		{
			reason: "a pod that has been asked to go is not taken for the client: its address may be another's by now",
			expect: func(c comparison) (view, bool) {
				if !c.terminatingAddrs[c.from] {
					return view{}, false
				}
				return c.unknownClient(), true
			},
		},
		{
			reason: "the first domain of a path is no name on the path; CoreDNS fails",
			expect: func(c comparison) (view, bool) {
				ns := c.clientNamespaces[c.from]
				if ns == "" || !strings.EqualFold(c.name, ns+".svc."+zone) {
					return view{}, false
				}
				return c.unknownClient(), true
			},
		},
	}
}

// unknownClient is what the agent must answer if nobody knows who asks.
func (c comparison) unknownClient() view {
	q := c.query
	q.from = unknownClientAddr
	return c.agentAnswer(q)
}
