package app

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/filewatch"
	"github.com/nodens-dns/nodens/internal/outage"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/internal/resolvconf"
)

const (
	// hostInterval is the time between two looks at the node's name servers, which are small files.
	hostInterval = time.Second
	// hostRetry is the time after which a failed change of the node's files is tried again. It may restart
	// systemd-resolved.
	hostRetry = time.Minute
	// hostProbeTimeout bounds the query that shows that the agent answers.
	hostProbeTimeout = 2 * time.Second
	// hostRemoveTimeout bounds the removal at the end.
	hostRemoveTimeout = time.Second
)

// hostOutage are the log messages while the node's look-ups can't be followed or pointed to the agent.
var hostOutage = outage.Messages{
	Start:   "the node's look-ups: files can't be read or changed",
	Ongoing: "the node's look-ups: files still can't be read or changed",
	End:     "the node's look-ups: files can be read and changed again",
}

// hostLookups follows the name servers of the node. It keeps up to date what depends on them: the upstreams of the
// blocks for the node's own look-ups, the servers that answer without an agent, and with --host-resolver the
// node's files.
type hostLookups struct {
	log     *slog.Logger
	host    resolvconf.Host
	outages outage.Log
	// mode says what happens to the node's files.
	mode options.HostResolver
	// stays says that they stay as they are at the end, like the rules.
	stays bool
	// divert sets the servers that answer without an agent; nil: there are no rules.
	divert func(context.Context, []netip.AddrPort) error
	// reload has the agent read its configuration, which has the servers.
	reload func(context.Context)
	// answers reports whether the agent answers at all its addresses for look-ups.
	answers func(context.Context) bool
	// state is the last one that was read; nil before.
	state atomic.Pointer[resolvconf.State]

	servers []netip.Addr // as of the last reload
	retry   time.Time    // no change of the files before
}

// newHostLookups returns nil without --host-listen.
func newHostLookups(a *agent, opts *options.Agent, log *slog.Logger) *hostLookups {
	if len(opts.HostListen) == 0 {
		return nil
	}
	log = log.With("part", "host")
	h := &hostLookups{
		log: log, host: opts.Host(), mode: opts.HostResolver, stays: opts.SkipTeardown,
		outages: outage.Log{Messages: hostOutage, Logger: log, Level: slog.LevelWarn},
		reload:  a.requestReload,
		answers: func(ctx context.Context) bool {
			ctx, cancel := context.WithTimeout(ctx, hostProbeTimeout)
			defer cancel()
			return !slices.ContainsFunc(opts.HostListen, func(addr netip.Addr) bool {
				return !answersAt(ctx, netip.AddrPortFrom(addr, opts.DNSPort))
			})
		},
	}
	if a.net != nil && opts.SetsUpRules() {
		h.divert = a.net.DivertHost
	}
	return h
}

// requestReload has the agent's goroutine check the files of the configuration. It does not wait for the end of that.
func (a *agent) requestReload(ctx context.Context) {
	select {
	case a.mainCalls <- func(ctx context.Context) { a.reload(ctx, false) }:
	case <-a.mainClosed:
	case <-ctx.Done():
	}
}

// applyInitial sets the servers that answer without an agent, before the rules are installed. A nil h does nothing.
func (h *hostLookups) applyInitial(ctx context.Context) {
	if h == nil {
		return
	}
	if s, err := h.host.Read(); err == nil {
		h.state.Store(&s)
		h.setDiversion(ctx, s.Servers)
	}
}

// run follows the servers until ctx ends. A nil h does nothing.
func (h *hostLookups) run(ctx context.Context) {
	if h == nil {
		return
	}
	defer h.outages.Stop()
	h.check(ctx)
	filewatch.Every(ctx, hostInterval, func() { h.check(ctx) })
}

// check reads the state of the node once, and acts on a change.
func (h *hostLookups) check(ctx context.Context) {
	s, err := h.host.Read()
	if err != nil {
		h.outages.Fail(err)
		return
	}
	h.state.Store(&s)
	if len(s.Servers) > 0 && !slices.Equal(s.Servers, h.servers) {
		h.log.Info("the node's name servers", "manager", string(s.Manager), "servers", s.Servers)
		h.servers, h.retry = s.Servers, time.Time{}
		h.setDiversion(ctx, s.Servers)
		h.reload(ctx)
	}
	if time.Now().Before(h.retry) {
		return
	}
	if err := h.changeFiles(ctx); err == nil {
		h.outages.Recover()
	} else if ctx.Err() == nil {
		h.retry = time.Now().Add(hostRetry)
		h.outages.Fail(err)
	}
}

// setDiversion sets the servers that answer without an agent.
func (h *hostLookups) setDiversion(ctx context.Context, servers []netip.Addr) {
	if h.divert == nil {
		return
	}
	var to []netip.AddrPort
	for _, a := range servers {
		to = append(to, netip.AddrPortFrom(a, 53))
	}
	if err := h.divert(ctx, to); err != nil && ctx.Err() == nil {
		h.log.Warn("setting the fallback to the node's name servers failed; the next check tries again", "to", to, "err", err)
	}
}

// changeFiles makes the node's files what the mode says.
func (h *hostLookups) changeFiles(ctx context.Context) (err error) {
	switch h.mode {
	case options.HostResolverAuto:
		err = h.install(ctx)
	case options.HostResolverRemove:
		if h.state.Load().Installed {
			err = h.restore(ctx)
		}
	}
	return err
}

// install points the node's files to the agent if they do not, once the agent answers.
func (h *hostLookups) install(ctx context.Context) error {
	s := h.state.Load()
	changes, err := s.Plan()
	if err != nil || len(changes) == 0 && s.Points {
		return err
	}
	if !h.answers(ctx) {
		return errors.New("the agent does not answer at --host-listen, so that the node's look-ups stay where they are")
	}
	changed, err := h.host.Install(ctx)
	for _, c := range changed {
		h.log.Info("the node's look-ups: file written", "path", c.Path)
	}
	if s, readErr := h.host.Read(); readErr == nil {
		h.state.Store(&s)
	}
	return err
}

// end makes the node's files what they were, unless they stay for the next agent. It is called when run has ended. A nil h
// does nothing.
func (h *hostLookups) end() {
	if h == nil || h.mode != options.HostResolverAuto || h.stays {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), hostRemoveTimeout)
	defer cancel()
	if err := h.restore(ctx); err != nil {
		h.log.Warn("the node's look-ups: restoring files failed; nodens host remove tries again", "err", err)
	}
}

// restore removes the agent from the node's files.
func (h *hostLookups) restore(ctx context.Context) error {
	changed, err := h.host.Remove(ctx)
	for _, c := range changed {
		h.log.Info("the node's look-ups: file restored", "path", c.Path)
	}
	return err
}

// report returns where the node's look-ups go; nil if that is not known. A nil h returns nil.
func (h *hostLookups) report() *report.Lookups {
	if h == nil || h.state.Load() == nil {
		return nil
	}
	return options.NewLookups(h.state.Load(), nil)
}

// problems returns what keeps the node's look-ups from the agent. A nil h returns nil.
func (h *hostLookups) problems() []string {
	if h == nil || h.state.Load() == nil {
		return nil
	}
	switch s := h.state.Load(); {
	case h.mode == options.HostResolverAuto && !s.Points:
		return append([]string{"the node's look-ups do not go to the agent first"}, s.Problems...)
	case h.mode == options.HostResolverRemove && s.Installed:
		return []string{"the node's files still name the agent"}
	}
	return nil
}
