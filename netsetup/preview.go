package netsetup

import (
	"context"
	"errors"
	"fmt"
)

// Preview describes what New and its Setup would do on this node: interface, addresses,
// external interfaces, and the rules in the syntax of the backend that they would use. It reads
// the node's state and changes nothing. The error is NewPlan's, or of type *Error.
//
// On other systems than Linux it describes what they would do on a node, without the interfaces
// of the default routes. Netfilter has to name the backend then; if not, the error is ErrNotLinux.
func Preview(ctx context.Context, c Config) (Description, error) {
	node, err := thisNode()
	if err != nil {
		return previewElsewhere(c)
	}
	p, err := NewPlan(c)
	if err != nil {
		return Description{}, err
	}
	if len(p.rules.addrs) == 0 {
		return p.Describe(), nil
	}
	chosen, err := node.chooseBackend(ctx, c.Netfilter, c.Addresses)
	if err != nil {
		return Description{}, errors.Join(&Error{Type: Iptables, Op: "looking for a way to make rules", Hint: toolHint, Err: err})
	}
	if p.followsRoutes {
		found, err := node.defaultInterfaces()
		if err != nil {
			return Description{}, &Error{Type: InterfaceCheck, Op: "listing default routes", Hint: externalHint, Err: err}
		}
		p.rules.external, p.notExternal = splitExternal(found)
		p.followsRoutes = false
	}
	d := p.describe(chosen.backend)
	d.Reason = chosen.reason
	return d, nil
}

// previewElsewhere is Preview on other systems than Linux.
func previewElsewhere(c Config) (Description, error) {
	p, err := NewPlan(c)
	if err != nil {
		return Description{}, err
	}
	if len(p.rules.addrs) > 0 && p.netfilter != NetfilterIptables && p.netfilter != NetfilterNftables {
		return Description{}, fmt.Errorf("--netfilter: %s follows the node's kube-proxy (%w); give %s or %s",
			NetfilterAuto, ErrNotLinux, NetfilterIptables, NetfilterNftables)
	}
	return p.Describe(), nil
}

// Describe describes what s keeps in place: the interface, the addresses, and the rules with the
// external interfaces and the servers of the cluster DNS that it knows now. Before EnsureRules it
// describes the Plan. It waits for a change of the rules that is being made. The error is ctx's.
func (s *Setup) Describe(ctx context.Context) (Description, error) {
	if err := s.sem.acquire(ctx); err != nil {
		return Description{}, err
	}
	defer s.sem.release()
	if err := s.links.acquire(ctx); err != nil {
		return Description{}, err
	}
	defer s.links.release()
	p := s.plan
	if s.onLoopback {
		p.Interface = loopback
	}
	if s.backend == nil {
		return p.Describe(), nil
	}
	p.rules, p.notExternal = s.rules, s.notExternal
	p.followsRoutes = p.followsRoutes && !s.keepRules
	d := p.describe(s.backend)
	d.Reason, d.Blocked = s.Stats().BackendReason, s.backend.blocked()
	return d, nil
}
