package scale

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/bench/wiretap"
	"github.com/nodens-dns/nodens/test/peer"
)

// agent is one of a fleet.
type agent interface {
	Run(ctx context.Context)
	Synced() bool
}

// agentKind is a kind of agents.
type agentKind struct {
	name string
	// what is what they watch.
	what string
	// open makes one that reads the kubeconfig file and is of the node.
	open func(agentOptions) (agent, error)
}

// agentOptions are what an agent gets.
type agentOptions struct {
	kubeconfig string
	node       int
	save       string                // the file of its saved view; empty is none
	wrap       transport.WrapperFunc // of its transport; nil is none
}

// agentKinds are the rows of the table of fleets.
func agentKinds() []agentKind {
	view := func(scope config.Scope) func(agentOptions) (agent, error) {
		return func(o agentOptions) (agent, error) { return openView(scope, o) }
	}
	return []agentKind{
		{byNode, "all Services, slices of the Services in use, namespaces as metadata, this node's pods", view(config.ScopeNode)},
		{byCluster, "all Services, headless slices by label, slices that are not the slice controller's, namespaces as metadata", view(config.ScopeCluster)},
		{harness.CoreDNS, "all Services, all slices, namespaces", openWatches},
	}
}

// fleet is what agents of one kind cost, each of them.
type fleet struct {
	kind   string
	agents int
	// watches is how many one has open, and conns how many connections.
	watches, conns float64
	// firstKiB is what one agent receives until it is synced, changeKiB what it receives for
	// 1,000 changes, in KiB.
	firstKiB, changeKiB float64
	// cpu is the API server's time for a change and an agent, in microseconds, and
	// memory what it has in use for one, in MiB.
	cpu, memory figures.Spread
}

func (c fleet) String() string {
	return fmt.Sprintf("%.0f watches over %.1f connections, %.0f KiB first, %.0f KiB for 1,000 changes, %.1f µs for a change, %.2f MiB", c.watches, c.conns, c.firstKiB, c.changeKiB, c.cpu.Median, c.memory.Median)
}

// The changes come at a rate at which a hundred agents of the most expensive kind
// keep up on one core of this process.
const (
	sliceRate = 50
	// startedAtOnce is how many agents are on their first list at once; a hundred would
	// hold a hundred copies of it.
	startedAtOnce = 4
)

// testCluster is the cluster that fleets watch.
type testCluster struct {
	*run
	gauge apiserverMetrics
	dir   string
	// before is how many watches the API server has of its own.
	before float64
}

// measureFleets measures what many agents cost the API server, kind by kind. Between them
// the same changes are made with no agent, for comparison.
func (b *run) measureFleets(ctx context.Context) error {
	if !b.Only.MatchesName("agents") {
		return nil
	}
	t, err := b.openTestCluster(ctx)
	if err != nil {
		return err
	}
	alone, err := t.costWithoutAgents(ctx)
	if err != nil {
		return err
	}
	for _, k := range agentKinds() {
		if !b.Only.Server(harness.Server{Name: k.name}) {
			continue
		}
		c, costs, err := t.measure(ctx, k)
		if err != nil {
			return fmt.Errorf("measuring %d agents, %s: %w", t.world.Nodes, k.name, err)
		}
		next, err := t.costWithoutAgents(ctx)
		if err != nil {
			return err
		}
		c.cpu = perAgent(costs, (alone+next)/2, c.agents)
		alone = next
		b.out.fleets = append(b.out.fleets, c)
		fmt.Fprintf(b.Progress, "%d agents, %s: %s\n", c.agents, c.kind, c)
	}
	return nil
}

// openTestCluster replaces the cluster, if there is one, by the fleets' cluster, whose API server gets the options.
func (b *run) openTestCluster(ctx context.Context, options ...string) (*testCluster, error) {
	if b.API != nil && !b.Short {
		b.API.Close()
		b.API = nil
	}
	if b.API == nil {
		var err error
		if b.API, b.world, err = b.startCluster(ctx, "of the fleets", b.out.fleetShape, options...); err != nil {
			return nil, err
		}
	}
	client, err := b.API.Client()
	if err != nil {
		return nil, err
	}
	t := &testCluster{run: b, gauge: apiserverMetrics{client, b.Plan}, dir: b.Dir}
	t.before, err = t.gauge.settledWatches(ctx)
	return t, err
}

// perAgent is what is left of each cost without that of no agents, for each of n.
func perAgent(costs []float64, alone float64, n int) figures.Spread {
	each := make([]float64, len(costs))
	for i, c := range costs {
		each[i] = (c - alone) / float64(n)
	}
	return figures.SpreadOf(each)
}

// costWithoutAgents is the API server's time for a change while no agent watches, in
// microseconds.
func (t *testCluster) costWithoutAgents(ctx context.Context) (float64, error) {
	if _, err := t.gauge.settledWatches(ctx); err != nil {
		return 0, err
	}
	cost, err := t.changeSlices(ctx, nil)
	fmt.Fprintf(t.Progress, "without agents: %.0f µs for a change\n", cost)
	return cost, err
}

// changeSlices makes changes and returns the API server's time for one, in microseconds.
// It waits until the tap, if there is one, has nothing more to pass on.
func (t *testCluster) changeSlices(ctx context.Context, through *wiretap.Tap) (float64, error) {
	api, _ := t.API.Pids()
	n := t.Number(t.size.changes())
	before, err := machine.CPUClock(api)
	if err != nil {
		return 0, err
	}
	if err := t.world.ChangeSlices(ctx, n, sliceRate); err != nil {
		return 0, err
	}
	if through != nil {
		if _, err := awaitQuiet(ctx, t.Plan, through); err != nil {
			return 0, err
		}
	} else if err := harness.Sleep(ctx, tapSettles.of(t.Plan).length()); err != nil {
		return 0, err // as long as the wait with agents takes
	}
	after, err := machine.CPUClock(api)
	return float64((after - before).Nanoseconds()) / 1e3 / float64(n), err
}

// measure starts the agents of a kind, measures them and stops them. costs is the API server's
// CPU time per change in microseconds, one value per round.
func (t *testCluster) measure(ctx context.Context, k agentKind) (c fleet, costs []float64, err error) {
	c = fleet{kind: k.name, agents: t.world.Nodes}
	empty, err := t.gauge.liveMemory(ctx)
	if err != nil {
		return c, nil, err
	}
	file := filepath.Join(t.dir, "fleet.kubeconfig")
	through, err := openTap(t.API, file)
	if err != nil {
		return c, nil, err
	}
	defer through.Close()
	inside, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for first := 0; first < c.agents; first += startedAtOnce {
		if err := t.startAgents(inside, &wg, k, file, first, min(first+startedAtOnce, c.agents)); err != nil {
			return c, nil, err
		}
	}
	if err := t.measureSynced(ctx, through, empty, &c); err != nil {
		return c, nil, err
	}
	costs, err = t.measureChanges(ctx, through, &c)
	return c, costs, err
}

// measureSynced measures what there is once all agents are in; empty is the API server's live
// memory before.
func (t *testCluster) measureSynced(ctx context.Context, through *wiretap.Tap, empty float64, c *fleet) error {
	n := float64(c.agents)
	open, err := t.gauge.settledWatches(ctx)
	if err != nil {
		return err
	}
	count, err := awaitQuiet(ctx, t.Plan, through)
	if err != nil {
		return err
	}
	full, err := t.gauge.liveMemory(ctx)
	if err != nil {
		return err
	}
	c.watches, c.firstKiB = (open-t.before)/n, figures.Kibi(count.Received)/n
	c.conns = float64(through.Open()) / n
	c.memory = figures.SpreadOf([]float64{(full - empty) / (1 << 20) / n})
	return nil
}

// measureChanges makes changes while the agents watch.
func (t *testCluster) measureChanges(ctx context.Context, through *wiretap.Tap, c *fleet) (costs []float64, err error) {
	before := through.Read()
	for range t.changeRounds() {
		cost, err := t.changeSlices(ctx, through)
		if err != nil {
			return nil, err
		}
		costs = append(costs, cost)
	}
	news := through.Read().Sub(before)
	c.changeKiB = figures.Kibi(news.Received) * 1000 / float64(c.agents*len(costs)*t.Number(t.size.changes()))
	if news.Conns > 0 {
		t.Report.Notes = append(t.Report.Notes, fmt.Sprintf("Of %d agents (%s), %d connections were opened anew while changes were made.", c.agents, c.kind, news.Conns))
	}
	return costs, nil
}

// changeRounds is how often changes are made: every one takes 20 seconds.
func (t *testCluster) changeRounds() int { return min(t.Plan.Rounds, 2) }

// startAgents starts the agents from first until end and waits until they are synced.
func (t *testCluster) startAgents(ctx context.Context, wg *sync.WaitGroup, k agentKind, file string, first, end int) error {
	var list []agent
	for i := first; i < end; i++ {
		own, err := ownConnection(file, t.dir, i)
		if err != nil {
			return err
		}
		a, err := k.open(agentOptions{kubeconfig: own, node: i})
		if err != nil {
			return err
		}
		list = append(list, a)
		wg.Go(func() { a.Run(ctx) })
	}
	return peer.Await(ctx, "agents to be synced", func(context.Context) error {
		for i, a := range list {
			if !a.Synced() {
				return fmt.Errorf("agent %d of %s is not synced", first+i, k.name)
			}
		}
		return nil
	})
}

// ownConnection writes a copy of the kubeconfig file for the agent with the number
// i, with a copy of the authority's certificate that has the number in front:
// client-go lets clients with the same bytes there share a connection, and agents on
// different nodes don't.
func ownConnection(file, dir string, i int) (string, error) {
	c, err := clientcmd.LoadFromFile(file)
	if err != nil {
		return "", err
	}
	for _, cluster := range c.Clusters {
		ca, err := os.ReadFile(cluster.CertificateAuthority)
		if err != nil {
			return "", err
		}
		var b bytes.Buffer
		fmt.Fprintf(&b, "agent %d\n%s", i, ca)
		cluster.CertificateAuthority, cluster.CertificateAuthorityData = "", b.Bytes()
	}
	path := filepath.Join(dir, fmt.Sprintf("agent-%03d.kubeconfig", i))
	return path, clientcmd.WriteToFile(*c, path)
}
