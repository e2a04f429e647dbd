package netsetup

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// teardownBudget is when Teardown starts no further call. Half of it is
	// enough for the 32 calls that two addresses take, each 6 ms on an idle
	// machine and 15 to 25 on a busy one; twice as much would break the promise of
	// a stop in under 5 s.
	teardownBudget = 1800 * time.Millisecond

	// teardownLimit is when Teardown returns even if a call has not: the budget
	// and one last call that waits lockWait for the lock.
	teardownLimit = teardownBudget + lockWait
)

// Teardown removes the plan's rules, then its addresses and link, whoever made
// them, of the parts that the Config turns on. It goes on after errors, returns in
// under 3 seconds, and reports what is left. Run, if it still runs, puts nothing
// back; Links and Rules start anew. With SkipTeardown it removes nothing.
//
// between, nil for nothing, is called once in any case: when the rules are gone, so
// that new packets go another way, and the addresses are not, so that replies under
// way can still leave from them. That is the moment to stop listening. Its time
// counts towards the three seconds.
//
// Teardown takes no context: it is called when the process's own is done already.
func (s *Setup) Teardown(between func()) error {
	if between == nil {
		between = func() {}
	}
	between = sync.OnceFunc(between)
	defer between()
	if s.skip {
		s.log.Info("leaving interface and rules in place, as -skipteardown says")
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), teardownBudget)
	defer cancel()
	limit := time.NewTimer(teardownLimit)
	defer limit.Stop()
	done := make(chan error, 1) // buffered: after the limit nobody reads it
	go func() { done <- s.teardown(ctx, between) }()
	select {
	case err := <-done:
		return err
	case <-limit.C:
		return fmt.Errorf("tearing down: not finished after %v; "+
			"the next start adopts what is left", teardownLimit)
	}
}

func (s *Setup) teardown(ctx context.Context, between func()) error {
	if err := s.take(ctx); err != nil {
		return fmt.Errorf("tearing down: a re-check is still under way: %w", err)
	}
	defer s.release()
	s.linksOn, s.rulesOn, s.onLoopback = false, false, false

	// Each rule once, then the links, and only then the search for duplicates: if
	// the time runs out, it does so in the least important part.
	removed, problems := s.removeRules(ctx)
	between()
	err := s.removeLinks()
	if len(problems) == 0 {
		var again int
		again, problems = s.removeDuplicates(ctx)
		removed += again
	}
	s.log.Info("torn down", "rules", removed, "complete", err == nil && len(problems) == 0)
	return errors.Join(append(problems, err)...)
}

// removeRules deletes each rule once, in the reverse order of applying them. A
// family stops at its first failure, as NOTRACK must not stay behind without ACCEPT.
func (s *Setup) removeRules(ctx context.Context) (removed int, problems []error) {
	var failed [2]bool // by Family
	for i, r := range slices.Backward(s.plan.Rules) {
		if failed[r.Family] {
			continue
		}
		var there bool
		err := patiently(ctx, func() (err error) {
			there, err = s.node.DeleteRule(r)
			return err
		})
		if err != nil {
			failed[r.Family] = true
			problems = append(problems, s.ruleFailure(
				fmt.Sprintf("removing rule %d of %d, %v", i+1, len(s.plan.Rules), r), err))
		} else if there {
			removed++
		}
	}
	return removed, problems
}

// removeDuplicates deletes what is left of the rules after removeRules.
func (s *Setup) removeDuplicates(ctx context.Context) (removed int, problems []error) {
	for _, f := range []Family{IPv4, IPv6} {
		n, err := s.thinOut(ctx, f, 0)
		removed += n
		if err != nil {
			problems = append(problems, s.ruleFailure("looking for duplicates of "+f.String()+" rules", err))
		}
	}
	return removed, problems
}

// removeLinks deletes the dummy link and takes the plan's addresses off lo.
func (s *Setup) removeLinks() error {
	if s.plan.Link == "" {
		return nil
	}
	addrs, err := s.node.Addrs()
	if err != nil {
		return s.linkFailure(InterfaceCheck, "listing addresses", err)
	}
	var problems []error
	for _, a := range addrs {
		if a.Link == loopback && slices.Contains(s.plan.Addresses, a.Prefix) {
			problems = append(problems, s.removeAddr(a))
		}
	}
	return errors.Join(append(problems, s.removeDummy(addrs))...)
}

// removeDummy deletes the dummy link, or just our addresses if others are on it.
func (s *Setup) removeDummy(addrs []Addr) error {
	link, err := s.node.Link(s.plan.Link)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil
	case err != nil:
		return s.linkFailure(InterfaceCheck, "looking for link "+s.plan.Link, err)
	case link.Kind != kindDummy:
		return nil // Links has refused it; it was never ours
	}
	own, foreign := s.sort(addrs, link.Name)
	if len(foreign) > 0 {
		s.log.Warn("the link stays, as it carries addresses that are not the agent's",
			"link", link.Name, "addresses", foreign)
		var problems []error
		for _, a := range own {
			problems = append(problems, s.removeAddr(a))
		}
		return errors.Join(problems...)
	}
	if err := s.node.DeleteLink(link.Name); err != nil && !errors.Is(err, ErrNotFound) {
		return s.linkFailure(InterfaceCheck, "removing link "+link.Name, err)
	}
	return nil
}

// sort tells the plan's addresses on a link from somebody else's. The kernel's own
// fe80 address, which goes with the link, is neither.
func (s *Setup) sort(addrs []Addr, link string) (own []Addr, foreign []netip.Prefix) {
	for _, a := range addrs {
		switch {
		case a.Link != link:
		case slices.Contains(s.plan.Addresses, a.Prefix):
			own = append(own, a)
		case !a.Prefix.Addr().IsLinkLocalUnicast() || a.Prefix.Addr().Is4():
			foreign = append(foreign, a.Prefix)
		}
	}
	return own, foreign
}

func (s *Setup) removeAddr(a Addr) error {
	if err := s.node.DeleteAddr(a); err != nil && !errors.Is(err, ErrNotFound) {
		return s.linkFailure(InterfaceCheck, fmt.Sprintf("removing address %v from %s", a.Prefix, a.Link), err)
	}
	return nil
}
