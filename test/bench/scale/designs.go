package scale

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodens-dns/nodens/test/bench/apiobjects"
	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/bench/wiretap"
)

// watchDesign is a way to watch the EndpointSlices that a node needs.
type watchDesign struct {
	name, what string
	// slices returns the watches of slices; nil is none. With more wants, one of all namespaces stays at its place, and
	// those of single namespaces are appended.
	slices func(w wants) []sliceWatch
	// times is how often each agent opens these watches, so that the costs of one stand out; 0 is once.
	times int
}

// copies is how often agents open the watches more than once.
func (d watchDesign) copies() int { return max(d.times, 1) - 1 }

// wants is what the pods of a node want: the namespaces that they live in, and headless Services in these that they
// ask for. all are all Services of the cluster.
type wants struct {
	namespaces []string
	asked      []apiobjects.Service
	all        []apiobjects.Service
}

// with returns w and a Service that is asked for, with its namespace.
func (w wants) with(s apiobjects.Service) wants {
	w.asked = append(slices.Clip(w.asked), s)
	if !slices.Contains(w.namespaces, s.Namespace) {
		w.namespaces = append(slices.Clip(w.namespaces), s.Namespace)
	}
	return w
}

// headless returns the headless Services of the namespaces.
func (w wants) headless() []apiobjects.Service {
	return slices.DeleteFunc(slices.Clone(w.all), func(s apiobjects.Service) bool { return !s.Headless || !slices.Contains(w.namespaces, s.Namespace) })
}

// others returns the namespaces in which nothing is wanted.
func (w wants) others() []string {
	return slices.DeleteFunc(namespacesOf(w.all), func(ns string) bool { return slices.Contains(w.namespaces, ns) })
}

// namespacesOf returns the namespaces of the Services, in order.
func namespacesOf(services []apiobjects.Service) (list []string) {
	for _, s := range services {
		list = append(list, s.Namespace)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// The designs that others are compared with.
const (
	noSlices     = "no slices"
	perNamespace = "a watch per namespace"
	askedNames   = "one watch, names asked for"
)

// notController selects the slices that neither have the label of headless Services nor are the slice controller's.
const notController = "!" + corev1.IsHeadlessService + "," + discoveryv1.LabelManagedBy + "!=endpointslice-controller.k8s.io"

// watchDesigns are the rows of the tables. The first is what is subtracted from the others.
func watchDesigns() []watchDesign {
	return []watchDesign{
		{name: noSlices, what: "no EndpointSlices", slices: func(wants) []sliceWatch { return nil }},
		{name: perNamespace, what: "all slices of each namespace in use, as `scope node`", slices: each("")},
		{times: 2, name: perNamespace + ", headless", what: "the same with the label `service.kubernetes.io/headless`", slices: each(corev1.IsHeadlessService)},
		{times: 10, name: askedNames, what: "the label selector `kubernetes.io/service-name in (…)` of the headless Services that the node's pods ask for",
			slices: func(w wants) []sliceWatch { return []sliceWatch{{labels: named(w.asked)}} }},
		{times: 10, name: "one watch, names of the namespaces", what: "the same of all headless Services of the namespaces in use",
			slices: func(w wants) []sliceWatch { return []sliceWatch{{labels: named(w.headless())}} }},
		{name: "headless slices of the cluster", what: "two watches by label, as `scope cluster`",
			slices: func(wants) []sliceWatch {
				return []sliceWatch{{labels: corev1.IsHeadlessService}, {labels: notController}}
			}},
		{times: 3, name: "field selector", what: "one watch with `metadata.namespace!=…` for each namespace not in use",
			slices: func(w wants) []sliceWatch {
				return []sliceWatch{{fields: "metadata.namespace!=" + strings.Join(w.others(), ",metadata.namespace!=")}}
			}},
		{times: 3, name: "shards", what: "one watch with the `shardSelector` of KEP-5866: a range for the hash of each namespace in use",
			slices: func(w wants) []sliceWatch { return []sliceWatch{{shards: shardsOf(w.namespaces)}} }},
		{times: 10, name: "shards, headless", what: "the same with the label `service.kubernetes.io/headless`",
			slices: func(w wants) []sliceWatch {
				return []sliceWatch{{labels: corev1.IsHeadlessService, shards: shardsOf(w.namespaces)}}
			}},
		{name: harness.CoreDNS, what: "all slices",
			slices: func(wants) []sliceWatch { return []sliceWatch{{}} }},
	}
}

// each returns a watch for each namespace.
func each(labels string) func(wants) []sliceWatch {
	return func(w wants) (list []sliceWatch) {
		for _, ns := range w.namespaces {
			list = append(list, sliceWatch{namespace: ns, labels: labels})
		}
		return list
	}
}

// named returns the label selector for the Services' slices.
func named(services []apiobjects.Service) string {
	var names []string
	for _, s := range services {
		names = append(names, s.Name)
	}
	return discoveryv1.LabelServiceName + " in (" + strings.Join(names, ",") + ")"
}

// shardsOf returns the shard selector for the namespaces.
func shardsOf(namespaces []string) string {
	var list []string
	for _, ns := range namespaces {
		h := fnv.New64a()
		h.Write([]byte(ns))
		// No namespace's hash is the greatest one, whose range would end at 2^64.
		list = append(list, fmt.Sprintf("shardRange(object.metadata.namespace, '0x%016x', '0x%016x')", h.Sum64(), h.Sum64()+1))
	}
	return strings.Join(list, " || ")
}

// The designs are measured with a quarter of the agents, and with all.
const fewAgents = 4

// DesignReport is what was found out about the ways to watch.
type DesignReport struct {
	*harness.Report
	shape  apiobjects.Shape
	agents []int                      // the numbers of agents
	runs   harness.Results[designRun] // by design, and the number of agents as the workload
	lists  harness.Results[listRun]   // by form
}

// designRuns measures the designs.
type designRuns struct {
	*testCluster
	out    *DesignReport
	tap    *wiretap.Tap
	agents []*designAgent // each with its watches of all but slices
	base   designRun      // what these cost
	all    []apiobjects.Service
	// unused are Services with a cluster IP in the namespaces that no node uses, spare headless ones there, and asked
	// those that nodes ask for.
	unused, spare, asked []apiobjects.Service
}

// MeasureDesigns measures ways to watch EndpointSlices, and to list Services. Nothing that it started runs when it
// returns.
func MeasureDesigns(ctx context.Context, p harness.Plan, services int) (*DesignReport, error) {
	if p.Before != "" {
		return nil, errors.New("-designs has no -before: the API server is measured")
	}
	b, err := harness.New(p, nil)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	b.Report.Facts, b.Report.Commit, b.Report.LoadBefore = machine.Describe(), harness.Commit(), machine.LoadAverage()
	size := clusterSize(services)
	run := &run{Run: b, size: size, out: &Report{Report: b.Report, size: size, fleetShape: size.fleetShape()}}
	d := &designRuns{out: &DesignReport{Report: b.Report, shape: run.out.fleetShape, runs: harness.Results[designRun]{}, lists: harness.Results[listRun]{}}}
	if d.testCluster, err = run.openTestCluster(ctx, "--feature-gates=ShardedListAndWatch=true"); err != nil {
		return nil, err
	}
	d.choose()
	return d.out, d.withAgents(ctx, func(ctx context.Context) error {
		for n := range p.Rounds {
			start := time.Now()
			if err := d.round(ctx); err != nil {
				return err
			}
			if err := d.measureLists(ctx); err != nil {
				return err
			}
			fmt.Fprintf(p.Progress, "round %d of %d took %.0f s\n", n+1, p.Rounds, time.Since(start).Seconds())
		}
		b.Report.NoteLoad()
		return nil
	})
}

// withAgents starts all agents, without slices, calls measure, and stops them.
func (d *designRuns) withAgents(ctx context.Context, measure func(context.Context) error) (err error) {
	file := filepath.Join(d.dir, "designs.kubeconfig")
	if d.tap, err = openTap(d.API, file); err != nil {
		return err
	}
	defer d.tap.Close()
	empty, err := d.gauge.liveMemory(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	kind := agentKind{name: noSlices, open: func(o agentOptions) (agent, error) {
		a, err := openAgent(o.kubeconfig, o.node)
		d.agents = append(d.agents, a)
		return a, err
	}}
	n := d.world.Nodes
	for first := 0; first < n; first += startedAtOnce {
		if err := d.startAgents(ctx, &wg, kind, file, first, min(first+startedAtOnce, n)); err != nil {
			return err
		}
	}
	full, err := d.gauge.liveMemory(ctx)
	if err != nil {
		return err
	}
	d.base.memory, d.base.firstKiB = mebiEach(full-empty, n), figures.Kibi(d.tap.Read().Received)/float64(n)
	fmt.Fprintf(d.Progress, "%d agents without slices: %.3f MiB, %.0f KiB first\n", n, d.base.memory, d.base.firstKiB)
	return measure(ctx)
}

// mebiEach is the part of each of n, in MiB.
func mebiEach(bytes float64, n int) float64 { return bytes / (1 << 20) / float64(n) }

// choose chooses the Services that are changed and asked for. Nodes use the first half of the namespaces.
func (d *designRuns) choose() {
	d.all = d.world.Services()
	spaces := namespacesOf(d.all)
	used := spaces[:len(spaces)/2]
	have := map[string]bool{}
	for _, s := range d.all {
		switch inUse := slices.Contains(used, s.Namespace); {
		case !inUse && s.Headless:
			d.spare = append(d.spare, s)
		case !inUse:
			d.unused = append(d.unused, s)
		case s.Headless && !have[s.Namespace]:
			have[s.Namespace] = true
			d.asked = append(d.asked, s)
		}
	}
	d.out.agents = []int{max(1, d.world.Nodes/fewAgents), d.world.Nodes}
}

// wantsOf returns what the pods of a node want: one headless Service of each of its namespaces.
func (d *designRuns) wantsOf(node int) wants {
	w := wants{all: d.all}
	for i := range d.out.shape.UsedNamespaces {
		w = w.with(d.asked[(node*d.out.shape.UsedNamespaces+i)%len(d.asked)])
	}
	return w
}
