package kubernetes

import (
	"context"
	"math/rand/v2"
	"net/netip"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodens-dns/nodens/kubernetes/reflector"
)

// podCIDRsObserver returns [Options.ObservePodCIDRs]; nil if the ranges are not needed because
// no client has an IPv6 address, or if the Node is unknown.
func podCIDRsObserver(opts *Options) func([]netip.Prefix) {
	if opts.Node == "" || opts.ObservePodCIDRs == nil {
		return nil
	}
	for _, a := range opts.ServerAddrs {
		if a.Is6() && !a.Is4In6() && !a.IsLoopback() {
			return opts.ObservePodCIDRs
		}
	}
	return nil
}

// findPodCIDRs asks for the podCIDRs of the Node until the API server returns them or refuses
// for good, and reports them until ctx ends. A Node without podCIDRs is not asked for again: many
// pod networks don't use them, and the addresses of the node's pods are known without them.
func (c *apiSource) findPodCIDRs(ctx context.Context) {
	v := c.view
	if v.podCIDRs == nil {
		return
	}
	if v.maxStartDelay > 0 {
		sleep(ctx, rand.N(v.maxStartDelay))
	}
	for failed := 0; ctx.Err() == nil; failed++ {
		list, err := reflector.GetNodePodCIDRs(ctx, c.clients.groups[""], v.node)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			v.podCIDRs(parsePrefixes(list))
			<-ctx.Done()
			v.podCIDRs(nil)
			return
		case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
			v.log.Info("podCIDRs of the node unknown, IPv6 addresses that no pod of the node has are grouped by /64",
				"err", err, "fix", "allow the agent to get nodes")
			return
		}
		v.log.Debug("podCIDRs of the node not found yet", "err", reflector.WithoutURL(err))
		sleep(ctx, reflector.Backoff(v.firstBackoff, failed, err))
	}
}

// parsePrefixes returns the valid prefixes of list.
func parsePrefixes(list []string) (out []netip.Prefix) {
	for _, text := range list {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p)
		}
	}
	return out
}
