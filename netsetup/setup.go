package netsetup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"
)

// lockTries is how often one rule is tried while another program holds the
// xtables lock, each try waiting lockWait. Five seconds in all is what kube-proxy
// allows itself too: a full reload of its own rules on a large cluster takes one
// to three, and a lock held for longer is better reported than waited for.
const lockTries = 5

// Setup makes a node match a Plan. Its methods may be called from several
// goroutines; they take turns.
type Setup struct {
	plan     Plan
	node     Node
	log      *slog.Logger
	interval time.Duration
	skip     bool
	counters counters

	// turn holds one token. It is a channel and not a mutex so that waiting for it
	// ends with a context or Teardown's time limit. It guards what follows.
	turn chan struct{}
	// linksOn and rulesOn say what Run has to keep in place: set as soon as Links
	// or Rules has been called, even if it failed, cleared by Teardown.
	linksOn, rulesOn bool
	// onLoopback: the kernel has no dummy driver, the addresses are on lo.
	onLoopback bool
}

// New plans c and returns a Setup which has touched nothing yet. The error is
// NewPlan's. A nil node means this machine's kernel; it is opened at first use,
// so a Config that sets nothing up needs neither root nor iptables.
func New(c Config, node Node) (*Setup, error) {
	plan, err := NewPlan(c)
	if err != nil {
		return nil, err
	}
	log := c.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if node == nil {
		node = &kernel{}
	}
	s := &Setup{
		plan:     plan,
		node:     node,
		log:      log,
		interval: c.interval(),
		skip:     c.SkipTeardown,
		turn:     make(chan struct{}, 1),
	}
	s.turn <- struct{}{}
	return s, nil
}

// Plan returns what New has planned. The caller must not change its slices.
func (s *Setup) Plan() Plan { return s.plan }

// Stats returns the totals so far. It does not wait for a step under way.
func (s *Setup) Stats() Stats { return s.counters.stats() }

// Links puts the link and the addresses in place and returns when they can be
// bound. An address that is in use on another link is found before anything is
// touched; after any other error part of the plan may be in place, and either
// Links or Teardown may follow. The errors are of type *Error, or ctx's.
func (s *Setup) Links(ctx context.Context) error {
	if err := s.take(ctx); err != nil {
		return fmt.Errorf("setting up the interface: %w", err)
	}
	defer s.release()
	s.linksOn = true
	changed, err := s.ensureLinks(true)
	s.log.Info("interface set up", "link", s.plan.Link, "addresses", len(s.plan.Addresses),
		"changed", changed, "complete", err == nil)
	return err
}

// Rules puts the rules in place. Call it when the sockets listen: from then on
// the node's queries arrive. A family stops at its first error, so that there is
// never a NOTRACK rule without its ACCEPT; the other family goes on. The error
// says how far it came. Errors are of type *Error, or ctx's. One of type IptablesLock
// is worth going on with: Run puts the rest in place at the next interval.
func (s *Setup) Rules(ctx context.Context) error {
	if err := s.take(ctx); err != nil {
		return fmt.Errorf("setting up rules: %w", err)
	}
	defer s.release()
	s.rulesOn = true
	changed, err := s.ensureRules(ctx)
	s.log.Info("rules set up", "rules", len(s.plan.Rules), "changed", changed, "complete", err == nil)
	return err
}

// Divert says where queries go while nobody listens at the local addresses: to these
// servers, the cluster DNS's ready endpoints, of both families. The rules follow at
// once if they stand, else with Rules. Nobody: the last ones stay. Errors are of type
// *Error, or ctx's; Run tries again.
func (s *Setup) Divert(ctx context.Context, to []netip.AddrPort) error { return nil }

// Clean removes all that an agent, of whatever version, or NodeLocal DNSCache, may have
// left on this node: rules of every kind, c's addresses, and the link. It says in words
// what it has removed, one entry for each thing, and goes on after errors.
func Clean(ctx context.Context, c Config) (removed []string, err error) { return nil, nil }

// Run re-checks at every interval what Links and Rules have been called for, and
// puts back what is missing. A failure is logged, counted and tried again at
// the next interval. Run blocks until ctx is done; it does not tear down.
func (s *Setup) Run(ctx context.Context) {
	tick := time.NewTicker(s.interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.recheck(ctx)
		}
	}
}

// recheck is one turn of Run.
func (s *Setup) recheck(ctx context.Context) {
	if s.take(ctx) != nil {
		return // shutting down
	}
	defer s.release()
	var repaired int
	if s.linksOn {
		n, err := s.ensureLinks(false)
		repaired += n
		if err != nil {
			s.log.Warn("re-check of the interface failed, trying again", "in", s.interval, "err", err)
		}
	}
	if s.rulesOn {
		n, err := s.ensureRules(ctx)
		repaired += n
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

// take waits for the token. A done context wins even if the token is free.
func (s *Setup) take(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-s.turn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Setup) release() { s.turn <- struct{}{} }

// ensureLinks puts back what is missing of link and addresses and returns the
// number of changes it made. first: an address in use ends it before the
// first change.
func (s *Setup) ensureLinks(first bool) (changed int, err error) {
	if s.plan.Link == "" {
		return 0, nil
	}
	addrs, err := s.node.Addrs()
	if err != nil {
		return 0, s.linkFailure(InterfaceCheck, "listing addresses", err)
	}
	missing, inUse := s.missing(addrs)
	if first && inUse != nil {
		return 0, inUse
	}
	home, changed, err := s.ensureHome()
	if err != nil {
		return changed, errors.Join(inUse, err)
	}
	problems := []error{inUse}
	for _, p := range missing {
		err := s.node.AddAddr(Addr{Link: home, Prefix: p})
		switch {
		case errors.Is(err, ErrExists): // somebody else was faster, which is as good
		case err != nil:
			op := fmt.Sprintf("adding address %v to %s", p, home)
			problems = append(problems, s.linkFailure(InterfaceAdd, op, err))
		default:
			changed++
		}
	}
	return changed, errors.Join(problems...)
}

// missing returns the plan's addresses that are nowhere, and an error for those
// that are on a link which is not ours.
func (s *Setup) missing(addrs []Addr) (missing []netip.Prefix, inUse error) {
	where := make(map[netip.Addr]string, len(addrs))
	for _, a := range addrs {
		if at, found := where[a.Prefix.Addr()]; !found || !s.ours(at) {
			where[a.Prefix.Addr()] = a.Link
		}
	}
	var problems []error
	for _, p := range s.plan.Addresses {
		link, found := where[p.Addr()]
		switch {
		case !found:
			missing = append(missing, p)
		case !s.ours(link):
			s.counters.fail(InterfaceCheck)
			problems = append(problems, &Error{
				Type: InterfaceCheck,
				Op:   fmt.Sprintf("adding address %v to %s", p, s.plan.Link),
				Hint: "give another -localip, or bind it where it is with -setupinterface=false",
				Err:  fmt.Errorf("in use on %s: %w", link, ErrExists),
			})
		}
	}
	return missing, errors.Join(problems...)
}

// ours reports whether the plan's addresses on this link are for us to manage.
func (s *Setup) ours(link string) bool { return link == s.plan.Link || link == loopback }

// ensureHome returns the link for the addresses: the dummy link, made if need be,
// or lo. The link is up: an IPv6 address works on no other.
func (s *Setup) ensureHome() (home string, changed int, err error) {
	link, changed, err := s.findHome()
	if err != nil {
		return "", changed, err
	}
	if !link.Up {
		if err := s.node.SetUp(link.Name); err != nil {
			return "", changed, s.linkFailure(InterfaceAdd, "bringing up link "+link.Name, err)
		}
		changed++
	}
	return link.Name, changed, nil
}

func (s *Setup) findHome() (link Link, changed int, err error) {
	name := s.plan.Link
	if s.onLoopback {
		name = loopback
	}
	link, err = s.node.Link(name)
	if errors.Is(err, ErrNotFound) && name != loopback {
		link, err = s.makeLink()
		if err == nil && link.Name != loopback {
			changed++
		}
	}
	if err != nil {
		return link, changed, s.asFailure(InterfaceCheck, "looking for link "+name, err)
	}
	if link.Name != loopback && link.Kind != kindDummy {
		return link, changed, s.badKind(link)
	}
	return link, changed, nil
}

// makeLink makes the dummy link, or settles on lo where the kernel cannot.
func (s *Setup) makeLink() (Link, error) {
	err := s.node.AddLink(s.plan.Link)
	switch {
	case errors.Is(err, ErrNoDummy):
		s.onLoopback = true
		s.log.Warn("the kernel has no dummy driver: the local addresses go on lo",
			"link", s.plan.Link, "addresses", s.plan.Addresses)
		return s.node.Link(loopback)
	case err != nil && !errors.Is(err, ErrExists):
		return Link{}, s.linkFailure(InterfaceAdd, "adding link "+s.plan.Link, err)
	}
	return s.node.Link(s.plan.Link)
}

func (s *Setup) badKind(link Link) *Error {
	s.counters.fail(InterfaceCheck)
	return &Error{
		Type: InterfaceCheck,
		Op:   "adopting link " + link.Name,
		Hint: "give another name with -interfacename, such as " + DefaultInterfaceName +
			", or use -setupinterface=false",
		Err: fmt.Errorf("it exists and is not a dummy link (kind %q)", link.Kind),
	}
}

// asFailure counts and wraps err unless it is an *Error already.
func (s *Setup) asFailure(t ErrorType, op string, err error) error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return err
	}
	return s.linkFailure(t, op, err)
}

// ensureRules inserts the rules that are missing, removes exact duplicates of the
// others, and returns the number of changes.
func (s *Setup) ensureRules(ctx context.Context) (changed int, err error) {
	var problems []error
	var failed [2]bool // by Family
	for i, r := range s.plan.Rules {
		if failed[r.Family] {
			continue
		}
		added, err := s.ensureRule(ctx, r)
		if added {
			changed++
		}
		if err != nil {
			failed[r.Family] = true
			problems = append(problems, s.wrapRule(ctx,
				fmt.Sprintf("rule %d of %d, %v", i+1, len(s.plan.Rules), r), err))
		}
	}
	for f := range failed {
		if failed[f] {
			continue
		}
		n, err := s.thinOut(ctx, Family(f), 1)
		changed += n
		if err != nil {
			problems = append(problems, s.wrapRule(ctx, "removing duplicates of "+Family(f).String()+" rules", err))
		}
	}
	return changed, errors.Join(problems...)
}

// wrapRule makes an *Error of err, except when it stems from the caller's context.
func (s *Setup) wrapRule(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return s.ruleFailure(op, err)
}

func (s *Setup) ensureRule(ctx context.Context, r Rule) (added bool, err error) {
	err = patiently(ctx, func() error {
		there, err := s.node.HasRule(r)
		if err != nil || there {
			return err
		}
		if err := s.node.InsertRule(r); err != nil {
			return err
		}
		added = true
		return nil
	})
	return added, err
}

// thinOut removes each of the plan's rules of a family until keep of it are left. It
// lists each chain once, as that costs a process and there are several rules to a chain.
func (s *Setup) thinOut(ctx context.Context, f Family, keep int) (dropped int, err error) {
	type chain struct{ table, name string }
	lists := make(map[chain][]string)
	for _, r := range s.plan.Rules {
		if r.Family != f {
			continue
		}
		c := chain{r.Table, r.Chain}
		lines, listed := lists[c]
		if !listed {
			err := patiently(ctx, func() (err error) {
				lines, err = s.node.ListRules(f, r.Table, r.Chain)
				return err
			})
			if err != nil {
				return dropped, err
			}
			lists[c] = lines
		}
		n := 0
		for _, l := range lines {
			if r.listed(l) {
				n++
			}
		}
		for ; n > keep; n-- {
			err := patiently(ctx, func() error {
				_, err := s.node.DeleteRule(r)
				return err
			})
			if err != nil {
				return dropped, err
			}
			dropped++
		}
	}
	return dropped, nil
}

// patiently calls f until it does not report a held lock, ctx is done, or
// lockTries is used up, and returns what f returned last; ctx's error if f was
// never called. f waits for the lock itself, so there is no pause here.
func patiently(ctx context.Context, f func() error) error {
	err := ctx.Err()
	for try := 0; try < lockTries && ctx.Err() == nil; try++ {
		if err = f(); !errors.Is(err, ErrLocked) {
			break
		}
	}
	return err
}
