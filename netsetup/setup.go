package netsetup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// Setup makes a node match a Plan. Its methods are safe for concurrent use; one waits for the other.
type Setup struct {
	plan         Plan
	node         Node
	log          *slog.Logger
	interval     time.Duration
	skipTeardown bool
	takingOver   func() bool // nil: never
	counters     counters
	// teardownBudget is the constant of the same name, except in tests.
	teardownBudget time.Duration

	// links and sem hold one token each, which guards the fields below: an address must not wait
	// for rules. Who needs both takes sem first. They are not mutexes so that a wait
	// ends with a context.
	links, sem *semaphore.Weighted

	// Guarded by links. keepInterface: Run keeps interface and addresses in place. Set when
	// EnsureInterface is called, even if it fails, and cleared by Teardown. onLoopback: the kernel
	// has no dummy driver, and the addresses are on lo.
	keepInterface, onLoopback bool

	// Guarded by sem, from here on. keepRules is keepInterface for EnsureRules.
	keepRules bool
	// rules are the desired rules, and backend, which is nil until it is needed, makes them.
	// others are backends in which an earlier agent may have left rules. othersGone: there are
	// none. choose is backendChoice.again.
	rules      desiredRules
	backend    ruleBackend
	others     []ruleBackend
	othersGone bool
	choose     func(context.Context) (ruleBackend, string, error)
	// notExternal are the interfaces of default routes that are not external, as last logged.
	notExternal []string
	// externalChanged: the external interfaces have changed since the rules were written.
	externalChanged bool
	// dnatTargets is the diversion when stale connection-tracking entries were last deleted.
	// hostTargets is the same for the host's addresses.
	dnatTargets, hostTargets []netip.AddrPort
	// ownerTable exempts queries from the node's own processes while this process lives. Nil
	// before the rules are written, and if rules.untrackHost is set instead.
	ownerTable io.Closer
}

// New plans c and returns a Setup. It touches nothing. The error is NewPlan's, or ErrNotLinux. A
// nil node means this machine; a Config that sets nothing up needs neither root nor iptables.
func New(c Config, node Node) (*Setup, error) {
	plan, err := NewPlan(c)
	if err != nil {
		return nil, err
	}
	if node == nil {
		if node, err = thisNode(); err != nil {
			return nil, err
		}
	}
	return &Setup{
		plan:         plan,
		node:         node,
		log:          c.logger(),
		interval:     cmp.Or(c.Interval, DefaultInterval),
		skipTeardown: c.SkipTeardown,
		takingOver:   c.TakingOver,
		rules:        plan.rules,
		links:        semaphore.NewWeighted(1),
		sem:          semaphore.NewWeighted(1),

		teardownBudget: teardownBudget,
	}, nil
}

// Plan returns the Plan. The caller must not change its slices.
func (s *Setup) Plan() Plan { return s.plan }

// Stats returns the totals so far. It does not block.
func (s *Setup) Stats() Stats { return s.counters.stats() }

// EnsureInterface puts the interface and the addresses in place, and from now on Run keeps them
// there. When it returns, the addresses can be bound. It reports an address in use on another
// interface before it changes anything; after any other error part of the Plan may be in place.
// Then call either EnsureInterface again or Teardown. Errors are of type *Error, or ctx's.
func (s *Setup) EnsureInterface(ctx context.Context) error {
	if err := s.links.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("setting up the interface: %w", err)
	}
	defer s.links.Release(1)
	s.keepInterface = true
	changed, err := s.ensureInterface(true)
	s.log.Info("interface set up", "interface", s.plan.Interface, "addresses", len(s.plan.Addresses),
		"changed", changed, "complete", err == nil)
	return err
}

// RemoveOldAddresses removes the addresses of a predecessor that are not in the plan: host addresses on
// the dummy interface, and those on lo with an agent's label. Call it when the predecessor has handed
// over. An address that only this node has, and that nobody serves, gets no reply. Other addresses on
// the interface stay. The error is ctx's, or joins those of type *Error.
func (s *Setup) RemoveOldAddresses(ctx context.Context) error {
	if err := s.links.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("removing old addresses: %w", err)
	}
	defer s.links.Release(1)
	if s.plan.Interface == "" {
		return nil
	}
	addrs, err := s.node.Addrs()
	if err != nil {
		return s.interfaceFailure(InterfaceCheck, "listing addresses", err)
	}
	var problems []error
	for _, a := range addrs {
		agents := a.Label == loopbackLabel || a.Interface == s.plan.Interface && a.Prefix.IsSingleIP()
		if agents && s.isOurs(a.Interface) && !slices.Contains(s.plan.Addresses, a.Prefix) {
			s.log.Info("removing an address of the predecessor", "address", a.Prefix, "interface", a.Interface)
			problems = append(problems, s.removeAddr(a))
		}
	}
	return errors.Join(problems...)
}

// Run keeps in place what EnsureInterface and EnsureRules have put there. It re-checks at once, at
// every interval, and when the kernel reports a removal, and restores missing and modified objects.
// When a default route changes it updates the rules, and when kube-proxy changes its mode it moves them.
// It logs and counts a failure, and tries again at the next interval. Run blocks until ctx is done. It
// does not tear down.
func (s *Setup) Run(ctx context.Context) {
	tick := time.NewTicker(s.interval)
	defer tick.Stop()
	addresses, rules := s.node.watchRemovals(ctx, s.plan)
	var links sync.WaitGroup
	defer links.Wait()
	links.Go(func() {
		for range addresses { // closed when ctx is done
			s.recheckInterface(ctx)
		}
	})
	s.recheck(ctx) // for removals before the subscription
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.recheck(ctx)
		case _, open := <-rules:
			if !open {
				rules = nil // the interval remains
				continue
			}
			s.recheckRules(ctx)
		}
	}
}

// recheck is one pass of Run.
func (s *Setup) recheck(ctx context.Context) {
	s.recheckInterface(ctx)
	s.recheckRules(ctx)
}

// recheckInterface re-checks the interface and the addresses.
func (s *Setup) recheckInterface(ctx context.Context) {
	if s.links.Acquire(ctx, 1) != nil {
		return // shutting down
	}
	defer s.links.Release(1)
	if !s.keepInterface {
		return
	}
	repaired, err := s.ensureInterface(false)
	if err != nil {
		s.log.Warn("re-check of the interface failed", "retry", s.interval, "err", err)
	}
	s.countRepairs(repaired)
}

const (
	// maxTakeover bounds how long re-checks of the rules wait for an agent that takes over, which needs some seconds on
	// a busy node.
	maxTakeover = time.Minute
	// takeoverPoll is how often they look whether it has given up.
	takeoverPoll = 100 * time.Millisecond
)

// awaitTakeover waits until no other agent is taking over, which ends ctx if it succeeds.
func (s *Setup) awaitTakeover(ctx context.Context) {
	if s.takingOver == nil || !s.takingOver() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, maxTakeover)
	defer cancel()
	poll := time.NewTicker(takeoverPoll)
	defer poll.Stop()
	for s.takingOver() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			return
		}
	}
}

// recheckRules re-checks the rules.
func (s *Setup) recheckRules(ctx context.Context) {
	s.awaitTakeover(ctx)
	if s.sem.Acquire(ctx, 1) != nil {
		return // shutting down
	}
	defer s.sem.Release(1)
	if s.keepRules {
		s.readDefaultRoutes()
		moved := s.externalChanged
		moved = s.chooseAgain(ctx) || moved
		repaired, err := s.ensureRules(ctx)
		if !moved { // else the change is our own
			s.countRepairs(repaired)
		}
		if err != nil && ctx.Err() == nil {
			s.log.Warn("re-check of the rules failed", "retry", s.interval, "err", err)
		}
	}
	s.counters.update(func(total *Stats) { total.Checks++ })
}

func (s *Setup) countRepairs(n int) {
	if n > 0 {
		s.counters.update(func(total *Stats) {
			total.Repairs += uint64(n)
			total.RepairedAt = time.Now()
		})
		s.log.Warn("restored modified DNS rules or addresses", "changes", n)
	}
}

// ensureInterface adds what is missing of interface and addresses and returns the number of changes.
// first: return before the first change if an address is in use.
func (s *Setup) ensureInterface(first bool) (changed int, err error) {
	if s.plan.Interface == "" {
		return 0, nil
	}
	addrs, err := s.node.Addrs()
	if err != nil {
		return 0, s.interfaceFailure(InterfaceCheck, "listing addresses", err)
	}
	missing, inUse := s.missingAddrs(addrs)
	if first && inUse != nil {
		return 0, inUse
	}
	iface, changed, err := s.ensureAddrInterface()
	if err != nil {
		return changed, errors.Join(inUse, err)
	}
	problems := []error{inUse}
	for _, p := range missing {
		err := s.node.AddAddr(newAddr(iface, p))
		switch {
		case errors.Is(err, ErrExists): // another program was faster
		case err != nil:
			op := fmt.Sprintf("adding address %v to %s", p, iface)
			problems = append(problems, s.interfaceFailure(InterfaceAdd, op, err))
		default:
			changed++
		}
	}
	return changed, errors.Join(problems...)
}

// newAddr returns the address to add to an interface, with the label that marks it as an agent's.
func newAddr(iface string, p netip.Prefix) Addr {
	a := Addr{Interface: iface, Prefix: p}
	if iface == loopback && p.Addr().Is4() {
		a.Label = loopbackLabel
	}
	return a
}

// missingAddrs returns the plan's addresses that no interface has, and an error for those on an
// interface that is not ours.
func (s *Setup) missingAddrs(addrs []Addr) (missing []netip.Prefix, inUse error) {
	where := make(map[netip.Addr]string, len(addrs))
	for _, a := range addrs {
		at, found := where[a.Prefix.Addr()]
		// An address on ipvsInterface is kube-proxy's, whatever other interface has it.
		if !found || a.Interface == ipvsInterface || at != ipvsInterface && !s.isOurs(at) {
			where[a.Prefix.Addr()] = a.Interface
		}
	}
	var problems []error
	for _, p := range s.plan.Addresses {
		link, found := where[p.Addr()]
		switch {
		case !found:
			missing = append(missing, p)
		case !s.isOurs(link):
			s.counters.fail(InterfaceCheck)
			problems = append(problems, &Error{
				Type: InterfaceCheck,
				Op:   fmt.Sprintf("adding address %v to %s", p, s.plan.Interface),
				Hint: s.inUseHint(p, link, where),
				Err:  fmt.Errorf("in use on %s: %w", link, ErrExists),
			})
		}
	}
	return missing, errors.Join(problems...)
}

// ipvsInterface has the addresses of Services if kube-proxy is in IPVS mode.
const ipvsInterface = "kube-ipvs0"

// inUseHint says what to do about an address of the plan that is on a foreign interface.
func (s *Setup) inUseHint(p netip.Prefix, link string, where map[netip.Addr]string) string {
	if link != ipvsInterface {
		return "give another --localip, or bind it where it is with --setupinterface=false"
	}
	free := defaultAddr
	for _, o := range slices.Backward(s.plan.Addresses) {
		if where[o.Addr()] != ipvsInterface {
			free = o.Addr()
		}
	}
	return fmt.Sprintf("in IPVS mode only kube-proxy can serve a Service's address: "+
		"remove %v from --localip, add %s there, and have the kubelet configure it in pods: "+
		"clusterDNS: [\"%v\"] in its KubeletConfiguration, or --cluster-dns=%s", p.Addr(), free, free, free)
}

// isOurs reports whether we manage the plan's addresses on this interface.
func (s *Setup) isOurs(link string) bool { return link == s.plan.Interface || link == loopback }

// ensureAddrInterface returns the interface for the addresses: the dummy interface, which it adds if
// it is missing, or lo. It brings the interface up, as IPv6 addresses require; an IPv4 address answers while
// its interface is down, so answers don't tell.
func (s *Setup) ensureAddrInterface() (name string, changed int, err error) {
	link, changed, err := s.findAddrInterface()
	if err != nil {
		return "", changed, err
	}
	if !link.Up {
		if err := s.node.SetUp(link.Name); err != nil {
			return "", changed, s.interfaceFailure(InterfaceAdd, "bringing up interface "+link.Name, err)
		}
		changed++
	}
	return link.Name, changed, nil
}

func (s *Setup) findAddrInterface() (link Interface, changed int, err error) {
	name := s.plan.Interface
	if s.onLoopback {
		name = loopback
	}
	link, err = s.node.Interface(name)
	if errors.Is(err, ErrNotFound) && name != loopback {
		if name, err = s.addDummy(); err != nil {
			return link, 0, err
		}
		if name != loopback {
			changed++
		}
		link, err = s.node.Interface(name)
	}
	if err != nil {
		return link, changed, s.interfaceFailure(InterfaceCheck, "looking up interface "+name, err)
	}
	if link.Name != loopback && link.Kind != kindDummy {
		s.counters.fail(InterfaceCheck)
		return link, changed, &Error{
			Type: InterfaceCheck,
			Op:   "adopting interface " + link.Name,
			Hint: "delete it, give a name that no interface has with --interfacename, or use --setupinterface=false",
			Err:  fmt.Errorf("it exists and is not a dummy interface (kind %q)", link.Kind),
		}
	}
	return link, changed, nil
}

// addDummy adds the dummy interface and returns its name; lo if the kernel has no dummy driver.
func (s *Setup) addDummy() (string, error) {
	err := s.node.AddDummy(s.plan.Interface)
	switch {
	case errors.Is(err, ErrNoDummy):
		s.onLoopback = true
		s.log.Warn("the kernel has no dummy driver, using lo for the local addresses",
			"interface", s.plan.Interface, "addresses", s.plan.Addresses)
		return loopback, nil
	case err != nil && !errors.Is(err, ErrExists):
		return "", s.interfaceFailure(InterfaceAdd, "adding interface "+s.plan.Interface, err)
	}
	return s.plan.Interface, nil
}
