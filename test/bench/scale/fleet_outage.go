package scale

import (
	"context"
	"fmt"
	"time"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/bench/apiobjects"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

// The ways in which a fleet loses its API server.
const (
	restarted   = "the API server is killed and started again"
	partitioned = "half of the agents are cut off"
)

// measureRestart kills the API server and starts it again.
func (t *fleetTest) measureRestart(ctx context.Context) error {
	return t.measureOutage(ctx, restarted, func() error {
		t.API.Kill()
		return t.API.Restart(ctx)
	})
}

// measurePartition cuts half of the agents off.
func (t *fleetTest) measurePartition(ctx context.Context) error {
	return t.measureOutage(ctx, partitioned, func() error {
		for _, m := range t.members[:len(t.members)/2] {
			defer m.tap.Block()()
		}
		return harness.Sleep(ctx, t.Wait(t.found.options.Partition))
	})
}

// measureOutage measures from the begin of lose, which returns when the API server is there again, until all agents are current
// and some seconds longer.
func (t *fleetTest) measureOutage(ctx context.Context, event string, lose func() error) error {
	t.log.restart()
	begun := time.Now()
	o := outageRun{event: event}
	if err := lose(); err != nil {
		return err
	}
	o.lasted = time.Since(begun)
	o.back = int(o.lasted / time.Second)
	from, err := t.meter()
	if err != nil {
		return err
	}
	if err := t.awaitCurrent(ctx); err != nil {
		return err
	}
	current := time.Since(begun)
	if o.cost, err = t.since(from); err != nil {
		return err
	}
	if err := harness.Sleep(ctx, t.Wait(calmAfter)); err != nil {
		return err
	}
	o.series, o.after = t.log.series(), t.log.total(int(current/time.Second)+1)
	at := harness.Cell{Server: t.kind.name, Workload: event}
	t.found.outages[at] = []outageRun{o}
	fmt.Fprintf(t.Progress, "%d agents, %s: %s: lasted %.1f s, then %s; %d requests failed afterwards; %v\n", len(t.members), t.kind.name, event, o.lasted.Seconds(), o.cost, o.after.failed, o.series)
	return nil
}

// awaitCurrent changes a Service and a headless slice in each namespace, and waits until all agents show what they follow of that.
func (t *fleetTest) awaitCurrent(ctx context.Context) error {
	one := map[string]apiobjects.Service{}
	for _, s := range t.world.Services() {
		if _, ok := one[s.Namespace]; s.Headless && !ok {
			one[s.Namespace] = s
		}
	}
	var wanted []apiobjects.Service
	for _, s := range one {
		wanted = append(wanted, s)
	}
	wanted = append(wanted, t.world.Services()[0]) // it has a cluster IP
	late := time.Now().Add(outagePatience)
	return apiserver.Parallel(ctx, len(wanted), len(wanted), func(ctx context.Context, i int) error {
		return t.world.ChangeServices(ctx, 1, fleetChangeRate, 1, wanted[i:i+1], func(c apiobjects.Change) error {
			for {
				switch _, missed, err := t.awaitShown(ctx, c, outagePoll); {
				case err != nil || missed == 0:
					return err
				case time.Now().After(late):
					return fmt.Errorf("%d agents: %w", missed, errMissed)
				}
			}
		})
	})
}

// outagePatience is how long a fleet may take to be current again.
const outagePatience = 2 * time.Minute
