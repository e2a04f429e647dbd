package main

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
	"github.com/nodens-dns/nodens/test/bench/objects"
	"github.com/nodens-dns/nodens/test/loadgen"
)

// clusterSize is a number of Services; everything else is in proportion.
type clusterSize int

const (
	// defaultServices is the number of Services that the targets are about.
	defaultServices = 10000
	// minServices is enough for two namespaces and a headless Service.
	minServices = 40
)

// fleetShape is the cluster that the agents of a crowd watch, with two fifths of the
// Services, and has a node for each.
func (n clusterSize) fleetShape() objects.Shape {
	return objects.Crowd(max(minServices, int(n)*2/5), max(2, int(n)/100))
}

// changes is how many slices change while the bytes are counted.
func (n clusterSize) changes() int { return min(1000, max(50, int(n)/2)) }

// scaleReport is what was found out about a large cluster.
type scaleReport struct {
	*report
	size              clusterSize
	shape, fleetShape objects.Shape
	runs              map[string][]clusterRun // by server
	fleets            []fleet
}

// The rows of a large cluster.
const (
	byNode    = "nodens, scope node"
	byCluster = "nodens, scope cluster"
)

// scaleServers are the servers that follow a large cluster, with the same Corefile
// but for the scope.
func scaleServers() []server {
	where := []string{"NODE_NAME=" + objects.Node(0), "NODE_ZONE=" + objects.Zone(0)}
	return []server{
		{name: byNode, program: "nodens", conf: "scale", scope: "scope node", env: where},
		{name: byCluster, program: "nodens", conf: "scale", scope: "scope cluster", env: where},
		{name: coreDNS, program: "coredns", conf: "scale"},
	}
}

// scaleRun measures a large cluster.
type scaleRun struct {
	*Run
	size clusterSize
	out  *scaleReport
}

// measureScale measures what a large cluster costs. Nothing that it started runs
// when it returns.
func measureScale(ctx context.Context, p plan, services int) (*scaleReport, error) {
	b, err := New(p, scaleServers())
	if err != nil {
		return nil, err
	}
	defer b.close()
	b.cluster = true
	size := clusterSize(services)
	run := &scaleRun{b, size, &scaleReport{report: b.report, size: size, shape: objects.Large(services), fleetShape: size.fleetShape(), runs: map[string][]clusterRun{}}}
	for _, step := range []func(context.Context) error{b.build, run.measureServers, run.measureFleets} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	b.report.noteBusyCore()
	b.report.fact("load average", b.report.loadBefore+" before, "+loadAverage()+" after")
	return run.out, nil
}

// startCluster starts an API server in a folder of its own and writes the cluster; the
// caller closes the server.
func (b *scaleRun) startCluster(ctx context.Context, name string, shape objects.Shape) (*apiserver.Server, *objects.World, error) {
	dir := filepath.Join(b.dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, err
	}
	api, err := apiserver.Open(ctx, dir)
	if err != nil {
		return nil, nil, err
	}
	fmt.Fprintf(b.progress, "writing a cluster of %d Services and %d endpoints\n", len(shape.Services()), shape.Endpoints())
	start := time.Now()
	client, err := objects.Client(api.Config(apiserver.Admin))
	if err != nil {
		api.Close()
		return nil, nil, err
	}
	w, err := objects.Write(ctx, client, shape)
	if err != nil {
		api.Close()
		return nil, nil, err
	}
	took := time.Since(start)
	service, plain, headless := w.Sizes()
	b.report.fact("the cluster "+name, fmt.Sprintf("%d objects, written in %.0f s; in protobuf a Service has %d bytes, the slice of one with a cluster IP %d, a headless one's %d",
		w.Objects(), took.Seconds(), service, plain, headless))
	fmt.Fprintf(b.progress, "%d objects written in %.0f s\n", w.Objects(), took.Seconds())
	return api, w, nil
}

// scaleWorkloads are the questions about a large cluster, and those about the cache
// that they are compared with, all at saturation.
func scaleWorkloads(s objects.Shape) []workload {
	used := s.Uses(0)
	within := func(svc objects.Service) bool { return slices.Contains(used, svc.Namespace) }
	hosts := func(wanted func(objects.Service) bool, prefix string) []string {
		var list []string
		for _, svc := range s.Sample(nameCount, wanted) {
			list = append(list, prefix+svc.Host())
		}
		return list
	}
	plain := func(svc objects.Service) bool { return !svc.Headless }
	ten := func(svc objects.Service) bool { return svc.Headless && svc.Endpoints == 10 && within(svc) }
	many := func(svc objects.Service) bool { return svc.Headless && svc.Endpoints == s.Members && within(svc) }
	var list []workload
	for _, q := range []querySet{
		querySets[0], querySets[1],
		{name: cachedTen, pattern: "name-%04d." + loadgen.Ten, qtype: dns.TypeA, rcode: dns.RcodeSuccess,
			what: "Names of the upstream's with ten addresses, in the cache."},
		{name: serviceA, names: hosts(plain, ""), qtype: dns.TypeA, rcode: dns.RcodeSuccess, cluster: true,
			what: "Services with a cluster IP, of all namespaces."},
		{name: headlessTen, names: hosts(ten, ""), qtype: dns.TypeA, rcode: dns.RcodeSuccess, cluster: true,
			what: "Headless Services with ten endpoints, in the namespaces that the node uses."},
		{name: headlessFifty, names: hosts(many, ""), qtype: dns.TypeA, rcode: dns.RcodeSuccess, cluster: true, edns: true,
			what: "Headless Services with " + strconv.Itoa(s.Members) + " endpoints, in the namespaces that the node uses. The questions have EDNS, so that the answer fits."},
		{name: clusterGone, names: hosts(plain, "no-"), qtype: dns.TypeA, rcode: dns.RcodeNameError, cluster: true,
			what: "Services that do not exist, of all namespaces."},
	} {
		list = append(list, workload{q, loadShapes[0], q.name + ", " + loadShapes[0].name})
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
func (b *scaleRun) measureServers(ctx context.Context) error {
	if !b.only.matchesName("residents") {
		return nil
	}
	h, err := b.openSetup(ctx)
	if err != nil {
		return err
	}
	for n := range b.plan.rounds {
		for _, s := range b.report.servers {
			st, err := h.measure(ctx, s)
			if err != nil {
				return fmt.Errorf("measuring %s in a large cluster: %w", s.name, err)
			}
			b.out.runs[s.name] = append(b.out.runs[s.name], st)
			fmt.Fprintf(b.progress, "round %d of %d, %s: %s\n", n+1, b.plan.rounds, s.name, st)
			if st.rate < minChangeRate*changeRate {
				b.report.notes = append(b.report.notes, fmt.Sprintf("In round %d only %.0f objects a second changed for %s: the delays are those of that rate.", n+1, st.rate, s.name))
			}
		}
	}
	return nil
}

// openSetup starts what a stay takes.
func (b *scaleRun) openSetup(ctx context.Context) (*setup, error) {
	shape := b.out.shape
	for _, w := range scaleWorkloads(shape) {
		if b.only.workload(w) {
			b.workloads = append(b.workloads, w)
		}
	}
	var err error
	if b.loop, b.stream, err = startUpstream(); err != nil {
		return nil, err
	}
	var w *objects.World
	if b.api, w, err = b.startCluster(ctx, "of one agent", shape); err != nil {
		return nil, err
	}
	if err := b.writeQueries(); err != nil {
		return nil, err
	}
	return newSetup(ctx, b, w)
}

// pinAll pins this process, the API server and etcd to the cores.
func (b *scaleRun) pinAll(on cores) error {
	api, etcd := b.api.Pids()
	for _, pid := range []string{"self", strconv.Itoa(api), strconv.Itoa(etcd)} {
		if err := pin(pid, on); err != nil {
			return err
		}
	}
	return nil
}

// minChangeRate is the part of the rate of changes below which the report says so.
const minChangeRate = 0.9
