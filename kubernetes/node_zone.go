package kubernetes

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/nodens-dns/nodens/kubernetes/reflector"
)

// nodeLocation tells those who watch slices when the node's topology zone is known: the
// distance of an endpoint is part of its record.
type nodeLocation struct {
	// firstReply is closed when the API server has answered once or need not be asked.
	firstReply chan struct{}
	// zoneKnown ends when the zone becomes known after that.
	zoneKnown    context.Context
	setZoneKnown context.CancelFunc
}

func newNodeLocation() *nodeLocation {
	l := &nodeLocation{firstReply: make(chan struct{})}
	l.zoneKnown, l.setZoneKnown = context.WithCancel(context.Background())
	return l
}

// waitFirstReply waits for the first answer, but not longer than limit. Slices that are
// listed before it are listed again.
func (l *nodeLocation) waitFirstReply(ctx context.Context, limit time.Duration) {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-l.firstReply:
	case <-t.C:
	case <-ctx.Done():
	}
}

// runWithZone runs reflect until ctx ends, and restarts it if the zone becomes known
// meanwhile, after a random pause of at most spread: the records so far have no distances.
func (l *nodeLocation) runWithZone(ctx context.Context, spread time.Duration, follow func(context.Context)) {
	if l.zoneKnown.Err() == nil {
		before, stop := context.WithCancel(ctx)
		defer context.AfterFunc(l.zoneKnown, stop)()
		follow(before)
		stop()
		if ctx.Err() != nil {
			return
		}
		if spread > 0 {
			sleep(ctx, rand.N(spread))
		}
	}
	follow(ctx)
}

// findNodeZone asks for the node's topology zone, unless it is configured, and tells l. It
// asks until the API server gives it or refuses for good. Without the zone, endpoints are
// either on this node or equally far.
func (c *apiSource) findNodeZone(ctx context.Context, l *nodeLocation) {
	v := c.view
	p := v.sliceConverter()
	if p.zone != "" || v.node == "" || !p.localities {
		close(l.firstReply)
		return
	}
	for failed := 0; ctx.Err() == nil; failed++ {
		zone, err := getNodeZone(ctx, c.clients.groups[""], v.node)
		if err == nil && zone != "" {
			v.setZone(zone)
			l.setZoneKnown()
		}
		if failed == 0 {
			close(l.firstReply)
		}
		if ctx.Err() != nil || v.reportZone(zone, err, failed) {
			return
		}
		sleep(ctx, reflector.Backoff(v.firstBackoff, failed, err))
	}
}

// zoneLabelKey is the Node label that holds the topology zone.
const zoneLabelKey = "topology.kubernetes.io/zone"

// getNodeZone returns the topology zone of a Node, "" if it has none.
func getNodeZone(ctx context.Context, core rest.Interface, name string) (zone string, err error) {
	node, err := reflector.GetNode(ctx, core, name)
	if err != nil {
		return "", err
	}
	return node.Labels[zoneLabelKey], nil
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

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
