package app

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/kernelpath"
)

// bypassCounts counts packets of pods to other DNS servers. It is safe for concurrent use.
type bypassCounts struct {
	table *clients.Table // nil: nothing is counted by client
	// isOwn reports whether an address is the agent's, clusterDNS returns the servers of the cluster DNS. Both are set before
	// anything is counted.
	isOwn      func(netip.Addr) bool
	clusterDNS func() []netip.Addr

	mu      sync.Mutex
	packets byLabel       // by protocol
	servers []netip.Addr  // of clusterDNS
	readAt  time.Duration // when it was called, by package clock; 0: not yet
}

// clusterDNSAge is the age at which the servers of the cluster DNS are read again: a pod may cause a thousand reports at once.
const clusterDNSAge = time.Second

// newBypassCounts returns the counts for --bypass; nil without it.
func newBypassCounts(opts *options.Agent, table *clients.Table) *bypassCounts {
	if opts.Bypass == options.BypassOff {
		return nil
	}
	b := &bypassCounts{packets: byLabel{"udp": 0, "tcp": 0, "tls": 0, "quic": 0}}
	if opts.ClientMetrics != options.ClientMetricsOff {
		b.table = table
	}
	return b
}

// options returns what makes the program count; nil for nothing.
func (b *bypassCounts) options(doh []netip.Addr) *kernelpath.BypassOptions {
	if b == nil {
		return nil
	}
	return &kernelpath.BypassOptions{Reporter: b, DoH: doh}
}

// ReportBypass implements [kernelpath.BypassReporter]. The servers of the cluster DNS ask other servers themselves, so they
// don't count as clients.
func (b *bypassCounts) ReportBypass(p kernelpath.Bypass, n uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := clock.Now(); b.readAt == 0 || now-b.readAt >= clusterDNSAge {
		b.servers, b.readAt = b.clusterDNS(), now
	}
	if b.isOwn(p.Server.Addr()) || slices.Contains(b.servers, p.Server.Addr()) || slices.Contains(b.servers, p.Client) {
		return
	}
	b.packets[p.Protocol()] += n
	b.table.CountBypass(p.Client, p.Protocol()+" "+p.Server.String(), n)
}

// byProtocol returns the numbers of packets by protocol.
func (b *bypassCounts) byProtocol() byLabel {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.packets)
}

// bypassFix is what makes the agent count.
const bypassFix = "run the agent with --kernel-path=auto and --bypass=count"

// bypassReport returns whether packets to other DNS servers are counted.
func (a *agent) bypassReport() (r report.Bypass) {
	switch path := a.kernelPath; {
	case a.opts.Bypass == options.BypassOff:
	case path == nil:
		r.Reason = "--kernel-path is off; " + bypassFix
	case !path.available():
		r.Reason = path.reason
	default:
		r.Counted = true
		for _, n := range path.bypass.byProtocol() {
			r.Packets += n
		}
	}
	return r
}

// isOwnAddr reports whether the agent answers at addr.
func (a *agent) isOwnAddr(addr netip.Addr) bool {
	if slices.Contains(a.opts.LocalIPs, addr) {
		return true
	}
	g := a.current.Load()
	if g == nil {
		return false
	}
	for at := range g.listeners {
		if at.Addr() == addr || at.Addr().IsUnspecified() && a.builder.addrs.knows(addr) {
			return true
		}
	}
	return false
}

// clusterDNS returns the servers of the cluster DNS that are in view.
func (a *agent) clusterDNS() (list []netip.Addr) {
	var endpoints *endpointsFunc
	if g := a.current.Load(); g != nil {
		endpoints = g.endpoints()
	}
	if endpoints == nil {
		return nil
	}
	for _, service := range clusterDNSServices(a.opts.UpstreamService) {
		servers, _ := (*endpoints)(service, 0)
		for _, s := range servers {
			list = append(list, s.Addr())
		}
	}
	return list
}
