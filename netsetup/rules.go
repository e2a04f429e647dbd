package netsetup

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// maxDiversion bounds the servers that queries are diverted to. The cluster DNS of a
// large cluster has a dozen pods, of which a view gives the 16 nearest; half as many
// would be felt by those that are left, and twice as many only makes rules longer.
const maxDiversion = 16

// Rules puts the rules in place. Call it when the sockets listen: from then on
// the node's queries arrive. A family whose rules can't be made does not stop the
// other. Errors are of type *Error, or ctx's. One of type IptablesLock is worth going
// on with: Run puts the rest in place at the next interval.
func (s *Setup) Rules(ctx context.Context) error {
	if err := s.take(ctx); err != nil {
		return fmt.Errorf("setting up rules: %w", err)
	}
	defer s.release()
	s.rulesOn = true
	s.followRoutes()
	changed, err := s.ensureRules(ctx)
	stats := s.Stats()
	s.log.Info("rules set up", "filter", stats.Filter, "failopen", stats.FailOpen,
		"diversion", stats.Diversion, "changed", changed, "complete", err == nil)
	return err
}

// Divert says where queries go while nobody listens at the local addresses: to these
// servers, the cluster DNS's ready endpoints, of both families, of which it takes 16.
// The rules follow at once if they stand, else with Rules. Nobody: the last ones stay.
// Errors are of type *Error, or ctx's; Run tries again. The slice stays the caller's.
func (s *Setup) Divert(ctx context.Context, to []netip.AddrPort) error {
	servers := diverted(to, s.plan.want.locals)
	if len(servers) == 0 || len(s.plan.want.locals) == 0 {
		return nil
	}
	if err := s.take(ctx); err != nil {
		return fmt.Errorf("diverting queries: %w", err)
	}
	defer s.release()
	if slices.Equal(servers, s.want.diversion) {
		return nil
	}
	s.want.diversion = servers
	s.counters.diversion.Store(int64(len(servers)))
	if !s.rulesOn {
		return nil
	}
	_, err := s.ensureRules(ctx)
	return err
}

// diverted is to in one order, without what packets can't be sent on to.
func diverted(to []netip.AddrPort, locals []netip.Addr) (servers []netip.AddrPort) {
	for _, s := range to {
		a := s.Addr().Unmap()
		unfit := !a.IsValid() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.Zone() != ""
		if unfit || s.Port() == 0 || slices.Contains(locals, a) {
			continue
		}
		servers = append(servers, netip.AddrPortFrom(a, s.Port()))
	}
	servers = servers[:min(len(servers), maxDiversion)]
	slices.SortFunc(servers, netip.AddrPort.Compare)
	return slices.Compact(servers)
}

// ensureRules makes what stands match what is wanted and returns the number of changes.
func (s *Setup) ensureRules(ctx context.Context) (changed int, err error) {
	if len(s.want.locals) == 0 {
		return 0, nil
	}
	if err := s.settle(ctx); err != nil {
		return 0, err
	}
	s.own()
	changed, err = s.filter.ensure(ctx, s.want)
	if errors.Is(err, ErrNoSocket) && s.want.socket {
		s.log.Warn("rules hold whether the agent lives or not: if it dies, the node has no DNS until it is back; "+
			"the kernel needs xt_socket for iptables, or nft_socket for nftables", "err", err)
		s.want.socket = false
		changed, err = s.filter.ensure(ctx, s.want)
	}
	s.counters.failOpen.Store(err == nil && s.want.socket)
	if err != nil {
		return changed, s.ruleFailures(ctx, "setting up", err)
	}
	if s.moved {
		s.moved = false
		s.log.Info("the rules follow the default routes", "external", s.want.external)
	}
	s.supersede(ctx)
	s.forget()
	return changed, nil
}

// forget lets go, when the rules lead to other servers than before, of the flows that
// still lead to those. A failure costs some queries of the next two minutes at most, if
// the agent dies meanwhile, and is not tried again.
func (s *Setup) forget() {
	if len(s.want.diversion) == 0 || slices.Equal(s.led, s.want.diversion) {
		return
	}
	s.led = s.want.diversion
	if n, err := s.node.forget(s.want.locals, s.want.dns, s.led); n > 0 || err != nil {
		s.log.Info("queries are no longer led to servers that are gone", "flows", n, "err", err)
	}
}

// own sees to the queries of the node's own processes, once. It comes before the rules,
// which would lead them to the cluster DNS though the agent lives.
func (s *Setup) own() {
	if s.host != nil || s.want.host {
		return
	}
	var err error
	if s.host, err = s.node.own(s.want.locals, s.want.dns); err != nil {
		s.log.Info("queries of the node's own processes stay untracked whether the agent lives or not", "err", err)
		s.host, s.want.host = nil, true
	}
}

// settle chooses the filter, once.
func (s *Setup) settle(ctx context.Context) error {
	if s.filter != nil {
		return nil
	}
	chosen, err := s.node.choose(ctx, s.plan.netfilter, s.want.locals)
	if err != nil {
		return s.ruleFailures(ctx, "looking for a way to make rules", err)
	}
	s.filter, s.others = chosen.filter, chosen.others
	name := s.filter.name()
	s.counters.filter.Store(&name)
	return nil
}

// supersede takes away, once, what earlier agents have left by other filters.
func (s *Setup) supersede(ctx context.Context) {
	for _, f := range s.others {
		removed, err := f.remove(ctx)
		if err != nil || removed > 0 {
			s.log.Info("removed rules of an earlier agent", "filter", f.name(), "rules", removed, "err", err)
		}
	}
	s.others = nil
}

// removeRules takes the rules away and says how many there were.
func (s *Setup) removeRules(ctx context.Context) (removed int, problems []error) {
	if len(s.want.locals) == 0 {
		return 0, nil
	}
	if err := s.settle(ctx); err != nil {
		return 0, []error{err}
	}
	s.counters.failOpen.Store(false)
	removed, err := s.filter.remove(ctx)
	if err != nil {
		problems = append(problems, s.ruleFailures(ctx, "removing", err))
	}
	return removed, problems
}

// disown ends what own has begun.
func (s *Setup) disown() {
	if s.host != nil {
		_ = s.host.Close() // the kernel closes it at the end of the process in any case
		s.host = nil
	}
}

// ruleFailures makes an *Error of each part of err, except when it stems from the
// caller's context.
func (s *Setup) ruleFailures(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	var parts several
	if !errors.As(err, &parts) {
		parts = several{err}
	}
	var failures []error
	for _, part := range parts {
		failures = append(failures, s.ruleFailure(op, part))
	}
	return errors.Join(failures...)
}
