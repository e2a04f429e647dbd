package netsetup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"time"
)

// Setup makes a node match a Plan. Its methods may be called from several
// goroutines; they take turns.
type Setup struct {
	plan         Plan
	node         Node
	log          *slog.Logger
	interval     time.Duration
	skipTeardown bool
	counters     counters

	// sem holds one token. It is a channel and not a mutex so that waiting for it
	// ends with a context or Teardown's time limit. It guards what follows.
	sem chan struct{}
	// keepInterface and rulesOn say what Run has to keep in place: set as soon as Links
	// or Rules has been called, even if it failed, cleared by Teardown.
	keepInterface, keepRules bool
	// onLoopback: the kernel has no dummy driver, the addresses are on lo.
	onLoopback bool
	// rules is what rules are to do, filter what makes them; nil until it was needed.
	// others are filters that may have left rules by an earlier agent; nil once they
	// have been asked to take them away.
	rules   desiredRules
	backend ruleBackend
	others  []ruleBackend
	// notExternal are the interfaces of default routes that were last found to be no external ones.
	notExternal []string
	// externalChanged: the rules have yet to follow the default routes.
	externalChanged bool
	// dnatTargets are the servers that connection tracking was last told of (see Node.forget).
	dnatTargets []netip.AddrPort
	// ownerTable keeps the queries of the node's own processes untracked while this process
	// lives; nil: it was not asked for yet, or want.host is set as it can't be had.
	ownerTable io.Closer
}

// New plans c and returns a Setup which has touched nothing yet. The error is
// NewPlan's. A nil node means this machine's kernel; it is opened at first use,
// so a Config that sets nothing up needs neither root nor iptables.
func New(c Config, node Node) (*Setup, error) {
	plan, err := NewPlan(c)
	if err != nil {
		return nil, err
	}
	if node == nil {
		node = &kernelNode{}
	}
	s := &Setup{
		plan:         plan,
		node:         node,
		log:          c.logger(),
		interval:     c.interval(),
		skipTeardown: c.SkipTeardown,
		rules:        plan.rules,
		sem:          make(chan struct{}, 1),
	}
	s.sem <- struct{}{}
	return s, nil
}

// Plan returns what New has planned. The caller must not change its slices.
func (s *Setup) Plan() Plan { return s.plan }

// Stats returns the totals so far. It does not wait for a step under way.
func (s *Setup) Stats() Stats { return s.counters.stats() }

// EnsureInterface puts the link and the addresses in place and returns when they can be
// bound. An address that is in use on another link is found before anything is
// touched; after any other error part of the plan may be in place, and either
// Links or Teardown may follow. The errors are of type *Error, or ctx's.
func (s *Setup) EnsureInterface(ctx context.Context) error {
	if err := s.acquire(ctx); err != nil {
		return fmt.Errorf("setting up the interface: %w", err)
	}
	defer s.release()
	s.keepInterface = true
	changed, err := s.ensureInterface(true)
	s.log.Info("interface set up", "link", s.plan.Interface, "addresses", len(s.plan.Addresses),
		"changed", changed, "complete", err == nil)
	return err
}

// Run re-checks at once, at every interval, and when the kernel tells of a loss, what Links and
// Rules have been called for, and puts back what is missing. When a default route comes or
// goes it has the rules follow. A failure is logged,
// counted and tried again at the next interval. Run blocks until ctx is done; it does
// not tear down.
func (s *Setup) Run(ctx context.Context) {
	tick := time.NewTicker(s.interval)
	defer tick.Stop()
	events := s.node.watchRemovals(ctx, s.plan)
	var routes <-chan struct{}
	if s.plan.followsRoutes {
		routes = s.node.watchDefaultRoutes(ctx)
	}
	s.recheck(ctx) // for what was lost before the kernel was listened to
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.recheck(ctx)
		case _, open := <-events:
			if !open {
				events = nil // what is left is the interval
				continue
			}
			s.recheck(ctx)
		case _, open := <-routes:
			if !open {
				routes = nil
				continue
			}
			s.followDefaultRoutes(ctx)
		}
	}
}

// recheck is one turn of Run.
func (s *Setup) recheck(ctx context.Context) {
	if s.acquire(ctx) != nil {
		return // shutting down
	}
	defer s.release()
	var repaired int
	if s.keepInterface {
		n, err := s.ensureInterface(false)
		repaired += n
		if err != nil {
			s.log.Warn("re-check of the interface failed, trying again", "in", s.interval, "err", err)
		}
	}
	if s.keepRules {
		s.readDefaultRoutes()
		moved := s.externalChanged
		n, err := s.ensureRules(ctx)
		if !moved { // else the change is ours
			repaired += n
		}
		if err != nil && ctx.Err() == nil {
			s.log.Warn("re-check of the rules failed, trying again", "in", s.interval, "err", err)
		}
	}
	if repaired > 0 {
		s.counters.repairs.Add(uint64(repaired))
		s.log.Warn("somebody had changed the node's DNS set-up; put right", "changes", repaired)
	}
	s.counters.checks.Add(1)
}

// acquire waits for the token. A done context wins even if the token is free.
func (s *Setup) acquire(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-s.sem:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Setup) release() { s.sem <- struct{}{} }

// ensureInterface puts back what is missing of link and addresses and returns the
// number of changes it made. first: an address in use ends it before the
// first change.
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
	home, changed, err := s.ensureAddrInterface()
	if err != nil {
		return changed, errors.Join(inUse, err)
	}
	problems := []error{inUse}
	for _, p := range missing {
		err := s.node.AddAddr(Addr{Interface: home, Prefix: p})
		switch {
		case errors.Is(err, ErrExists): // somebody else was faster, which is as good
		case err != nil:
			op := fmt.Sprintf("adding address %v to %s", p, home)
			problems = append(problems, s.interfaceFailure(InterfaceAdd, op, err))
		default:
			changed++
		}
	}
	return changed, errors.Join(problems...)
}

// missingAddrs returns the plan's addresses that are nowhere, and an error for those
// that are on a link which is not ours.
func (s *Setup) missingAddrs(addrs []Addr) (missing []netip.Prefix, inUse error) {
	where := make(map[netip.Addr]string, len(addrs))
	for _, a := range addrs {
		if at := where[a.Prefix.Addr()]; at == ipvsInterface {
			continue // it serves the address, whoever else has it
		}
		if a.Interface == ipvsInterface {
			where[a.Prefix.Addr()] = a.Interface
			continue
		}
		if at, found := where[a.Prefix.Addr()]; !found || !s.isOurs(at) {
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

// ipvsInterface is where kube-proxy puts the addresses of Services in IPVS mode.
const ipvsInterface = "kube-ipvs0"

// inUseHint says what to do about an address of the plan that is on a foreign link.
func (s *Setup) inUseHint(p netip.Prefix, link string, where map[netip.Addr]string) string {
	if link != ipvsInterface {
		return "give another -localip, or bind it where it is with -setupinterface=false"
	}
	free := ""
	for _, o := range s.plan.Addresses {
		if where[o.Addr()] != ipvsInterface && free == "" {
			free = o.Addr().String()
		}
	}
	if free == "" {
		free = "169.254.20.10"
	}
	return fmt.Sprintf("kube-proxy runs in IPVS mode, where nobody else can answer at a Service's address: "+
		"take %v out of -localip, have %s there, and tell the kubelet that pods ask it: "+
		"clusterDNS: [%q] in its KubeletConfiguration, or --cluster-dns=%s", p.Addr(), free, free, free)
}

// isOurs reports whether the plan's addresses on this link are for us to manage.
func (s *Setup) isOurs(link string) bool { return link == s.plan.Interface || link == loopback }

// ensureAddrInterface returns the link for the addresses: the dummy link, made if need be,
// or lo. The link is up: an IPv6 address works on no other.
func (s *Setup) ensureAddrInterface() (home string, changed int, err error) {
	link, changed, err := s.findAddrInterface()
	if err != nil {
		return "", changed, err
	}
	if !link.Up {
		if err := s.node.SetUp(link.Name); err != nil {
			return "", changed, s.interfaceFailure(InterfaceAdd, "bringing up link "+link.Name, err)
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
		link, err = s.addDummy()
		if err == nil && link.Name != loopback {
			changed++
		}
	}
	if err != nil {
		return link, changed, s.asInterfaceFailure(InterfaceCheck, "looking for link "+name, err)
	}
	if link.Name != loopback && link.Kind != kindDummy {
		return link, changed, s.wrongKind(link)
	}
	return link, changed, nil
}

// addDummy makes the dummy link, or settles on lo where the kernel cannot.
func (s *Setup) addDummy() (Interface, error) {
	err := s.node.AddDummy(s.plan.Interface)
	switch {
	case errors.Is(err, ErrNoDummy):
		s.onLoopback = true
		s.log.Warn("the kernel has no dummy driver: the local addresses go on lo",
			"link", s.plan.Interface, "addresses", s.plan.Addresses)
		return s.node.Interface(loopback)
	case err != nil && !errors.Is(err, ErrExists):
		return Interface{}, s.interfaceFailure(InterfaceAdd, "adding link "+s.plan.Interface, err)
	}
	return s.node.Interface(s.plan.Interface)
}

func (s *Setup) wrongKind(link Interface) *Error {
	s.counters.fail(InterfaceCheck)
	return &Error{
		Type: InterfaceCheck,
		Op:   "adopting link " + link.Name,
		Hint: "give another name with -interfacename, such as " + DefaultInterfaceName +
			", or use -setupinterface=false",
		Err: fmt.Errorf("it exists and is not a dummy link (kind %q)", link.Kind),
	}
}

// asInterfaceFailure counts and wraps err unless it is an *Error already.
func (s *Setup) asInterfaceFailure(t ErrorType, op string, err error) error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return err
	}
	return s.interfaceFailure(t, op, err)
}
