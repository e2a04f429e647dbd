package scale

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/apiobjects"
	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/peer"
)

// FleetOptions are the settings of the section about fleets.
type FleetOptions struct {
	Sizes     []int         // how many agents there are at once, in ascending order
	Partition time.Duration // how long half of the largest fleet is cut off
}

// DefaultFleet takes some minutes.
func DefaultFleet() FleetOptions {
	return FleetOptions{Sizes: []int{25, 50, 100}, Partition: time.Minute}
}

// ParseSizes reads numbers with commas between them.
func (o *FleetOptions) ParseSizes(text string) error {
	o.Sizes = nil
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 {
			return fmt.Errorf("%q is no number of agents", word)
		}
		o.Sizes = append(o.Sizes, n)
	}
	slices.Sort(o.Sizes)
	return nil
}

// Flags are the flags for what is not the default, with a blank in front of each.
func (o *FleetOptions) Flags() (flags string) {
	d := DefaultFleet()
	if !slices.Equal(o.Sizes, d.Sizes) {
		flags += " -fleet-sizes " + strings.Trim(strings.ReplaceAll(fmt.Sprint(o.Sizes), " ", ","), "[]")
	}
	if o.Partition != d.Partition {
		flags += " -fleet-partition " + o.Partition.String()
	}
	return flags
}

// What a fleet goes through.
const (
	fleetChanges = 5 * time.Second // how long they last
	// missedAfter is when an agent counts as one that has missed a change.
	missedAfter = 10 * time.Second
	// fleetPoll is the time between two looks at an agent, and so the error of a delay.
	fleetPoll = time.Millisecond
	// outagePoll is the same after an outage, when all agents are asked at once: it takes seconds, and the agents need the cores.
	outagePoll = 50 * time.Millisecond
	// batch is how many agents start at once where only bytes and CPU time count.
	batch = 4
	// calmAfter is how long a fleet is looked at once it is current again.
	calmAfter = 10 * time.Second
)

// cost is what something has cost, or the time that it took.
type cost struct {
	took     time.Duration
	cpu      time.Duration // of the API server
	received uint64        // by the agents, in bytes
	requests requestSecond
}

// steadyState is a fleet while slices change.
type steadyState struct {
	memory float64 // the API server's live memory in MiB
	idle   float64 // the API server's cores without changes
	cores  float64 // and with them
	cost   cost
	delays []time.Duration // from the API server's word that a change is made to an agent's answer, ascending
	missed int
	first  []time.Duration // from the first question for a Service to the answer, ascending
}

// outageRun is a fleet that has lost its API server.
type outageRun struct {
	event  string
	lasted time.Duration   // from the loss to the return
	series []requestSecond // from the loss on
	back   int             // the second of the return
	cost   cost            // from the return until all agents are current
	after  requestSecond   // in the seconds from then on
}

// FleetReport is what was found out about fleets.
type FleetReport struct {
	*harness.Report
	options FleetOptions
	shape   apiobjects.Shape
	alone   steadyState // without an agent
	starts  harness.Results[cost]
	steady  harness.Results[steadyState]
	// ways are the starts of one agent each, by the way that it starts, and different those of them after which an answer differs.
	ways      map[string][]cost
	different int
	compared  int
	outages   harness.Results[outageRun] // by kind and event
}

// MeasureFleet measures what fleets of agents cost an API server.
func MeasureFleet(ctx context.Context, p harness.Plan, services int, o FleetOptions) (*FleetReport, error) {
	b, err := harness.New(p, nil)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	b.Report.Facts, b.Report.Commit, b.Report.LoadBefore = machine.Describe(), harness.Commit(), machine.LoadAverage()
	shape := clusterSize(services).fleetShape()
	shape.Nodes = slices.Max(o.Sizes)
	out := &FleetReport{
		Report: b.Report, options: o, shape: shape, starts: harness.Results[cost]{}, steady: harness.Results[steadyState]{},
		ways: map[string][]cost{}, outages: harness.Results[outageRun]{},
	}
	run := &run{Run: b, size: clusterSize(services), out: &Report{Report: b.Report, fleetShape: shape}}
	t := &fleetTest{found: out}
	open := func(ctx context.Context) (err error) {
		t.testCluster, err = run.openTestCluster(ctx)
		return err
	}
	if err := b.Steps(ctx, open, t.measureAlone, t.measureSizes); err != nil {
		return nil, err
	}
	b.Report.Notes = append(b.Report.Notes, fmt.Sprintf("The machine's load average was %s before and %s after the run: what else ran made times longer, and CPU times a little.",
		b.Report.LoadBefore, machine.LoadAverage()))
	return out, nil
}

// fleetTest is a fleet in its cluster.
type fleetTest struct {
	*testCluster
	found   *FleetReport
	kind    agentKind
	members []*member
	log     *requestLog // of all members
	ended   uint64      // bytes that members have received that have ended
}

// cell is the place of a result of the present fleet.
func (t *fleetTest) cell() harness.Cell {
	return harness.Cell{Server: t.kind.name, Workload: strconv.Itoa(len(t.members))}
}

// measureAlone measures the API server without an agent.
func (t *fleetTest) measureAlone(ctx context.Context) (err error) {
	t.log = &requestLog{begun: time.Now()}
	t.found.alone, err = t.measureChanging(ctx)
	return err
}

// measureSizes measures all sizes of the fleet of the default kind, and the smallest of CoreDNS's: on two cores, 200 of these
// are not synced in the two minutes of [peer.Await].
func (t *fleetTest) measureSizes(ctx context.Context) error {
	sizes := t.found.options.Sizes
	for i, k := range agentKinds() {
		if k.name == byCluster || !t.Only.Server(harness.Server{Name: k.name}) {
			continue
		}
		if i > 0 {
			sizes = sizes[:1]
		}
		for _, n := range sizes {
			if err := t.measureFleet(ctx, k, n, n == slices.Max(sizes), i == 0); err != nil {
				return fmt.Errorf("measuring %d agents, %s: %w", n, k.name, err)
			}
		}
	}
	return nil
}

// measureFleet starts a fleet, measures it, and stops it.
func (t *fleetTest) measureFleet(ctx context.Context, k agentKind, n int, largest, saves bool) (err error) {
	t.kind, t.members, t.ended, t.log = k, nil, 0, &requestLog{begun: time.Now()}
	defer func() {
		var wg sync.WaitGroup
		for i, m := range t.members {
			wg.Go(func() {
				m.stop()
				_ = os.Remove(t.saveFile(i)) // the next fleet has none
			})
		}
		wg.Wait()
	}()
	steps := []func(context.Context) error{func(ctx context.Context) error { return t.startAll(ctx, n) }, t.measureSteady}
	if largest && saves {
		steps = append(steps, t.measureUpgrades, t.measureCrashes, t.measurePartition)
	}
	if largest {
		steps = append(steps, t.measureRestart)
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// start opens the agent of a node and runs it.
func (t *fleetTest) start(ctx context.Context, node int, save string) (*member, error) {
	common := filepath.Join(t.dir, "tapped.kubeconfig")
	through, err := openTap(t.API, common)
	if err != nil {
		return nil, err
	}
	m := &member{log: &requestLog{begun: time.Now()}, tap: through, ended: make(chan struct{})}
	m.options = agentOptions{node: node, save: save, wrap: func(next http.RoundTripper) http.RoundTripper { return t.log.wrap(m.log.wrap(next)) }}
	if m.options.kubeconfig, err = ownConnection(common, t.dir, node); err != nil {
		return nil, err
	}
	a, err := t.kind.open(m.options)
	if err != nil {
		return nil, err
	}
	m.shower = a.(shower) //nolint:forcetypeassert // all kinds are
	ctx, m.cancel = context.WithCancel(ctx)
	go func() {
		defer close(m.ended)
		m.Run(ctx)
	}()
	return m, nil
}

// saveFile is the file of an agent's saved view.
func (t *fleetTest) saveFile(node int) string {
	return filepath.Join(t.dir, fmt.Sprintf("view-%03d", node))
}

// startAll starts n agents at once.
func (t *fleetTest) startAll(ctx context.Context, n int) error {
	from, err := t.meter()
	if err != nil {
		return err
	}
	for i := range n {
		m, err := t.start(ctx, i, t.saveFile(i))
		if err != nil {
			return err
		}
		t.members = append(t.members, m)
	}
	err = peer.Await(ctx, "agents to be synced", func(context.Context) error {
		for i, m := range t.members {
			if !m.Synced() {
				return fmt.Errorf("agent %d is not synced", i)
			}
		}
		return nil
	})
	took := time.Since(from.at)
	if err == nil {
		err = t.awaitCalm(ctx)
	}
	if err != nil {
		return err
	}
	c, err := t.since(from)
	c.took = took
	t.found.starts[t.cell()] = []cost{c}
	fmt.Fprintf(t.Progress, "%d agents, %s, started: %s\n", n, t.kind.name, c)
	return err
}

// awaitCalm waits until the agents get nothing for a second, but for bookmarks: less than a hundredth of what they have got.
func (t *fleetTest) awaitCalm(ctx context.Context) error {
	rule := tapSettles.of(t.Plan)
	rule.part = 0.001
	_, err := rule.await(ctx, func() (float64, error) { return float64(t.received()), nil })
	return err
}

// received is how many bytes the members have received so far.
func (t *fleetTest) received() uint64 {
	sum := t.ended
	for _, m := range t.members {
		sum += m.tap.Read().Received
	}
	return sum
}

// meterReading is what the meters say at a moment.
type meterReading struct {
	at       time.Time
	cpu      time.Duration
	received uint64
	requests requestSecond
}

func (t *fleetTest) meter() (meterReading, error) {
	api, _ := t.API.Pids()
	cpu, err := machine.CPUClock(api)
	return meterReading{time.Now(), cpu, t.received(), t.log.total(0)}, err
}

// since is the cost since the meters were read.
func (t *fleetTest) since(from meterReading) (cost, error) {
	to, err := t.meter()
	r := to.requests
	r.requests -= from.requests.requests
	r.failed -= from.requests.failed
	r.lists -= from.requests.lists
	r.watching -= from.requests.watching
	return cost{to.at.Sub(from.at), to.cpu - from.cpu, to.received - from.received, r}, err
}

func (c cost) String() string {
	return fmt.Sprintf("%.2f s, %.2f s of CPU, %.1f MiB, %d requests (%d failed), %d lists", c.took.Seconds(), c.cpu.Seconds(), float64(c.received)/(1<<20),
		c.requests.requests, c.requests.failed, c.requests.lists)
}

// cores is how many cores the cost has kept busy.
func (c cost) cores() float64 { return c.cpu.Seconds() / c.took.Seconds() }

// measureSteady measures the fleet while slices change.
func (t *fleetTest) measureSteady(ctx context.Context) error {
	s, err := t.measureChanging(ctx)
	if err == nil {
		s.first, err = t.measureFirst(ctx)
	}
	t.found.steady[t.cell()] = []steadyState{s}
	return err
}

// measureFirst has each agent ask for a headless Service of a namespace that it does not use, one after the other while slices change, and returns how long the
// answers took. CoreDNS's watches have no answers.
func (t *fleetTest) measureFirst(ctx context.Context) (took []time.Duration, err error) {
	asked := make(chan error, 1)
	go func() {
		for _, m := range t.members {
			v, ok := m.shower.(*view)
			if !ok {
				break
			}
			uses := t.world.Uses(m.options.node)
			s := t.world.Sample(1, func(s apiobjects.Service) bool { return s.Headless && !slices.Contains(uses, s.Namespace) })[0]
			begun := time.Now()
			if err := v.await(ctx, s.Host()); err != nil {
				asked <- err
				return
			}
			took = append(took, time.Since(begun))
			if err := harness.Sleep(ctx, t.Wait(fleetChanges)/time.Duration(len(t.members))); err != nil {
				asked <- err
				return
			}
		}
		asked <- nil
	}()
	err = t.world.FollowSlices(ctx, int(t.Wait(fleetChanges).Seconds()*fleetChangeRate), fleetChangeRate, func(apiobjects.Change) error { return nil })
	err = errors.Join(err, <-asked)
	slices.Sort(took)
	fmt.Fprintf(t.Progress, "%d first questions, p50 %v, p99 %v\n", len(took), figures.Percentile(took, 0.5), figures.Percentile(took, 0.99))
	return took, err
}

// measureChanging measures the API server without and with changes of slices.
func (t *fleetTest) measureChanging(ctx context.Context) (s steadyState, err error) {
	if s.memory, err = t.gauge.liveMemory(ctx); err != nil {
		return s, err
	}
	s.memory /= 1 << 20
	if s.idle, err = t.idleCores(ctx); err != nil {
		return s, err
	}
	from, err := t.meter()
	if err != nil {
		return s, err
	}
	var mu sync.Mutex
	n := int(t.Wait(fleetChanges).Seconds() * fleetChangeRate)
	err = t.world.FollowSlices(ctx, n, fleetChangeRate, func(c apiobjects.Change) error {
		if !c.Of.Headless {
			return nil // no answer has these endpoints
		}
		delays, missed, err := t.awaitShown(ctx, c, fleetPoll)
		mu.Lock()
		defer mu.Unlock()
		s.delays, s.missed = append(s.delays, delays...), s.missed+missed
		return err
	})
	if err != nil {
		return s, err
	}
	if s.cost, err = t.since(from); err != nil {
		return s, err
	}
	s.cores = s.cost.cores()
	slices.Sort(s.delays)
	fmt.Fprintf(t.Progress, "%d agents, %s, %d changes: %s; %.2f cores (%.2f without), %.0f MiB, at most %v late, %d missed of %d\n", len(t.members), t.kind.name, n,
		s.cost, s.cores, s.idle, s.memory, s.longest(), s.missed, len(s.delays))
	return s, nil
}

func (s steadyState) longest() time.Duration {
	if len(s.delays) == 0 {
		return 0
	}
	return s.delays[len(s.delays)-1]
}

// idleCores is how many cores the API server keeps busy while nothing changes.
func (t *fleetTest) idleCores(ctx context.Context) (float64, error) {
	from, err := t.meter()
	if err != nil {
		return 0, err
	}
	if err := harness.Sleep(ctx, t.Wait(3*time.Second)); err != nil {
		return 0, err
	}
	c, err := t.since(from)
	return c.cores(), err
}

// follows says whether the agent watches what has changed.
func (t *fleetTest) follows(m *member, c apiobjects.Change) bool {
	return c.Qtype == dns.TypeSRV || t.kind.name != byNode || slices.Contains(t.world.Uses(m.options.node), c.Of.Namespace)
}

// awaitShown waits until all agents that watch the Service show the change, which it looks at once in poll, and returns how long
// each took from the API server's word that it is made, and how many do not show it in time.
func (t *fleetTest) awaitShown(ctx context.Context, c apiobjects.Change, poll time.Duration) (delays []time.Duration, missed int, err error) {
	var left []*member
	for _, m := range t.members {
		if t.follows(m, c) {
			left = append(left, m)
		}
	}
	for len(left) > 0 {
		left = slices.DeleteFunc(left, func(m *member) bool {
			if !m.shows(c) {
				return false
			}
			delays = append(delays, max(0, time.Since(c.Made)))
			return true
		})
		if time.Since(c.Made) > missedAfter+t.Patience() {
			return delays, len(left), nil
		}
		if err := harness.Sleep(ctx, poll); err != nil {
			return nil, 0, err
		}
	}
	return delays, 0, nil
}
