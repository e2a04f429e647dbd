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
	// want is what rules are to do, filter what makes them; nil until it was needed.
	// others are filters that may have left rules by an earlier agent; nil once they
	// have been asked to take them away.
	want   want
	filter filter
	others []filter
	// open are the interfaces of default routes that were last found to be no external ones.
	open []string
	// moved: the rules have yet to follow the default routes.
	moved bool
	// led are the servers that connection tracking was last told of (see Node.forget).
	led []netip.AddrPort
	// host keeps the queries of the node's own processes untracked while this process
	// lives; nil: it was not asked for yet, or want.host is set as it can't be had.
	host io.Closer
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
		node = &kernel{}
	}
	s := &Setup{
		plan:     plan,
		node:     node,
		log:      c.logger(),
		interval: c.interval(),
		skip:     c.SkipTeardown,
		want:     plan.want,
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

// Run re-checks at once, at every interval, and when the kernel tells of a loss, what Links and
// Rules have been called for, and puts back what is missing. When a default route comes or
// goes it has the rules follow. A failure is logged,
// counted and tried again at the next interval. Run blocks until ctx is done; it does
// not tear down.
func (s *Setup) Run(ctx context.Context) {
	tick := time.NewTicker(s.interval)
	defer tick.Stop()
	events := s.node.events(ctx, s.plan)
	var routes <-chan struct{}
	if s.plan.followsRoutes {
		routes = s.node.routes(ctx)
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
			s.reroute(ctx)
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
		s.followRoutes()
		moved := s.moved
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
		if at := where[a.Prefix.Addr()]; at == ipvsLink {
			continue // it serves the address, whoever else has it
		}
		if a.Link == ipvsLink {
			where[a.Prefix.Addr()] = a.Link
			continue
		}
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
				Hint: s.inUseHint(p, link, where),
				Err:  fmt.Errorf("in use on %s: %w", link, ErrExists),
			})
		}
	}
	return missing, errors.Join(problems...)
}

// ipvsLink is where kube-proxy puts the addresses of Services in IPVS mode.
const ipvsLink = "kube-ipvs0"

// inUseHint says what to do about an address of the plan that is on a foreign link.
func (s *Setup) inUseHint(p netip.Prefix, link string, where map[netip.Addr]string) string {
	if link != ipvsLink {
		return "give another -localip, or bind it where it is with -setupinterface=false"
	}
	free := ""
	for _, o := range s.plan.Addresses {
		if where[o.Addr()] != ipvsLink && free == "" {
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
