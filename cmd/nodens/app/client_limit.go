package app

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/podrange"
	"github.com/nodens-dns/nodens/internal/ratelimit"
	"github.com/nodens-dns/nodens/server/kernelpath"
	"github.com/nodens-dns/nodens/server/resolver"
)

// limiters makes the limiters of clients.
type limiters struct {
	ranges *podrange.Ranges
	addrs  *hostAddrs
	except []netip.Prefix // of all limits
}

// limiter returns the limiter of cfg. It has no limit for the node itself. lag is how late it is told of answers that
// the kernel has given.
func (x *limiters) limiter(cfg *config.ClientLimit, lag time.Duration) *ratelimit.Limiter {
	x.addrs.refresh() // so that the node itself has no limit from the first query on
	except := slices.Concat(x.except, cfg.Except)
	return ratelimit.New(ratelimit.Options{
		Rate: cfg.Rate, Burst: cfg.Burst, Client: x.ranges.Client, Lag: lag,
		Exempt: func(addr netip.Addr) bool {
			return x.addrs.knows(addr) || slices.ContainsFunc(except, func(p netip.Prefix) bool { return p.Contains(addr) })
		},
	})
}

func openLimiter(a *builder, p *blockParts) (any, error) {
	return a.limiters.limiter(p.block.ClientLimit, 0), nil
}

func installLimit(_ *builder, p *blockParts, part any) func(*resolver.Zone) {
	limit := resolver.ClientLimit{Limiter: part.(*ratelimit.Limiter), Action: p.block.ClientLimit.Action}
	return func(z *resolver.Zone) { z.Limit = &limit }
}

// agentLimit returns the limit of --client-limit, nil for none.
func (x *limiters) agentLimit(opts *options.Agent) *resolver.ClientLimit {
	if opts.ClientLimit == nil {
		return nil
	}
	var lag time.Duration
	if opts.KernelPath != options.KernelPathOff {
		lag = reportDelay
	}
	return &resolver.ClientLimit{Limiter: x.limiter(opts.ClientLimit, lag), Action: opts.ClientLimit.Action}
}

// kernelLimit returns the limit of --client-limit for the kernel's programs. They see the queries of pods only, so that
// the node itself needs no exception.
func kernelLimit(opts *options.Agent) kernelpath.ClientLimit {
	c := opts.ClientLimit
	if c == nil {
		return kernelpath.ClientLimit{}
	}
	return kernelpath.ClientLimit{
		Rate: uint32(c.Rate), Burst: uint32(c.Burst), Drop: c.Action == config.LimitDrop, Exempt: opts.ClientLimitExcept,
	}
}
