package scale

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/test/bench/apiobjects"
	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/peer"
)

const (
	// designRate is how many slices change in a second: as many as in the cluster that costs are calculated for.
	designRate = fleetChangeRate
	// designChanges is how many changes are measured at once: four seconds of them.
	designChanges = 4 * designRate
	// askInterval is the time between two first questions, of different agents.
	askInterval = 20 * time.Millisecond
)

// designRun is what a number of agents of one design did in one round.
type designRun struct {
	agents  int
	watches float64
	// memory is the API server's live memory for an agent in MiB, firstKiB what an agent receives until it is synced.
	memory, firstKiB float64
	// mixed are random slices of the cluster, elsewhere those that no agent needs, own those that agents ask for.
	mixed, elsewhere, own changeCost
	// quiet and busy are the times of first questions for a headless Service of a new namespace, in ascending order, while nothing changes and
	// while slices do. They are 0 if it is in view already.
	quiet, busy []time.Duration
	// missed is how many changes of slices that agents want did not come, and of how many.
	missed, due int
}

// changeCost is what a change costs the API server for each agent.
type changeCost struct {
	cpu    float64 // µs, without what it costs for agents without watches of slices
	events float64 // that an agent gets
	kib    float64 // that an agent receives for 1,000 changes
}

func (r designRun) String() string {
	return fmt.Sprintf("%d agents, %.0f watches, %.3f MiB, %.0f KiB first; µs for a change: mixed %.2f (%.4f events), elsewhere %.2f (%.4f), own %.2f (%.4f); first question p99 %v quiet, %v busy; %d of %d changes missed",
		r.agents, r.watches, r.memory, r.firstKiB, r.mixed.cpu, r.mixed.events, r.elsewhere.cpu, r.elsewhere.events, r.own.cpu, r.own.events,
		figures.Percentile(r.quiet, 0.99), figures.Percentile(r.busy, 0.99), r.missed, r.due)
}

// designFleet is the agents that use a design.
type designFleet struct {
	*designRuns
	design watchDesign
	using  []*designAgent
	before [][]int // what each has not seen because it was before its first list
}

// round measures each design once. What the changes cost without watches of slices, the first design, is subtracted from the
// others' costs.
func (d *designRuns) round(ctx context.Context) error {
	for i, design := range watchDesigns() {
		if i > 0 && !d.Only.MatchesName(design.name) {
			continue
		}
		runs, err := d.measureDesign(ctx, design)
		if err != nil {
			return fmt.Errorf("measuring %s: %w", design.name, err)
		}
		if i == 0 {
			last := runs[len(runs)-1]
			d.base.mixed.cpu, d.base.elsewhere.cpu, d.base.own.cpu = last.mixed.cpu, last.elsewhere.cpu, last.own.cpu
		}
		for _, r := range runs {
			r.subtract(d.base, r.agents*(1+design.copies()))
			fmt.Fprintf(d.Progress, "%s: %s\n", design.name, r)
			at := harness.Cell{Server: design.name, Workload: strconv.Itoa(r.agents)}
			d.out.runs[at] = append(d.out.runs[at], r)
		}
	}
	return nil
}

// subtract takes what the changes cost without watches of slices away, and divides by n.
func (r *designRun) subtract(base designRun, n int) {
	for _, c := range [][2]*changeCost{{&r.mixed, &base.mixed}, {&r.elsewhere, &base.elsewhere}, {&r.own, &base.own}} {
		if c[0].cpu > 0 { // it was measured
			c[0].cpu = (c[0].cpu - c[1].cpu) / float64(n)
		}
	}
}

// measureDesign measures the agents with the watches of a design and ends these. The costs are those of all agents, with
// what the changes cost.
func (d *designRuns) measureDesign(ctx context.Context, design watchDesign) (runs []designRun, err error) {
	f := &designFleet{designRuns: d, design: design}
	defer func() {
		for _, a := range f.using {
			a.dropCopies()
			a.drop()
		}
	}()
	without, err := d.gauge.liveMemory(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range d.out.agents {
		r := designRun{agents: n}
		if err := f.start(ctx, n, without, &r); err != nil {
			return nil, err
		}
		if r.mixed, err = f.cost(ctx, d.all); err != nil {
			return nil, err
		}
		runs = append(runs, r)
	}
	last := &runs[len(runs)-1]
	if last.elsewhere, err = f.cost(ctx, d.unused); err != nil {
		return nil, err
	}
	if last.own, err = f.cost(ctx, d.asked); err != nil || design.name == noSlices {
		return runs, err
	}
	return runs, f.askAll(ctx, last)
}

// start has agents use the design until n do, and measures what they hold.
func (f *designFleet) start(ctx context.Context, n int, without float64, r *designRun) error {
	received, more, times := f.tap.Read().Received, f.agents[len(f.using):n], 1+f.design.copies()
	for _, a := range more {
		a.use(ctx, f.design, f.wantsOf(a.node))
	}
	f.using = f.agents[:n]
	err := peer.Await(ctx, "lists of slices", func(context.Context) error {
		for _, a := range more {
			if !a.Synced() {
				return fmt.Errorf("agent %d of %s has not listed", a.node, f.design.name)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, a := range more {
		f.before = append(f.before, f.unseen(a))
	}
	r.firstKiB = f.base.firstKiB + figures.Kibi(f.tap.Read().Received-received)/float64(len(more)*times)
	open, err := f.gauge.watches(ctx)
	if err != nil {
		return err
	}
	full, err := f.gauge.liveMemory(ctx)
	r.watches = baseWatches + (open-f.testCluster.before-float64(baseWatches*len(f.agents)))/float64(n*times)
	r.memory = f.base.memory + mebiEach(full-without, n*times)
	return err
}

// baseWatches is how many watches an agent has beside those of slices.
const baseWatches = 3

// cost changes the slices of the Services and returns what a change costs the API server for all agents, and what one agent gets. It begins with
// a collection of the API server's garbage, so that each has its share of collections.
func (f *designFleet) cost(ctx context.Context, services []apiobjects.Service) (c changeCost, err error) {
	if err := f.gauge.collect(ctx); err != nil {
		return c, err
	}
	api, _ := f.API.Pids()
	n, before, events := f.Number(designChanges), f.tap.Read(), f.events()
	start, err := machine.CPUClock(api)
	if err != nil {
		return c, err
	}
	if err := f.world.ChangeSlicesOf(ctx, n, designRate, services); err != nil {
		return c, err
	}
	if err := f.awaitEvents(ctx); err != nil {
		return c, err
	}
	after := f.tap.Read()
	end, err := machine.CPUClock(api)
	c.cpu = float64((end - start).Nanoseconds()) / 1e3 / float64(n)
	each := float64(n * len(f.using) * (1 + f.design.copies()))
	c.events, c.kib = float64(f.events()-events)/each, figures.Kibi(after.Sub(before).Received)*1000/each
	return c, err
}

// eventsSettle is when the agents have got all events: there are none for half a second. Bookmarks never stop.
var eventsSettle = settleRule{every: 50 * time.Millisecond, samples: 10, limit: time.Minute}

// awaitEvents waits until the agents have got all events.
func (f *designFleet) awaitEvents(ctx context.Context) error {
	_, err := eventsSettle.of(f.Plan).await(ctx, func() (float64, error) { return float64(f.events()), nil })
	return err
}

// events returns how many slices the agents got in watches.
func (f *designFleet) events() (n uint64) {
	for _, a := range f.using {
		n += a.events.Load()
	}
	return n
}

// askAll has each agent ask for a headless Service of a new namespace, half of them while nothing changes, the others
// while their own and the new slices do.
func (f *designFleet) askAll(ctx context.Context, r *designRun) (err error) {
	for _, a := range f.using {
		a.dropCopies()
	}
	half := (len(f.using) + 1) / 2
	if r.quiet, err = f.ask(ctx, 0, half); err != nil {
		return err
	}
	changed := make(chan error, 1)
	changing, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		list := slices.Concat(f.asked, f.spare[:min(len(f.spare), len(f.using))])
		for err := error(nil); ; err = f.world.ChangeSlicesOf(ctx, f.Number(designRate), designRate, list) {
			if err != nil || changing.Err() != nil {
				changed <- err
				return
			}
		}
	}()
	r.busy, err = f.ask(ctx, half, len(f.using))
	stop()
	if err := errors.Join(err, <-changed); err != nil {
		return err
	}
	err = f.awaitEvents(ctx)
	f.check(r)
	return err
}

// ask has the agents from first until end ask, one after the other, and returns the times in ascending order.
func (f *designFleet) ask(ctx context.Context, first, end int) (took []time.Duration, err error) {
	took, errs := make([]time.Duration, end-first), make([]error, end-first)
	var wg sync.WaitGroup
	for i := range took {
		wg.Go(func() { took[i], errs[i] = f.using[first+i].ask(ctx, f.spare[(first+i)%len(f.spare)]) })
		if err := harness.Sleep(ctx, f.Plan.Wait(askInterval)); err != nil {
			break
		}
	}
	wg.Wait()
	slices.Sort(took)
	return took, errors.Join(errs...)
}

// unseen returns how many of the changes of each Service that the agent asks for it has not seen as such: those before its
// first list.
func (f *designFleet) unseen(a *designAgent) (list []int) {
	for _, s := range a.wants.asked {
		_, changes := f.world.SliceState(s)
		list = append(list, changes-a.seen.get(s).changes)
	}
	return list
}

// check counts the changes that did not come: of Services that agents have asked for from the start all of them, of others the last one.
func (f *designFleet) check(r *designRun) {
	for i, a := range f.using {
		now := f.unseen(a)
		for j, s := range a.wants.asked {
			got := a.seen.get(s)
			version, _ := f.world.SliceState(s)
			if strconv.FormatUint(got.version, 10) != version {
				r.missed++
			}
			if j < len(f.before[i]) {
				r.missed += now[j] - f.before[i][j]
				r.due += got.changes + now[j] - f.before[i][j]
			}
		}
	}
}
