// Package scale measures the section about a large cluster: what it costs a server to follow ten
// thousand Services in a real API server, and what that costs the API server. It measures memory,
// bytes and watches, the time from a change to the answer that shows it, the CPU time of answers
// from the view, and a hundred agents at once.
package scale

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/bench/apiobjects"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/rig/load"
)

// clusterSize is a number of Services; everything else is in proportion.
type clusterSize int

const (
	// DefaultServices is the number of Services that the targets are about.
	DefaultServices = 10000
	// MinServices is enough for two namespaces and a headless Service.
	MinServices = 40
)

// fleetShape is the cluster that the agents of a fleet watch, with two fifths of the
// Services, and has a node for each.
func (n clusterSize) fleetShape() apiobjects.Shape {
	return apiobjects.FleetCluster(max(MinServices, int(n)*2/5), max(2, int(n)/100))
}

// changes is how many slices change while the bytes are counted.
func (n clusterSize) changes() int { return min(1000, max(50, int(n)/2)) }

// shapes returns the clusters of one agent and of the fleets. In the short form they are one.
func (n clusterSize) shapes(short bool) (one, fleets apiobjects.Shape) {
	one, fleets = apiobjects.LargeCluster(int(n)), n.fleetShape()
	if short {
		one.Nodes = fleets.Nodes
		fleets = one
	}
	return one, fleets
}

// Report is what was found out about a large cluster.
type Report struct {
	*harness.Report
	size              clusterSize
	shape, fleetShape apiobjects.Shape
	runs              harness.Results[clusterRun] // by server
	fleets            []fleet
}

// The rows of a large cluster.
const (
	byNode    = "nodens, scope node"
	byCluster = "nodens, scope cluster"
)

// scaleServers are the servers that follow a large cluster, with the same Corefile
// but for the scope.
func scaleServers() []harness.Server {
	where := []string{"NODE_NAME=" + apiobjects.Node(0), "NODE_ZONE=" + apiobjects.Zone(0)}
	return []harness.Server{
		{Name: byNode, Program: "nodens", Conf: "scale", Scope: "scope node", Env: where},
		{Name: byCluster, Program: "nodens", Conf: "scale", Scope: "scope cluster", Env: where},
		{Name: harness.CoreDNS, Program: "coredns", Conf: "scale"},
	}
}

// run measures a large cluster.
type run struct {
	*harness.Run
	size  clusterSize
	out   *Report
	world *apiobjects.World // the API server's objects
}

// Measure measures what a large cluster costs. Nothing that it started runs
// when it returns.
func Measure(ctx context.Context, p harness.Plan, services int) (*Report, error) {
	b, err := harness.New(p, scaleServers())
	if err != nil {
		return nil, err
	}
	defer b.Close()
	b.Cluster = true
	size := clusterSize(services)
	run := &run{Run: b, size: size, out: &Report{Report: b.Report, size: size, runs: harness.Results[clusterRun]{}}}
	run.out.shape, run.out.fleetShape = size.shapes(p.Short)
	if err := b.Steps(ctx, b.Build, run.measureServers, run.measureFleets); err != nil {
		return nil, err
	}
	b.Report.NoteBusyCore()
	return run.out, nil
}

// startCluster starts an API server in a folder of its own and writes the cluster; the
// caller closes the server, which gets the options.
func (b *run) startCluster(ctx context.Context, name string, shape apiobjects.Shape, options ...string) (*apiserver.Server, *apiobjects.World, error) {
	dir := filepath.Join(b.Dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, err
	}
	api, err := apiserver.Open(ctx, dir, options...)
	if err != nil {
		return nil, nil, err
	}
	fmt.Fprintf(b.Progress, "writing a cluster of %d Services and %d endpoints\n", len(shape.Services()), shape.Endpoints())
	start := time.Now()
	client, err := apiobjects.Client(api.Config(apiserver.Admin))
	if err != nil {
		api.Close()
		return nil, nil, err
	}
	w, err := apiobjects.Write(ctx, client, shape)
	if err != nil {
		api.Close()
		return nil, nil, err
	}
	took := time.Since(start)
	service, plain, headless := w.Sizes()
	b.Report.Fact("the cluster "+name, fmt.Sprintf("%d objects, written in %.0f s; in protobuf a Service has %d bytes, the slice of one with a cluster IP %d, a headless one's %d",
		w.Objects(), took.Seconds(), service, plain, headless))
	fmt.Fprintf(b.Progress, "%d objects written in %.0f s\n", w.Objects(), took.Seconds())
	return api, w, nil
}

// scaleWorkloads are the questions about a large cluster, and those about the cache
// that they are compared with, all at saturation.
func scaleWorkloads(s apiobjects.Shape) []harness.Workload {
	used := s.Uses(0)
	within := func(svc apiobjects.Service) bool { return slices.Contains(used, svc.Namespace) }
	hosts := func(wanted func(apiobjects.Service) bool, prefix string) []string {
		var list []string
		for _, svc := range s.Sample(harness.NameCount, wanted) {
			list = append(list, prefix+svc.Host())
		}
		return list
	}
	plain := func(svc apiobjects.Service) bool { return !svc.Headless }
	ten := func(svc apiobjects.Service) bool { return svc.Headless && svc.Endpoints == 10 && within(svc) }
	many := func(svc apiobjects.Service) bool {
		return svc.Headless && svc.Endpoints == s.EndpointsPerHeadless && within(svc)
	}
	var list []harness.Workload
	for _, q := range []harness.QuerySet{
		harness.QuerySets[0], harness.QuerySets[1],
		{Name: cachedTen, Pattern: "name-%04d." + load.Ten, Qtype: dns.TypeA, Rcode: dns.RcodeSuccess,
			What: "Names of the upstream with ten addresses, in the cache."},
		{Name: serviceA, Names: hosts(plain, ""), Qtype: dns.TypeA, Rcode: dns.RcodeSuccess, Cluster: true,
			What: "Services with a cluster IP, of all namespaces."},
		{Name: headlessTen, Names: hosts(ten, ""), Qtype: dns.TypeA, Rcode: dns.RcodeSuccess, Cluster: true,
			What: "Headless Services with ten endpoints, in the namespaces that the node uses."},
		{Name: headlessFifty, Names: hosts(many, ""), Qtype: dns.TypeA, Rcode: dns.RcodeSuccess, Cluster: true, Edns: true,
			What: "Headless Services with " + strconv.Itoa(s.EndpointsPerHeadless) + " endpoints, in the namespaces that the node uses. The queries have EDNS, so that the answer fits."},
		{Name: clusterGone, Names: hosts(plain, "no-"), Qtype: dns.TypeA, Rcode: dns.RcodeNameError, Cluster: true,
			What: "Services that do not exist, of all namespaces."},
	} {
		list = append(list, harness.Workload{QuerySet: q, LoadShape: harness.LoadShapes[0], Name: q.Name + ", " + harness.LoadShapes[0].Name})
	}
	return list
}

// The sets of questions about a large cluster.
const (
	cachedTen     = "cached A of 10"
	serviceA      = "Service A, uncached"
	headlessTen   = "headless A of 10"
	headlessFifty = "headless A of 50"
	clusterGone   = "cluster NXDOMAIN, uncached"
)

// measureServers measures every server in turn, again and again, each in a process of its
// own, while no other runs.
func (b *run) measureServers(ctx context.Context) error {
	if !b.Only.MatchesName("residents") {
		return nil
	}
	h, err := b.openSetup(ctx)
	if err != nil {
		return err
	}
	for n := range b.Plan.Rounds {
		for _, s := range b.Report.Servers {
			st, err := h.measure(ctx, s)
			if err != nil {
				return fmt.Errorf("measuring %s in a large cluster: %w", s.Name, err)
			}
			at := harness.Cell{Server: s.Name}
			b.out.runs[at] = append(b.out.runs[at], st)
			fmt.Fprintf(b.Progress, "round %d of %d, %s: %s\n", n+1, b.Plan.Rounds, s.Name, st)
			if st.rate < minChangeRate*changeRate {
				b.Report.Notes = append(b.Report.Notes, fmt.Sprintf("In round %d only %.0f objects a second changed for %s: the delays are those of that rate.", n+1, st.rate, s.Name))
			}
		}
	}
	return nil
}

// openSetup starts what a run needs.
func (b *run) openSetup(ctx context.Context) (*setup, error) {
	shape := b.out.shape
	b.Choose(scaleWorkloads(shape))
	var err error
	if b.Loop, b.Stream, err = harness.StartUpstream(); err != nil {
		return nil, err
	}
	if b.API, b.world, err = b.startCluster(ctx, "of one agent", shape); err != nil {
		return nil, err
	}
	if err := b.WriteQueries(); err != nil {
		return nil, err
	}
	return newSetup(ctx, b)
}

// pinAll pins this process, the API server and etcd to the cores.
func (b *run) pinAll(on machine.Cores) error {
	api, etcd := b.API.Pids()
	for _, pid := range []string{"self", strconv.Itoa(api), strconv.Itoa(etcd)} {
		if err := machine.Pin(pid, on); err != nil {
			return err
		}
	}
	return nil
}

// minChangeRate is the part of the rate of changes below which the report says so.
const minChangeRate = 0.9
