package app

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/kernelpath"
)

// bypassCounts counts packets of pods to other DNS servers. It is safe for concurrent use.
type bypassCounts struct {
	table *clients.Table
	// expected reports whether pods may send DNS packets to an address, or whether it is that of such a server. It is set before
	// anything is counted.
	expected func(netip.Addr) bool

	mu      sync.Mutex
	packets byLabel // by protocol
}

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
	if b.expected(p.Server.Addr()) || b.expected(p.Client) {
		return
	}
	b.mu.Lock()
	b.packets[p.Protocol()] += n
	b.mu.Unlock()
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

// servesPods reports whether addr is an address of the agent, or of a server of the cluster DNS.
func (a *agent) servesPods(addr netip.Addr) bool {
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
	endpoints := g.endpoints()
	if endpoints == nil {
		return false
	}
	for _, service := range clusterDNSServices(a.opts.UpstreamService) {
		servers, _ := (*endpoints)(service, 0)
		if slices.ContainsFunc(servers, func(s netip.AddrPort) bool { return s.Addr() == addr }) {
			return true
		}
	}
	return false
}
