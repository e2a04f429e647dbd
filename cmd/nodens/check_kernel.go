package main

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/config"
)

// kernelPathStatus returns whether the kernel may answer queries to b, one of blocks, and if
// not, why. A view affects all blocks on its address.
func kernelPathStatus(b *config.Block, blocks []*config.Block) string {
	var reasons []string
	if slices.ContainsFunc(blocks, func(o *config.Block) bool {
		return o.View != nil && slices.ContainsFunc(o.Listen, func(a netip.AddrPort) bool { return slices.Contains(b.Listen, a) })
	}) {
		reasons = append(reasons, "view")
	}
	reasons = append(reasons, b.NeedsAgent()...)
	switch {
	case b.Transport != config.PlainDNS:
		return "none, because clients use " + b.Transport.String()
	case !slices.ContainsFunc(b.Listen, func(a netip.AddrPort) bool { return !a.Addr().IsUnspecified() }):
		return "none, because the block listens on all addresses; name some with bind"
	case len(reasons) > 0:
		return "none, because of " + strings.Join(reasons, ", ")
	case b.Kubernetes == nil && b.Hosts == nil && b.Cache == nil: // whose answers are copied
		return "none, without kubernetes, hosts and cache"
	}
	return "answers are copied into the kernel"
}

// describeKernelPath returns when the kernel's program is in use, and its position on each
// pod's interface.
func describeKernelPath(opts *options.Agent) string {
	text := "required: the agent does not start without it"
	if opts.KernelPath == options.KernelPathAuto {
		text = "if this node's kernel supports it and Cilium is not installed"
	}
	order := "after all other programs"
	switch at := opts.KernelPathOrder; {
	case at.First:
		order = "before all other programs"
	case at.Before != "":
		order = "before the program " + at.Before + " if it is present, else after all others"
	case at.After != "":
		order = "after the program " + at.After + " if it is present, else after all others"
	}
	return text + "\non each pod's interface " + order
}
