package netsetup

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Clean removes what an agent of any version, or NodeLocal DNSCache, may have left on this node:
// rules of every backend, c's addresses, and the interface. removed describes each removed
// object; nil if there was nothing. Clean continues after errors and joins them.
// On other systems than Linux the error is ErrNotLinux.
func Clean(ctx context.Context, c Config) (removed []string, err error) {
	node, err := thisNode()
	if err != nil {
		return nil, err
	}
	return clean(ctx, c, node)
}

// clean implements Clean.
func clean(ctx context.Context, c Config, node Node) (removed []string, err error) {
	if err := checkName(c.interfaceName()); err != nil {
		return nil, err
	}
	s := &Setup{node: node, log: c.logger(), plan: c.interfacePlan()}
	var problems []error
	chosen, err := node.chooseBackend(ctx, NetfilterAuto, nil)
	if err != nil {
		problems = append(problems, s.ruleFailures(ctx, "looking for a way to remove rules", err))
	} else {
		for _, f := range append([]ruleBackend{chosen.backend}, chosen.others...) {
			n, err := f.remove(ctx)
			if n > 0 {
				removed = append(removed, fmt.Sprintf("%d rules of %s", n, f.name()))
			}
			if err != nil {
				problems = append(problems, s.ruleFailures(ctx, "removing rules", err))
			}
		}
	}
	gone, err := s.cleanInterface(len(c.Addresses) == 0)
	return append(removed, gone...), errors.Join(append(problems, err)...)
}

// cleanInterface removes the plan's addresses and interface, and describes what it removed. whole:
// the interface is deleted whatever its addresses, because none were given.
func (s *Setup) cleanInterface(whole bool) (removed []string, err error) {
	before, err := s.node.Addrs()
	if err != nil {
		return nil, s.interfaceFailure(InterfaceCheck, "listing addresses", err)
	}
	_, was := s.node.Interface(s.plan.Interface)
	if whole {
		for _, a := range before {
			if a.Interface == s.plan.Interface {
				s.plan.Addresses = append(s.plan.Addresses, a.Prefix)
			}
		}
	}
	err = s.removeInterface()
	after, failed := s.node.Addrs()
	if failed != nil {
		return nil, errors.Join(err, s.interfaceFailure(InterfaceCheck, "listing addresses", failed))
	}
	for _, a := range before {
		if !slices.Contains(after, a) {
			removed = append(removed, fmt.Sprintf("address %v on %s", a.Prefix, a.Interface))
		}
	}
	if _, is := s.node.Interface(s.plan.Interface); was == nil && errors.Is(is, ErrNotFound) {
		removed = append(removed, "interface "+s.plan.Interface)
	}
	return removed, err
}
