// These tests use limiters and hostAddrs, which are not exported.

package app

// In the package, because queries of tests come from loopback addresses, which have no limit.

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/podrange"
	"github.com/nodens-dns/nodens/internal/ratelimit"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/kernelpath"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// TestLimiterExempt: the node, loopback and the exceptions have no limit; IPv6 addresses of no pod are one client.
func TestLimiterExempt(t *testing.T) {
	addrs := &hostAddrs{list: func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: net.ParseIP("2001:db8::1"), Mask: net.CIDRMask(64, 128)}, &net.IPNet{IP: net.ParseIP("192.0.2.1"), Mask: net.CIDRMask(24, 32)}}, nil
	}}
	ranges := new(podrange.Ranges)
	ranges.SetPrefixes(1, []netip.Prefix{netip.MustParsePrefix("fd00:1::/64")})
	x := limiters{ranges: ranges, addrs: addrs, except: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}}
	l := x.limiter(&config.ClientLimit{Rate: 1, Burst: 1, Except: []netip.Prefix{netip.MustParsePrefix("10.8.0.1/32")}}, 0)
	for _, tt := range []struct {
		addr string
		want bool // that it may ask a second time
	}{
		{"127.0.0.1", true}, {"::1", true}, {"192.0.2.1", true}, {"::ffff:192.0.2.1", true}, {"2001:db8::1", true}, {"10.9.1.1", true}, {"10.8.0.1", true},
		{"192.0.2.2", false}, {"10.8.0.2", false}, {"2001:db8::2", false}, {"fd00:1::1", false}, {"fd00:2::1", false},
	} {
		addr := netip.MustParseAddr(tt.addr)
		if first, second := l.Allow(addr, time.Hour), l.Allow(addr, time.Hour); !first || second != tt.want {
			t.Errorf("%s: %t, then %t, want %t", addr, first, second, tt.want)
		}
	}
	for addr, want := range map[string]bool{"2001:db8::3": false, "fd00:1::2": true, "fd00:2::2": false} {
		if got := l.Allow(netip.MustParseAddr(addr), time.Hour); got != want {
			t.Errorf("%s, a neighbour of one that is over its limit: %t, want %t", addr, got, want)
		}
	}
}

// TestHostAddrsKnows: knows does not wait for a list that has to be read again.
func TestHostAddrsKnows(t *testing.T) {
	release := make(chan struct{})
	list := []net.Addr{&net.IPNet{IP: net.ParseIP("192.0.2.1"), Mask: net.CIDRMask(24, 32)}}
	h := &hostAddrs{list: func() ([]net.Addr, error) {
		<-release
		return list, nil
	}}
	addr := netip.MustParseAddr("192.0.2.1")
	if h.knows(addr) || !h.knows(netip.MustParseAddr("127.0.0.1")) {
		t.Error("it knows an address that has not been read, or not loopback")
	}
	close(release)
	for !h.knows(addr) {
		time.Sleep(time.Millisecond)
	}
	h.list = func() ([]net.Addr, error) { return nil, errors.New("broken") }
	if h.cached.Load().at -= 2 * hostAddrsAge; !h.knows(addr) {
		t.Error("an old list is not used until it has been read again")
	}
}

// TestKernelLimit: the kernel's programs get the limit of the agent, and drop all beyond it only if the agent does.
func TestKernelLimit(t *testing.T) {
	except := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for _, tt := range []struct {
		limit *config.ClientLimit
		want  kernelpath.ClientLimit
	}{
		{nil, kernelpath.ClientLimit{}},
		{&config.ClientLimit{Rate: 5, Burst: 7}, kernelpath.ClientLimit{Rate: 5, Burst: 7, Exempt: except}},
		{&config.ClientLimit{Rate: 5, Burst: 7, Action: config.LimitTruncate}, kernelpath.ClientLimit{Rate: 5, Burst: 7, Exempt: except}},
		{&config.ClientLimit{Rate: 5, Burst: 7, Action: config.LimitDrop}, kernelpath.ClientLimit{Rate: 5, Burst: 7, Drop: true, Exempt: except}},
	} {
		got := kernelLimit(&options.Agent{ClientLimit: tt.limit, ClientLimitExcept: except})
		if fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%+v: %+v, want %+v", tt.limit, got, tt.want)
		}
	}
}

// TestKernelAnswersLimited: what the kernel has answered counts towards the agent's limit, also if queries are not counted
// by client, and what it has dropped is counted if they are.
func TestKernelAnswersLimited(t *testing.T) {
	addr := netip.MustParseAddr("10.1.0.1")
	for _, metrics := range []options.ClientMetrics{options.ClientMetricsOff, options.ClientMetricsNamespace} {
		table := clients.New(clients.Options{})
		limit := &resolver.ClientLimit{Limiter: ratelimit.New(ratelimit.Options{Rate: 1, Burst: 10})}
		opts := &options.Agent{KernelPath: options.KernelPathOn, ClientMetrics: metrics, ClientLimit: &config.ClientLimit{Rate: 1, Burst: 10}}
		var to kernelpath.ClientReporter
		_, err := openKernelPath(opts, slog.New(slog.DiscardHandler), platform{open: func(o kernelpath.Options) (program, error) {
			to = o.Clients
			if o.ClientLimit.Rate != 1 || o.ClientLimit.Burst != 10 {
				t.Errorf("the kernel's limit is %+v", o.ClientLimit)
			}
			return newStage().player("a"), nil
		}}, table, limit)
		check.NoError(t, err)
		to.ReportClient(addr, kernelpath.ClientAnswers{NoError: 4, NXDomain: 3, Waste: 1})
		to.ReportLimited(addr, 5)
		now := clock.Now()
		for i := range 5 {
			if got := limit.Allow(addr, now); got != (i < 3) {
				t.Errorf("query %d is allowed: %t", 8+i, got)
			}
		}
		limited := uint64(0)
		for _, c := range table.Report(clients.Pods, clients.Minute).Clients {
			limited += c.Total.Limited[clients.ReasonClientLimit]
		}
		if want := uint64(5); metrics != options.ClientMetricsOff && limited != want || metrics == options.ClientMetricsOff && limited != 0 {
			t.Errorf("%d are counted as limited", limited)
		}
	}
}
