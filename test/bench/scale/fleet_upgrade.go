package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/bench/apiobjects"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/peer"
)

// The ways in which an agent starts.
const (
	byList    = "without a saved view"
	byUpgrade = "upgrade"
	byCrash   = "crash"
)

// measureUpgrades replaces all agents, one after the other: the old one saves its view, two objects change, the new one opens it,
// and the old one ends. Beside a quarter of them, agents without a saved view start. The answers of all three are compared.
func (t *fleetTest) measureUpgrades(ctx context.Context) error {
	idle, err := t.idleCores(ctx)
	if err != nil {
		return err
	}
	for first := 0; first < len(t.members); first += batch {
		end := min(first+batch, len(t.members))
		var changes []apiobjects.Change
		for i := first; i < end; i++ {
			c, err := t.upgrade(ctx, i, idle)
			if err != nil {
				return fmt.Errorf("upgrading agent %d: %w", i, err)
			}
			changes = append(changes, c...)
		}
		if first%(4*batch) > 0 {
			continue
		}
		if err := t.startFresh(ctx, first, end, changes, idle); err != nil {
			return err
		}
	}
	t.report(byList, byUpgrade)
	return nil
}

// report writes lines about the ways to start.
func (t *fleetTest) report(ways ...string) {
	for _, way := range ways {
		list := t.found.ways[way]
		fmt.Fprintf(t.Progress, "%s, one of %d agents: %.1f KiB, %.1f ms of CPU, %.1f lists, %.1f s\n", way, len(list),
			mean(list, cost.kib), mean(list, cost.cpuMillis), mean(list, func(c cost) float64 { return float64(c.requests.lists) }),
			mean(list, cost.seconds))
	}
}

func (c cost) kib() float64       { return float64(c.received) / (1 << 10) }
func (c cost) cpuMillis() float64 { return float64(c.cpu.Nanoseconds()) / 1e6 }

// mean is the mean of f over the list; 0 of none.
func mean(list []cost, f func(cost) float64) float64 {
	sum := 0.0
	for _, c := range list {
		sum += f(c)
	}
	return sum / float64(max(1, len(list)))
}

// upgrade replaces an agent, and returns what has changed before.
func (t *fleetTest) upgrade(ctx context.Context, i int, idle float64) ([]apiobjects.Change, error) {
	old := t.members[i]
	old.shower.(*view).Save() //nolint:forcetypeassert // only views are upgraded
	changes, err := t.changeFor(ctx, i)
	if err != nil {
		return nil, err
	}
	err = t.startWay(ctx, byUpgrade, idle, []int{i}, func(i int) (*member, error) {
		return t.start(ctx, i, t.saveFile(i))
	}, func(_ int, next *member) error {
		if err := t.compare(ctx, old, next); err != nil {
			return err
		}
		t.members[i] = next
		t.end(old)
		return nil
	}, changes)
	return changes, err
}

// end stops an agent that is no member any more.
func (t *fleetTest) end(m *member) {
	t.ended += m.tap.Read().Received
	m.stop()
}

// startFresh starts agents without a saved view beside the members, and ends them.
func (t *fleetTest) startFresh(ctx context.Context, first, end int, changes []apiobjects.Change, idle float64) error {
	nodes := make([]int, end-first)
	for i := range nodes {
		nodes[i] = first + i
	}
	return t.startWay(ctx, byList, idle, nodes, func(i int) (*member, error) { return t.start(ctx, i, "") }, func(i int, fresh *member) error {
		defer t.end(fresh)
		return t.compare(ctx, t.members[i], fresh)
	}, changes)
}

// startWay starts the agents of the nodes at once and notes what one of them costs until it is current. Then it calls done with
// each.
func (t *fleetTest) startWay(ctx context.Context, way string, idle float64, nodes []int, start func(int) (*member, error),
	done func(int, *member) error, changes []apiobjects.Change) error {
	from, err := t.meter()
	if err != nil {
		return err
	}
	var started []*member
	for _, i := range nodes {
		m, err := start(i)
		if err != nil {
			return err
		}
		started = append(started, m)
	}
	err = peer.Await(ctx, "agents to be current", func(context.Context) error {
		for _, m := range started {
			if err := t.current(m, changes); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	c, err := t.since(from)
	if err != nil {
		return err
	}
	n := len(nodes)
	c.cpu = (c.cpu - time.Duration(idle*float64(c.took))) / time.Duration(n)
	for k, m := range started {
		c.received, c.requests = m.tap.Read().Received, m.log.total(0)
		t.found.ways[way] = append(t.found.ways[way], c)
		if err := done(nodes[k], m); err != nil {
			return err
		}
	}
	return nil
}

// current says what an agent lacks: all its watches, and the changes that it follows.
func (t *fleetTest) current(m *member, changes []apiobjects.Change) error {
	s := m.shower.(*view).Stats() //nolint:forcetypeassert // only views start in several ways
	if open := m.log.total(0); !s.Synced || open.watching-open.slices < baseWatches || s.Sources < t.world.UsedNamespaces {
		return fmt.Errorf("agent %d has %d watches, %d of slices, in %d namespaces", m.options.node, open.watching, open.slices, s.Sources)
	}
	for _, c := range changes {
		if t.follows(m, c) && !m.shows(c) {
			return fmt.Errorf("agent %d does not show %s", m.options.node, c.Name)
		}
	}
	return nil
}

// changeFor changes a Service, and a slice in a namespace of the node, and waits until all agents show that.
func (t *fleetTest) changeFor(ctx context.Context, node int) (changes []apiobjects.Change, err error) {
	uses := t.world.Uses(node)
	for _, headless := range []bool{true, false} {
		wanted := t.world.Sample(len(t.world.Services()), func(s apiobjects.Service) bool { return s.Headless == headless && slices.Contains(uses, s.Namespace) })
		err := t.world.ChangeServices(ctx, 1, fleetChangeRate, 1, wanted, func(c apiobjects.Change) error {
			changes = append(changes, c)
			_, missed, err := t.awaitShown(ctx, c, fleetPoll)
			if missed > 0 {
				err = errors.Join(err, errMissed)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return changes, nil
}

// errMissed says that there are agents that do not follow the cluster.
var errMissed = errors.New("agents have missed a change")

// compare notes whether the second agent gives the answers of the first.
func (t *fleetTest) compare(ctx context.Context, first, second *member) error {
	uses := t.world.Uses(first.options.node)
	var list []apiobjects.Service
	for _, s := range t.world.Services() {
		if !s.Headless || slices.Contains(uses, s.Namespace) {
			list = append(list, s)
		}
	}
	t.found.compared++
	for end := time.Now().Add(missedAfter); ; {
		a, err := first.shower.(*view).answers(list)   //nolint:forcetypeassert // only views are compared
		b, err2 := second.shower.(*view).answers(list) //nolint:forcetypeassert // only views are compared
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		if slices.Equal(a, b) {
			return nil
		}
		if time.Now().After(end) {
			t.found.different++
			return nil
		}
		if err := harness.Sleep(ctx, fleetPoll); err != nil {
			return err
		}
	}
}

// measureCrashes starts all agents anew from files that were saved some seconds before their predecessors ended.
func (t *fleetTest) measureCrashes(ctx context.Context) error {
	idle, err := t.idleCores(ctx)
	if err != nil {
		return err
	}
	files := make([][]byte, len(t.members))
	err = apiserver.Parallel(ctx, len(files), batch, func(_ context.Context, i int) (err error) {
		t.members[i].shower.(*view).Save() //nolint:forcetypeassert // only views crash
		files[i], err = os.ReadFile(t.saveFile(i))
		return err
	})
	if err != nil {
		return err
	}
	if err := t.world.ChangeSlices(ctx, int(t.Wait(fleetChanges).Seconds()*fleetChangeRate), fleetChangeRate); err != nil {
		return err
	}
	for first := 0; first < len(files); first += batch {
		if err := t.crash(ctx, first, min(first+batch, len(files)), files, idle); err != nil {
			return err
		}
	}
	t.report(byCrash)
	return nil
}

// crash ends agents and starts them from their files.
func (t *fleetTest) crash(ctx context.Context, first, end int, files [][]byte, idle float64) error {
	changes, err := t.changeFor(ctx, first)
	if err != nil {
		return err
	}
	var nodes []int
	for i := first; i < end; i++ {
		nodes = append(nodes, i)
		t.end(t.members[i])
		if err := os.WriteFile(t.saveFile(i), files[i], 0o600); err != nil {
			return err
		}
	}
	return t.startWay(ctx, byCrash, idle, nodes, func(i int) (*member, error) { return t.start(ctx, i, t.saveFile(i)) }, func(i int, next *member) error {
		before := t.members[i]
		t.members[i] = next
		return t.compare(ctx, before, next)
	}, changes)
}
