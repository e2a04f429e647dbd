package resolver

import (
	"fmt"
	"net/netip"

	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/wire"
)

// The addresses of a reply enter the packet filter's sets of the policies that bind the client and that allow the name by themselves
// ([dnspolicy.Egress]), before the reply is sent. No copy is made of such a reply: it would go on without the sets.

// admit is the step of the sets, of a reply that is complete. Without permission to wait it only looks whether the addresses are
// there. If they can't enter, clients that wait for their policies get SERVFAIL, and others the reply.
func (r *Request) admit() Outcome {
	if r.reply.Rcode() != wire.NoError {
		return Answered
	}
	var missing []dnspolicy.Missing
	for _, p := range r.policy.Filtered() {
		if !r.allowedBy(p) {
			continue
		}
		r.reply.EachAddress(func(addr netip.Addr, ttl uint32) {
			r.admitted = true
			if m, lacks := p.Set.Lacks(addr, ttl); lacks {
				missing = append(missing, m)
			}
		})
	}
	if missing == nil || r.trace != nil {
		return Answered
	}
	if !r.mayWait() {
		return WouldWait
	}
	err := dnspolicy.AddMissing(r.ctx, missing)
	if err == nil || !r.routes.policies.Closed {
		return Answered
	}
	r.reply.Fail(wire.ServFail)
	r.reply.SetEDE(wire.EDENotReady)
	r.source, r.err = fromPolicy, fmt.Errorf("DNSPolicy: %w", err)
	return Answered
}

// allowedBy reports whether p by itself allows the name that r's reply is about: the client's, or the one on its search path.
func (r *Request) allowedBy(p *dnspolicy.Policy) bool {
	name := r.Query.Name()
	if r.viaSearch {
		names := r.reply.Names()
		if n, ok := names.Next(); ok && n.Target && n.Type == wire.TypeCNAME {
			name = n.Name
		}
	}
	return p.Allows(name, r.routes.serviceOf(name))
}
