package netsetup

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// teardownBudget is the time after which Teardown starts no further call. The 30 calls for two
// families take 6 ms each on an idle machine and 15 to 25 ms on a busy one.
const teardownBudget = 1800 * time.Millisecond

// Teardown removes the plan's rules, then its addresses and interface, of the parts that the Config
// turns on and whoever made them. It continues after errors, returns within 3 seconds and extra, and
// reports what is left. A Run that is still running restores nothing; EnsureInterface and EnsureRules start
// again. With SkipTeardown it removes nothing.
//
// Teardown calls between once in every case; nil is allowed. At that moment the rules are gone, so
// that new packets take another way, and the addresses are still there, so that replies in flight
// can leave from them: it is the time to stop listening. It counts towards this time. (A socket that is bound to
// an IPv6 address goes on sending from it when the address is gone; with IPv4 the kernel refuses.)
//
// Teardown takes no context: the process's own is already done when it is called.
func (s *Setup) Teardown(extra time.Duration, between func()) error {
	if between == nil {
		between = func() {}
	}
	between = sync.OnceFunc(between)
	defer between()
	if s.skipTeardown {
		s.log.Info("interface and rules stay in place because of --skipteardown")
		return s.leaveInPlace()
	}
	budget := s.teardownBudget + max(0, extra)
	ctx, cancel := context.WithTimeout(context.Background(), budget)
	defer cancel()
	limit := budget + lockWait  // of one last call, which waits for the xtables lock
	done := make(chan error, 1) // buffered: nobody reads it after the limit
	go func() { done <- s.teardown(ctx, between) }()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return fmt.Errorf("tearing down: not finished after %v; "+
			"the next start adopts what is left", limit)
	}
}

// leaveInPlace is Teardown with SkipTeardown. It closes the owner table before the sockets close, so
// that queries from the node's own processes are diverted from then on.
func (s *Setup) leaveInPlace() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.teardownBudget)
	defer cancel()
	if err := s.sem.Acquire(ctx, 1); err != nil {
		return nil // a re-check hangs, and the process is about to end
	}
	defer s.sem.Release(1)
	s.keepRules = false
	s.closeOwnerTable()
	if s.links.Acquire(ctx, 1) == nil {
		s.keepInterface = false
		s.links.Release(1)
	}
	return nil
}

// Yield gives up what only this process has, for another agent that has taken over: the owner table, which
// would keep queries from the node's own processes to an address that is the successor's no more from
// their translation. EnsureRules takes it back.
func (s *Setup) Yield(ctx context.Context) {
	if s.sem.Acquire(ctx, 1) == nil {
		s.closeOwnerTable()
		s.sem.Release(1)
	}
}

func (s *Setup) teardown(ctx context.Context, between func()) error {
	for _, guard := range []*semaphore.Weighted{s.sem, s.links} {
		if err := guard.Acquire(ctx, 1); err != nil {
			return fmt.Errorf("tearing down: a re-check is still under way: %w", err)
		}
		defer guard.Release(1)
	}
	s.keepInterface, s.keepRules, s.onLoopback = false, false, false

	removed, problems := s.removeRules(ctx)
	s.closeOwnerTable()
	between()
	err := errors.Join(append(problems, s.removeInterface())...)
	s.log.Info("torn down", "rules", removed, "complete", err == nil)
	return err
}

// removeInterface deletes the dummy interface, and the plan's addresses on lo.
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

// removeDummy deletes the dummy interface, or only our addresses if it has foreign ones.
func (s *Setup) removeDummy(addrs []Addr) error {
	link, err := s.node.Interface(s.plan.Interface)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil
	case err != nil:
		return s.interfaceFailure(InterfaceCheck, "looking up interface "+s.plan.Interface, err)
	case link.Kind != kindDummy:
		return nil // EnsureInterface has refused it
	}
	own, foreign := s.splitAddrs(addrs, link.Name)
	if len(foreign) > 0 {
		s.log.Warn("keeping the interface, which has foreign addresses",
			"interface", link.Name, "addresses", foreign)
		var problems []error
		for _, a := range own {
			problems = append(problems, s.removeAddr(a))
		}
		return errors.Join(problems...)
	}
	if err := s.node.DeleteInterface(link.Name); err != nil && !errors.Is(err, ErrNotFound) {
		return s.interfaceFailure(InterfaceCheck, "removing interface "+link.Name, err)
	}
	return nil
}

// splitAddrs splits the addresses of an interface into the plan's and foreign ones. The kernel's own
// fe80 address, which goes with the interface, is neither.
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
