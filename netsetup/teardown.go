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
	// enough for the 30 calls that two families take, each 6 ms on an idle
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
	if s.skipTeardown {
		s.log.Info("leaving interface and rules in place, as -skipteardown says")
		return s.leaveInPlace()
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

// leaveInPlace is Teardown with SkipTeardown. Queries of the node's own processes are tracked,
// and go where the rules lead them, before nobody listens any more.
func (s *Setup) leaveInPlace() error {
	ctx, cancel := context.WithTimeout(context.Background(), teardownBudget)
	defer cancel()
	if err := s.acquire(ctx); err != nil {
		return nil // a re-check hangs; the process is about to end
	}
	defer s.release()
	s.keepInterface, s.keepRules = false, false
	s.closeOwnerTable()
	return nil
}

func (s *Setup) teardown(ctx context.Context, between func()) error {
	if err := s.acquire(ctx); err != nil {
		return fmt.Errorf("tearing down: a re-check is still under way: %w", err)
	}
	defer s.release()
	s.keepInterface, s.keepRules, s.onLoopback = false, false, false

	removed, problems := s.removeRules(ctx)
	s.closeOwnerTable()
	between()
	err := errors.Join(append(problems, s.removeInterface())...)
	s.log.Info("torn down", "rules", removed, "complete", err == nil)
	return err
}

// removeInterface deletes the dummy link and takes the plan's addresses off lo.
func (s *Setup) removeInterface() error {
	if s.plan.Interface == "" {
		return nil
	}
	addrs, err := s.node.Addrs()
	if err != nil {
		return s.interfaceFailure(InterfaceCheck, "listing addresses", err)
	}
	var problems []error
	for _, a := range addrs {
		if a.Interface == loopback && slices.Contains(s.plan.Addresses, a.Prefix) {
			problems = append(problems, s.removeAddr(a))
		}
	}
	return errors.Join(append(problems, s.removeDummy(addrs))...)
}

// removeDummy deletes the dummy link, or just our addresses if others are on it.
func (s *Setup) removeDummy(addrs []Addr) error {
	link, err := s.node.Interface(s.plan.Interface)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil
	case err != nil:
		return s.interfaceFailure(InterfaceCheck, "looking for link "+s.plan.Interface, err)
	case link.Kind != kindDummy:
		return nil // Links has refused it; it was never ours
	}
	own, foreign := s.splitAddrs(addrs, link.Name)
	if len(foreign) > 0 {
		s.log.Warn("the link stays, as it carries addresses that are not the agent's",
			"link", link.Name, "addresses", foreign)
		var problems []error
		for _, a := range own {
			problems = append(problems, s.removeAddr(a))
		}
		return errors.Join(problems...)
	}
	if err := s.node.DeleteInterface(link.Name); err != nil && !errors.Is(err, ErrNotFound) {
		return s.interfaceFailure(InterfaceCheck, "removing link "+link.Name, err)
	}
	return nil
}

// splitAddrs tells the plan's addresses on a link from somebody else's. The kernel's own
// fe80 address, which goes with the link, is neither.
func (s *Setup) splitAddrs(addrs []Addr, link string) (own []Addr, foreign []netip.Prefix) {
	for _, a := range addrs {
		switch {
		case a.Interface != link:
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
		return s.interfaceFailure(InterfaceCheck, fmt.Sprintf("removing address %v from %s", a.Prefix, a.Interface), err)
	}
	return nil
}
