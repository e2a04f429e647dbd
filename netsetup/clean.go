package netsetup

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// defaultAddr is the address that NodeLocal DNSCache's manifest and this agent's own use.
var defaultAddr = netip.AddrFrom4([4]byte{169, 254, 20, 10})

// CleanResult is what [Clean] has removed, and what it has found and left. Both lists are nil if
// they are empty.
type CleanResult struct {
	Removed []CleanedObject
	Left    []CleanedObject
}

// ObjectKind is the kind of an object on a node.
type ObjectKind string

// The kinds.
const (
	KindRules     ObjectKind = "rules"
	KindAddress   ObjectKind = "address"
	KindInterface ObjectKind = "interface"
	KindSets      ObjectKind = "sets"
)

// CleanedObject is an object on a node, or a number of rules.
type CleanedObject struct {
	Kind ObjectKind
	// Backend and Count are the backend and the number of rules, Count also the number of egress sets.
	Backend string
	Count   int
	// Interface is the name of an interface, or the one that Address is on.
	Interface string
	Address   netip.Prefix
	// Reason says why an object is left, and what to do.
	Reason string
}

// String describes the object, without the reason.
func (o CleanedObject) String() string {
	switch o.Kind {
	case KindRules:
		return fmt.Sprintf("%d rules of %s", o.Count, o.Backend)
	case KindSets:
		return fmt.Sprintf("%d sets of table inet nodens-egress", o.Count)
	case KindAddress:
		return fmt.Sprintf("address %v on %s", o.Address, o.Interface)
	default:
		return "interface " + o.Interface
	}
}

// Clean removes what an agent of any version, or NodeLocal DNSCache, may have left on this node:
// rules of every backend, the egress sets, c's addresses, and the interface. Without addresses in c it removes the
// interface with all its addresses, and the addresses that an agent has added to lo: those with
// the agent's label, and those of IPv6 that the removed rules name beside them. An address that
// the removed rules name and that may be another program's is left, and reported. Clean continues
// after errors and joins them. On other systems than Linux the error is ErrNotLinux.
func Clean(ctx context.Context, c Config) (CleanResult, error) {
	node, err := thisNode()
	if err != nil {
		return CleanResult{}, err
	}
	return clean(ctx, c, node)
}

// clean implements Clean.
func clean(ctx context.Context, c Config, node Node) (CleanResult, error) {
	if err := checkName(c.interfaceName()); err != nil {
		return CleanResult{}, err
	}
	s := &Setup{node: node, log: c.logger(), plan: c.interfacePlan()}
	var r CleanResult
	named, problems := s.cleanRules(ctx, &r)
	problems = append(problems, s.cleanInterface(&r, named), s.cleanSets(ctx, &r))
	return r, errors.Join(problems...)
}

// cleanRules removes the rules of every backend. It returns the local addresses that they name.
func (s *Setup) cleanRules(ctx context.Context, r *CleanResult) (named []netip.Addr, problems []error) {
	chosen, err := s.node.chooseBackend(ctx, NetfilterAuto, nil)
	if err != nil {
		return nil, []error{s.ruleFailures(ctx, "looking for a way to remove rules", err)}
	}
	for _, f := range append([]ruleBackend{chosen.backend}, chosen.others...) {
		addrs, err := f.localAddrs(ctx)
		if err != nil {
			problems = append(problems, s.ruleFailures(ctx, "listing rules", err))
		}
		named = append(named, addrs...)
		n, err := f.remove(ctx, true)
		if n > 0 {
			r.Removed = append(r.Removed, CleanedObject{Kind: KindRules, Backend: f.name(), Count: n})
		}
		if err != nil {
			problems = append(problems, s.ruleFailures(ctx, "removing rules", err))
		}
	}
	return named, problems
}

// cleanSets removes the egress sets of DNSPolicies.
func (s *Setup) cleanSets(ctx context.Context, r *CleanResult) error {
	removed, used, err := s.node.cleanEgressSets()
	if removed > 0 {
		r.Removed = append(r.Removed, CleanedObject{Kind: KindSets, Count: removed})
	}
	if used > 0 {
		r.Left = append(r.Left, CleanedObject{Kind: KindSets, Count: used, Reason: "rules use them, and they are emptied; delete the rules, or all of it by nft delete table inet nodens-egress"})
	}
	if err != nil {
		return s.ruleFailures(ctx, "removing egress sets", err)
	}
	return nil
}

// cleanInterface removes the plan's addresses and interface. If the plan has no addresses, it
// finds them: all addresses on the interface, and those on lo that are certainly an agent's.
func (s *Setup) cleanInterface(r *CleanResult, named []netip.Addr) error {
	before, err := s.node.Addrs()
	if err != nil {
		return s.interfaceFailure(InterfaceCheck, "listing addresses", err)
	}
	_, was := s.node.Interface(s.plan.Interface)
	if s.plan.Addresses == nil {
		err = s.removeFound(before, named)
		named = append(named, defaultAddr)
	} else {
		err = s.removeInterface()
	}
	after, failed := s.node.Addrs()
	if failed != nil {
		return errors.Join(err, s.interfaceFailure(InterfaceCheck, "listing addresses", failed))
	}
	for _, a := range before {
		if !slices.ContainsFunc(after, func(o Addr) bool { return a.Interface == o.Interface && a.Prefix == o.Prefix }) {
			r.Removed = append(r.Removed, CleanedObject{Kind: KindAddress, Address: a.Prefix, Interface: a.Interface})
		}
	}
	if _, is := s.node.Interface(s.plan.Interface); was == nil && errors.Is(is, ErrNotFound) {
		r.Removed = append(r.Removed, CleanedObject{Kind: KindInterface, Interface: s.plan.Interface})
	}
	s.reportLeft(r, after, named)
	return err
}

// removeFound removes the interface with all its addresses, and the addresses on lo that are
// certainly an agent's: the ones with its label, and IPv6 addresses, which have no label, that its
// rules name beside one.
func (s *Setup) removeFound(addrs []Addr, named []netip.Addr) error {
	labelled := slices.ContainsFunc(addrs, func(a Addr) bool { return a.Label == loopbackLabel })
	var problems []error
	for _, a := range addrs {
		beside := labelled && a.Prefix.IsSingleIP() && a.Prefix.Addr().Is6() && slices.Contains(named, a.Prefix.Addr())
		switch {
		case a.Interface == s.plan.Interface:
			s.plan.Addresses = append(s.plan.Addresses, a.Prefix)
		case a.Interface == loopback && (a.Label == loopbackLabel || beside):
			problems = append(problems, s.removeAddr(a))
		}
	}
	return errors.Join(append(problems, s.removeDummy(addrs))...)
}

// reportLeft adds the named addresses that are still on lo or on an interface of kind dummy, the
// only ones to which an agent adds addresses.
func (s *Setup) reportLeft(r *CleanResult, addrs []Addr, named []netip.Addr) {
	for _, a := range addrs {
		if !a.Prefix.IsSingleIP() || !slices.Contains(named, a.Prefix.Addr()) || a.Interface == ipvsInterface {
			continue
		}
		reason := fmt.Sprintf("it may be another program's; if it is the agent's, run nodens cleanup --localip %v", a.Prefix.Addr())
		if a.Interface != loopback {
			link, err := s.node.Interface(a.Interface)
			if err != nil || link.Kind != kindDummy {
				continue
			}
			if a.Interface != s.plan.Interface {
				reason = fmt.Sprintf("the interface is not --interfacename %s; if it is the agent's, run nodens cleanup --interfacename %s", s.plan.Interface, a.Interface)
			}
		}
		r.Left = append(r.Left, CleanedObject{Kind: KindAddress, Address: a.Prefix, Interface: a.Interface, Reason: reason})
	}
}
