package netsetup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
)

// maxDiversion bounds the servers that queries are diverted to; the view passes the 16 nearest.
const maxDiversion = 16

// EnsureRules puts the rules in place, and from now on Run keeps them there. Call it when the
// sockets listen: the node's queries arrive from then on. A failure in one address family does
// not affect the other. Errors are of type *Error, or ctx's. After one of type IptablesLock the
// caller may continue: Run adds what is missing at the next interval.
func (s *Setup) EnsureRules(ctx context.Context) error {
	if err := s.sem.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("setting up rules: %w", err)
	}
	defer s.sem.Release(1)
	s.keepRules = true
	s.othersGone = false
	s.readDefaultRoutes()
	changed, err := s.ensureRules(ctx)
	stats := s.Stats()
	s.log.Info("rules set up", "backend", stats.Backend, "reason", stats.BackendReason, "failopen", stats.FailOpen,
		"diversion", stats.Diversion, "changed", changed, "complete", err == nil)
	return err
}

// Divert sets the servers that queries go to while nothing listens at the local addresses: the
// ready endpoints of the cluster DNS, of both families. It uses the first 16 that packets can be
// sent to; if there are none, the previous servers stay. It updates the rules if EnsureRules has
// been called. Errors are of type *Error, or ctx's; Run tries again. Divert does not keep to.
func (s *Setup) Divert(ctx context.Context, to []netip.AddrPort) error {
	count := func(total *Stats, n int) { total.Diversion = n }
	return s.divert(ctx, to, &s.rules.diversion, count)
}

// DivertHost is Divert for the addresses of Config.HostAddresses, whose queries go to the servers that the
// node itself used before.
func (s *Setup) DivertHost(ctx context.Context, to []netip.AddrPort) error {
	if len(s.plan.rules.hosts) == 0 {
		return nil
	}
	count := func(total *Stats, n int) { total.HostDiversion = n }
	return s.divert(ctx, to, &s.rules.hostDiversion, count)
}

// divert sets one of the two diversions of s.rules, and writes the rules if it changes.
func (s *Setup) divert(ctx context.Context, to []netip.AddrPort, current *[]netip.AddrPort, count func(*Stats, int)) error {
	servers := diversionTargets(to, s.plan.rules.addrs)
	if len(servers) == 0 || len(s.plan.rules.addrs) == 0 {
		return nil
	}
	if err := s.sem.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("diverting queries: %w", err)
	}
	defer s.sem.Release(1)
	if slices.Equal(servers, *current) {
		return nil
	}
	*current = servers
	s.counters.update(func(total *Stats) { count(total, len(servers)) })
	if !s.keepRules {
		return nil
	}
	_, err := s.ensureRules(ctx)
	return err
}

// diversionTargets returns the servers that packets can be sent to, sorted and without duplicates.
func diversionTargets(to []netip.AddrPort, addrs []netip.Addr) (servers []netip.AddrPort) {
	for _, s := range to {
		a := s.Addr().Unmap()
		unfit := !a.IsValid() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.Zone() != ""
		if unfit || s.Port() == 0 || slices.Contains(addrs, a) {
			continue
		}
		servers = append(servers, netip.AddrPortFrom(a, s.Port()))
	}
	servers = servers[:min(len(servers), maxDiversion)]
	slices.SortFunc(servers, netip.AddrPort.Compare)
	return slices.Compact(servers)
}

// ensureRules makes the kernel's rules match the desired ones and returns the number of changes.
func (s *Setup) ensureRules(ctx context.Context) (changed int, err error) {
	if len(s.rules.addrs) == 0 {
		return 0, nil
	}
	if err := s.chooseBackend(ctx); err != nil {
		return 0, err
	}
	s.openOwnerTable()
	changed, err = s.writeRules(ctx)
	if errors.Is(err, errNotXtables) && s.chooseAgain(ctx) {
		changed, err = s.writeRules(ctx)
	}
	s.counters.update(func(total *Stats) { total.NoSocketMatch = !s.rules.matchSocket })
	s.counters.setRules(err == nil)
	s.reportBlocked()
	if err != nil {
		return changed, s.ruleFailures(ctx, "setting up", err)
	}
	if s.externalChanged {
		s.externalChanged = false
		s.log.Info("external interfaces updated", "external", s.rules.external)
	}
	err = s.removeOthers(ctx)
	s.deleteConntrack()
	return changed, err
}

// writeRules has the backend write the rules, without the socket match if the kernel lacks it.
func (s *Setup) writeRules(ctx context.Context) (changed int, err error) {
	changed, err = s.backend.ensure(ctx, s.rules)
	if errors.Is(err, ErrNoSocket) && s.rules.matchSocket {
		s.log.Warn("rules do not fail open: the kernel cannot match by socket, so the node has no DNS while the agent is down; "+
			"load xt_socket for iptables, or nft_socket for nftables", "err", err)
		s.rules.matchSocket = false
		changed, err = s.backend.ensure(ctx, s.rules)
	}
	return changed, err
}

// reportBlocked logs the chains of other programs that may drop DNS whatever the agent does, when they change.
func (s *Setup) reportBlocked() {
	chains := s.backend.blocked()
	if old := s.Stats().Blocked; slices.Equal(old, chains) {
		return
	}
	s.counters.update(func(total *Stats) { total.Blocked = chains })
	if len(chains) > 0 {
		s.log.Warn("chains may drop DNS: another program owns them, or puts its rules before the agent's again and again; have that firewall accept the port itself",
			"chains", chains)
	}
}

// deleteConntrack deletes the connection-tracking entries of removed servers after the diversion
// has changed. It does not retry: a failure matters only if the agent dies within two minutes.
func (s *Setup) deleteConntrack() {
	pods := slices.DeleteFunc(slices.Clone(s.rules.addrs), func(a netip.Addr) bool { return slices.Contains(s.rules.hosts, a) })
	s.deleteStale(pods, s.rules.diversion, &s.dnatTargets)
	s.deleteStale(s.rules.hosts, s.rules.hostDiversion, &s.hostTargets)
}

// deleteStale is deleteConntrack for some of the addresses. last is their diversion as of the call before.
func (s *Setup) deleteStale(addrs []netip.Addr, diversion []netip.AddrPort, last *[]netip.AddrPort) {
	if len(diversion) == 0 || slices.Equal(*last, diversion) {
		return
	}
	*last = diversion
	if n, err := s.node.deleteConntrack(addrs, s.rules.dnsPort, diversion); n > 0 || err != nil {
		s.log.Info("deleted connection-tracking entries of removed servers", "entries", n, "err", err)
	}
}

// openOwnerTable exempts queries from the node's own processes, once. It runs before the rules are
// written, which would send those queries to the cluster DNS while the agent is up.
func (s *Setup) openOwnerTable() {
	if s.ownerTable != nil || s.rules.untrackHost {
		return
	}
	var err error
	if s.ownerTable, err = s.node.openOwnerTable(s.rules.addrs, s.rules.dnsPort); err != nil {
		s.log.Info("no owner table: the node's own processes have no DNS at the local addresses while the agent is down", "err", err)
		s.ownerTable, s.rules.untrackHost = nil, true
	}
}

// chooseBackend chooses the backend, once.
func (s *Setup) chooseBackend(ctx context.Context) error {
	if s.backend != nil {
		return nil
	}
	chosen, err := s.node.chooseBackend(ctx, s.plan.netfilter, s.rules.addrs)
	if err != nil {
		return s.ruleFailures(ctx, "looking for a way to make rules", err)
	}
	s.others, s.choose = chosen.others, chosen.again
	s.useBackend(chosen.backend, chosen.reason)
	return nil
}

// chooseAgain uses another backend if what is on the node asks for it, such as a kube-proxy in another
// mode, and reports whether it does. The rules of the backend before go once the new ones are written.
// If the node does not tell, the backend stays.
func (s *Setup) chooseAgain(ctx context.Context) bool {
	if s.backend == nil || s.choose == nil {
		return false
	}
	next, reason, err := s.choose(ctx)
	if err != nil || next == s.backend {
		return false
	}
	s.log.Warn("the rules move to another backend", "from", s.backend.name(), "to", next.name(), "reason", reason)
	s.others = append(slices.DeleteFunc(s.others, func(b ruleBackend) bool { return b == next }), s.backend)
	s.othersGone = false
	s.useBackend(next, reason)
	return true
}

func (s *Setup) useBackend(b ruleBackend, reason string) {
	s.backend = b
	s.counters.update(func(total *Stats) { total.Backend, total.BackendReason = b.name(), reason })
}

// removeOthers removes the rules that this agent or earlier ones have left in other backends, until it
// finds none. A predecessor restores its own until it has handed over, which is before [Setup.Run].
// A backend that the agent may not look at is left out: the manifest does not grant NET_RAW, which the legacy mode of iptables
// needs, and any program can have made the kernel load that mode's tables.
func (s *Setup) removeOthers(ctx context.Context) error {
	if s.othersGone {
		return nil
	}
	s.othersGone = true
	var problems []error
	for _, f := range s.others {
		removed, err := f.remove(ctx, false)
		if errors.Is(err, fs.ErrPermission) {
			s.log.Info("cannot read the rules of another backend: there, rules of an earlier agent stay, and DNS is dropped if a rule says so; iptables (legacy) needs the capability NET_RAW",
				"backend", f.name(), "err", err)
			continue
		}
		if err != nil || removed > 0 {
			s.othersGone = false // look again at the next re-check
			s.log.Info("removed rules of an earlier agent", "backend", f.name(), "rules", removed, "err", err)
		}
		if err != nil {
			problems = append(problems, s.ruleFailures(ctx, "removing rules of "+f.name(), err))
		}
	}
	return errors.Join(problems...)
}

// removeRules removes the rules and returns their number.
func (s *Setup) removeRules(ctx context.Context) (removed int, problems []error) {
	if len(s.rules.addrs) == 0 {
		return 0, nil
	}
	if err := s.chooseBackend(ctx); err != nil {
		return 0, []error{err}
	}
	s.counters.setRules(false)
	removed, err := s.backend.remove(ctx, true)
	if err != nil {
		problems = append(problems, s.ruleFailures(ctx, "removing", err))
	}
	return removed, append(problems, s.removeOthers(ctx))
}

// closeOwnerTable closes the owner table, if there is one.
func (s *Setup) closeOwnerTable() {
	if s.ownerTable != nil {
		_ = s.ownerTable.Close() // the kernel deletes it at the end of the process, too
		s.ownerTable = nil
	}
}

// ruleFailures makes an *Error of each error in err, unless ctx is done.
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
