package kubernetes

import (
	"context"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// nodeLocation is what is known of where the node is, for those who follow slices: the place
// of an endpoint is written into its record when the record is made.
type nodeLocation struct {
	// firstReply is closed when the API server has answered once, or need not be asked.
	firstReply chan struct{}
	// zoneKnown is done when the zone has come after that.
	zoneKnown    context.Context
	setZoneKnown context.CancelFunc
}

func newNodeLocation() *nodeLocation {
	l := &nodeLocation{firstReply: make(chan struct{})}
	l.zoneKnown, l.setZoneKnown = context.WithCancel(context.Background())
	return l
}

// waitFirstReply waits for the first answer, but not for longer than limit: slices that are
// listed before it are listed again after it.
func (l *nodeLocation) waitFirstReply(ctx context.Context, limit time.Duration) {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-l.firstReply:
	case <-t.C:
	case <-ctx.Done():
	}
}

// runWithZone runs follow until ctx ends, and anew if the zone comes to be known meanwhile:
// the records that it has made are without it. The pause between the two is of up to
// spread, at random.
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

// findNodeZone finds out in which topology zone the node is, if nobody has said so, and tells l.
// Without it, all that is not on the node itself is equally far. It asks until the API
// server says it, or that it never will.
func (c *apiSource) findNodeZone(ctx context.Context, l *nodeLocation) {
	v := c.view
	p := v.sliceConverter()
	if p.zone != "" || v.node == "" || !p.localities {
		close(l.firstReply)
		return
	}
	for failed := 0; ctx.Err() == nil; failed++ {
		zone, err := getNodeZone(ctx, c.clients.core, v.node)
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
		f := reflector{firstBackoff: v.firstBackoff}
		sleep(ctx, max(f.backoff(failed), retryAfter(err)))
	}
}

// reportZone logs what has come of asking for the zone, after so many failures: the first
// one of them, and their end. It reports whether there is nothing more to ask.
func (v *View) reportZone(zone string, err error, failed int) (settled bool) {
	switch {
	case err == nil:
		if failed > 0 && zone != "" {
			v.log.Info("topology zone of the node found, endpoints in it come first", "zone", zone)
		}
		return true
	case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
		v.log.Info("topology zone of the node unknown, endpoints in it don't come first",
			"err", err, "fix", "set -node-zone or NODE_ZONE, or allow the agent to get nodes")
		return true
	case failed == 0:
		v.log.Warn("topology zone of the node not found yet, endpoints in it don't come first",
			"err", withoutURL(err), "fix", "set -node-zone or NODE_ZONE")
	}
	return false
}

// sliceConverter is what records of slices are made with.
func (v *View) sliceConverter() converter {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.converter
}

// setZone sets where the node is, for the records that are made from now on.
func (v *View) setZone(zone string) {
	v.mu.Lock()
	v.converter.zone = zone
	v.mu.Unlock()
}
