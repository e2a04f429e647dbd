package attribution

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/nodens-dns/nodens/test/node/testbed"
	"github.com/nodens-dns/nodens/test/soak"
)

// TestMain raises the priority: a round has a minute, see maxRound.
func TestMain(m *testing.M) {
	testbed.RaisePriority()
	testbed.AllowParallel()
	m.Run()
}

// way is a way in which an address goes from one pod to the next.
type way struct {
	name string
	// onlyKernel: only with the kernel path the agent knows that the old pod has gone.
	onlyKernel bool
	// stays: the pod keeps its address.
	stays bool
	// unannounced: the API server shows the old pod as running until the new one has its address. Otherwise
	// it shows that the old one terminates and that the new one waits for an address.
	unannounced bool
	// asksLate: the old pod asks while it terminates.
	asksLate bool
	// removedFirst: the old pod is removed before the new one starts. removedLast: only after the new one has
	// been shown with its address and has asked.
	removedFirst, removedLast bool
	// asksEarly: the new pod asks before it is shown with its address. meanwhile: the API server changes
	// while it asks, else what it asks counts for no pod.
	asksEarly, meanwhile bool
}

var ways = []way{
	{name: "kept", stays: true},
	{name: "old pod removed before the new one starts", removedFirst: true, asksEarly: true},
	{name: "new pod starts while the old one terminates", asksEarly: true},
	{name: "new pod is shown before the old one is removed", removedLast: true},
	{name: "old pod asks while it terminates", asksLate: true, asksEarly: true},
	{name: "API server changes while the new pod asks", asksEarly: true, meanwhile: true},
	{name: "API server still shows the old pod as running", onlyKernel: true, unannounced: true, asksEarly: true},
}

// place is one client at a time: a pod, and then the one that has its addresses.
type place struct {
	way
	addrs    []netip.Addr
	old, new *pod // new is nil if the old one stays
	random   *rand.Rand
	asked    counts // by both
}

// round is a node whose pods ask, end, and are replaced.
type round struct {
	*node
	marker  *marker
	places  []*place
	queries int // of each address at a time
	began   time.Time
}

// maxRound is how long a round may take: the agent shows pods that have ended for a minute.
const maxRound = 50 * time.Second

// TestAccuracy: the counts of a pod are the queries that it has sent, except for those that
// nobody could know to be its own, which are unknown. Each query counts once, for its address.
func TestAccuracy(t *testing.T) {
	t.Parallel()
	for _, kernel := range []bool{false, true} {
		t.Run(map[bool]string{false: "sockets", true: "kernel"}[kernel], func(t *testing.T) {
			t.Parallel()
			table := make(map[string]*line)
			for done, seed := 0, uint64(1); done < soak.Choose(1, 4) && !t.Failed() && !t.Skipped(); seed++ {
				t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
					r := newRound(t, kernel, seed)
					r.run()
					if took := time.Since(r.began); took > maxRound {
						t.Logf("the round took %v: the agent may have forgotten its first pods", took)
						return
					}
					r.check(table)
					done++
				})
			}
			t.Log("\n" + format(table))
		})
	}
}

// newRound starts an agent and makes clients. The kernel takes longer to make and remove interfaces with programs.
func newRound(t *testing.T, kernel bool, seed uint64) *round {
	n := newNode(t, kernel)
	r := &round{node: n, marker: n.newMarker(), queries: soak.Choose(24, 96)}
	clients := 200
	if kernel {
		clients = soak.Choose(64, clients)
	}
	r.addPlaces(clients, seed)
	r.began = time.Now()
	return r
}

// pods returns the pods that the place has had.
func (p *place) pods() []*pod {
	if p.stays {
		return []*pod{p.old}
	}
	return []*pod{p.old, p.new}
}

// podFactory numbers pods and addresses.
type podFactory struct {
	next netip.Addr
	pods int
}

func (f *podFactory) pod(addrs []netip.Addr) *pod {
	f.pods++
	return newPod(f.pods, addrs)
}

// addrs returns an IPv4 address, and half of the time an IPv6 address, too.
func (f *podFactory) addrs() []netip.Addr {
	addr := f.next
	f.next = addr.Next()
	list := []netip.Addr{addr}
	if b := addr.As4(); b[3]&8 == 0 {
		list = append(list, netip.MustParseAddr(fmt.Sprintf("fd00:245::%x:%x", b[2], b[3])))
	}
	return list
}

// addPlaces adds places with each of the ways in turn.
func (r *round) addPlaces(n int, seed uint64) {
	f := &podFactory{next: r.marker.addrs[0].Next()}
	for i := 0; len(r.places) < n; i++ {
		w := ways[i%len(ways)]
		if w.onlyKernel && !r.kernel {
			continue
		}
		addrs := f.addrs()
		p := &place{way: w, addrs: addrs, old: f.pod(addrs), random: rand.New(rand.NewPCG(seed, uint64(i)))}
		if !w.stays {
			p.new = f.pod(addrs)
		}
		r.places = append(r.places, p)
	}
}

// each calls f for each place.
func (r *round) each(f func(p *place)) {
	for _, p := range r.places {
		f(p)
	}
}

// together calls f for each place at the same time.
func (r *round) together(f func(p *place) error) {
	r.t.Helper()
	var wg sync.WaitGroup
	for _, p := range r.places {
		wg.Go(func() {
			if err := f(p); err != nil {
				r.t.Error(err)
			}
		})
	}
	wg.Wait()
	if r.t.Failed() {
		r.t.FailNow()
	}
}

// ask lets a pod of the place ask.
func (r *round) ask(p *place, by *pod, certain bool) error {
	c, err := by.ask(p.random, r.queries, certain)
	p.asked = p.asked.plus(c)
	return err
}

// run lets pods ask, end, and start.
func (r *round) run() {
	r.t.Helper()
	r.each(func(p *place) {
		r.start(p.old)
		r.show(p.old, running)
	})
	r.sync(r.marker)
	r.awaitInterfaces()
	r.together(func(p *place) error {
		return r.ask(p, p.old, true)
	})
	r.each(r.announce)
	r.sync(r.marker)
	r.together(func(p *place) error {
		if !p.asksLate {
			return nil
		}
		return r.ask(p, p.old, false)
	})
	r.replace()
	r.together(r.askEarly)
	r.each(func(p *place) {
		if !p.meanwhile {
			r.showNew(p)
		}
	})
	r.sync(r.marker)
	r.together(r.askLast)
	r.each(func(p *place) {
		if p.removedLast {
			r.remove(p.old)
		}
	})
	r.sync(r.marker)
	r.together(r.askLast)
}

// announce shows what will change.
func (r *round) announce(p *place) {
	if p.stays || p.unannounced {
		return
	}
	r.show(p.old, terminating)
	r.show(p.new, pending)
	if p.removedFirst {
		r.remove(p.old)
	}
}

// replace stops the old pods, and starts new ones with their addresses.
func (r *round) replace() {
	r.t.Helper()
	r.each(func(p *place) {
		if !p.stays {
			r.stop(p.old)
		}
	})
	r.awaitRemoved()
	r.awaitInterfaces()
	r.each(func(p *place) {
		if !p.stays {
			r.start(p.new)
		}
	})
}

// askEarly lets the new pod ask before it is shown with its address.
func (r *round) askEarly(p *place) (err error) {
	if !p.asksEarly {
		return nil
	}
	if !p.meanwhile {
		most := p.new.most
		err = r.ask(p, p.new, false)
		p.new.most = most // it counts for no pod
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() { r.showNew(p) })
	err = r.ask(p, p.new, false)
	wg.Wait()
	return err
}

// showNew shows the new pod with its address, and removes the old one, in any order.
func (r *round) showNew(p *place) {
	if p.stays {
		return
	}
	steps := []func(){func() { r.show(p.new, running) }}
	if !p.removedFirst && !p.removedLast {
		steps = append(steps, func() { r.remove(p.old) })
	}
	p.random.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	for _, step := range steps {
		step()
	}
}

// askLast lets the pod of the place ask that is running.
func (r *round) askLast(p *place) error {
	pods := p.pods()
	return r.ask(p, pods[len(pods)-1], true)
}

// line is a line of the result.
type line struct{ places, queries, first, next, unknown, kernel uint64 }

// check compares what the agent reports with what the clients have asked.
func (r *round) check(table map[string]*line) {
	r.t.Helper()
	rows := r.rows()
	workloads := make(map[[2]string]counts) // by the labels namespace and workload
	asked := r.marker.most
	for _, p := range r.places {
		l := table[p.name]
		if l == nil {
			l = new(line)
			table[p.name] = l
		}
		r.checkPlace(p, rows, l)
		asked = asked.plus(p.asked)
		for _, pod := range p.pods() {
			key := [2]string{pod.namespace, "Deployment/" + pod.workload}
			workloads[key] = workloads[key].plus(pod.got)
		}
	}
	r.checkMetrics(workloads, asked)
	r.checkNames()
}

// checkNames checks that the report of names and clients has a pod's own name for no other client. A client of
// which the agent could not know the pod has the pod's address.
func (r *round) checkNames() {
	r.t.Helper()
	owners := make(map[string]*pod)
	for _, p := range r.places {
		for _, pod := range p.pods() {
			owners[pod.ownName()] = pod
		}
	}
	seen := 0
	for _, row := range r.names("client").Names {
		p := owners[row.Name]
		if p == nil {
			continue
		}
		seen++
		if c := row.Client; c.Kind != "unknown" && (c.Namespace != p.namespace || c.Pod != p.name) ||
			!slices.ContainsFunc(p.addrs, func(a netip.Addr) bool { return a.String() == c.Address }) {
			r.t.Errorf("%s counts for %+v", row.Name, c)
		}
	}
	if seen == 0 {
		r.t.Error("the report of names and clients has no name that only one pod asks for")
	}
}

// checkPlace compares the rows of a place, and adds them to l.
func (r *round) checkPlace(p *place, rows rows, l *line) {
	r.t.Helper()
	l.places++
	l.queries += p.asked.queries()
	sum := counts{}
	for _, pod := range p.pods() {
		row := rows.pods[pod.namespace+"/"+pod.name]
		pod.got = reported(row)
		if !pod.got.within(pod.least, pod.most) {
			r.t.Errorf("%s: %v: %+v count for pod %s, want %+v to %+v", p.name, p.addrs, pod.got, pod.name, pod.least, pod.most)
		}
		sum = sum.plus(pod.got)
		l.kernel += row.Kernel
	}
	l.first += p.old.got.queries()
	l.next += sum.queries() - p.old.got.queries()
	for _, a := range p.addrs {
		unknown := reported(rows.unknown[a])
		sum = sum.plus(unknown)
		l.unknown += unknown.queries()
		l.kernel += rows.unknown[a].Kernel
	}
	if sum != p.asked {
		r.t.Errorf("%s: %v: %+v are counted, want %+v", p.name, p.addrs, sum, p.asked)
	}
}

// checkMetrics compares the metrics with the sums over the pods of a workload, and with all that was asked.
func (r *round) checkMetrics(workloads map[[2]string]counts, asked counts) {
	r.t.Helper()
	metrics, err := r.Metrics()
	r.must(err)
	for labels, want := range workloads {
		of := func(result string) uint64 {
			return uint64(metrics[fmt.Sprintf("nodens_client_queries_total{namespace=%q,result=%q,workload=%q}", labels[0], result, labels[1])])
		}
		waste := uint64(metrics[fmt.Sprintf("nodens_client_search_waste_total{namespace=%q,workload=%q}", labels[0], labels[1])])
		if got := (counts{of("noerror"), of("nxdomain"), of("servfail"), waste}); got != want {
			r.t.Errorf("the metrics of %s are %+v, want %+v", labels, got, want)
		}
	}
	sums, err := r.SumMetrics("nodens_client_queries_total{", "nodens_client_search_waste_total{")
	r.must(err)
	if uint64(sums[0]) != asked.queries() || uint64(sums[1]) != asked.Waste {
		r.t.Errorf("the metrics say %v queries and %v that are waste, want %d and %d", sums[0], sums[1], asked.queries(), asked.Waste)
	}
}

// format returns the result as a table.
func format(table map[string]*line) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "address\tclients\tqueries\told pod\tnew pod\tunknown\tin the kernel")
	for _, way := range ways {
		if l := table[way.name]; l != nil {
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\n", way.name, l.places, l.queries, l.first, l.next, l.unknown, l.kernel)
		}
	}
	w.Flush()
	return b.String()
}
