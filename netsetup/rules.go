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

// EnsureRules puts the rules in place. Call it when the sockets listen: from then on
// the node's queries arrive. A family whose rules can't be made does not stop the
// other. Errors are of type *Error, or ctx's. One of type IptablesLock is worth going
// on with: Run puts the rest in place at the next interval.
func (s *Setup) EnsureRules(ctx context.Context) error {
	if err := s.acquire(ctx); err != nil {
		return fmt.Errorf("setting up rules: %w", err)
	}
	defer s.release()
	s.keepRules = true
	s.readDefaultRoutes()
	changed, err := s.ensureRules(ctx)
	stats := s.Stats()
	s.log.Info("rules set up", "filter", stats.Backend, "failopen", stats.FailOpen,
		"diversion", stats.Diversion, "changed", changed, "complete", err == nil)
	return err
}

// Divert says where queries go while nobody listens at the local addresses: to these
// servers, the cluster DNS's ready endpoints, of both families, of which it takes 16.
// The rules follow at once if they stand, else with Rules. Nobody: the last ones stay.
// Errors are of type *Error, or ctx's; Run tries again. The slice stays the caller's.
func (s *Setup) Divert(ctx context.Context, to []netip.AddrPort) error {
	servers := diversionTargets(to, s.plan.rules.addrs)
	if len(servers) == 0 || len(s.plan.rules.addrs) == 0 {
		return nil
	}
	if err := s.acquire(ctx); err != nil {
		return fmt.Errorf("diverting queries: %w", err)
	}
	defer s.release()
	if slices.Equal(servers, s.rules.diversion) {
		return nil
	}
	s.rules.diversion = servers
	s.counters.diversion.Store(int64(len(servers)))
	if !s.keepRules {
		return nil
	}
	_, err := s.ensureRules(ctx)
	return err
}

// diversionTargets is to in one order, without what packets can't be sent on to.
func diversionTargets(to []netip.AddrPort, locals []netip.Addr) (servers []netip.AddrPort) {
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
	if len(s.rules.addrs) == 0 {
		return 0, nil
	}
	if err := s.chooseBackend(ctx); err != nil {
		return 0, err
	}
	s.openOwnerTable()
	changed, err = s.backend.ensure(ctx, s.rules)
	if errors.Is(err, ErrNoSocket) && s.rules.matchSocket {
		s.log.Warn("rules hold whether the agent lives or not: if it dies, the node has no DNS until it is back; "+
			"the kernel needs xt_socket for iptables, or nft_socket for nftables", "err", err)
		s.rules.matchSocket = false
		changed, err = s.backend.ensure(ctx, s.rules)
	}
	s.counters.failOpen.Store(err == nil && s.rules.matchSocket)
	if err != nil {
		return changed, s.ruleFailures(ctx, "setting up", err)
	}
	if s.externalChanged {
		s.externalChanged = false
		s.log.Info("the rules follow the default routes", "external", s.rules.external)
	}
	s.removeOthers(ctx)
	s.deleteConntrack()
	return changed, nil
}

// deleteConntrack lets go, when the rules lead to other servers than before, of the flows that
// still lead to those. A failure costs some queries of the next two minutes at most, if
// the agent dies meanwhile, and is not tried again.
func (s *Setup) deleteConntrack() {
	if len(s.rules.diversion) == 0 || slices.Equal(s.dnatTargets, s.rules.diversion) {
		return
	}
	s.dnatTargets = s.rules.diversion
	if n, err := s.node.deleteConntrack(s.rules.addrs, s.rules.dnsPort, s.dnatTargets); n > 0 || err != nil {
		s.log.Info("queries are no longer led to servers that are gone", "flows", n, "err", err)
	}
}

// openOwnerTable sees to the queries of the node's own processes, once. It comes before the rules,
// which would lead them to the cluster DNS though the agent lives.
func (s *Setup) openOwnerTable() {
	if s.ownerTable != nil || s.rules.untrackHost {
		return
	}
	var err error
	if s.ownerTable, err = s.node.openOwnerTable(s.rules.addrs, s.rules.dnsPort); err != nil {
		s.log.Info("queries of the node's own processes stay untracked whether the agent lives or not", "err", err)
		s.ownerTable, s.rules.untrackHost = nil, true
	}
}

// chooseBackend chooses the filter, once.
func (s *Setup) chooseBackend(ctx context.Context) error {
	if s.backend != nil {
		return nil
	}
	chosen, err := s.node.chooseBackend(ctx, s.plan.netfilter, s.rules.addrs)
	if err != nil {
		return s.ruleFailures(ctx, "looking for a way to make rules", err)
	}
	s.backend, s.others = chosen.backend, chosen.others
	name := s.backend.name()
	s.counters.backend.Store(&name)
	return nil
}

// removeOthers takes away, once, what earlier agents have left by other filters.
func (s *Setup) removeOthers(ctx context.Context) {
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
	if len(s.rules.addrs) == 0 {
		return 0, nil
	}
	if err := s.chooseBackend(ctx); err != nil {
		return 0, []error{err}
	}
	s.counters.failOpen.Store(false)
	removed, err := s.backend.remove(ctx)
	if err != nil {
		problems = append(problems, s.ruleFailures(ctx, "removing", err))
	}
	return removed, problems
}

// closeOwnerTable ends what own has begun.
func (s *Setup) closeOwnerTable() {
	if s.ownerTable != nil {
		_ = s.ownerTable.Close() // the kernel closes it at the end of the process in any case
		s.ownerTable = nil
	}
}

// ruleFailures makes an *Error of each part of err, except when it stems from the
// caller's context.
func (s *Setup) ruleFailures(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	var parts errorList
	if !errors.As(err, &parts) {
		parts = errorList{err}
	}
	var failures []error
	for _, part := range parts {
		failures = append(failures, s.ruleFailure(op, part))
	}
	return errors.Join(failures...)
}
