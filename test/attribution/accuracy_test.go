package attribution

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/rig/testbed"
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
	queries int    // of each address at a time
	asHost  counts // asked from the node's own address
	// replaced is when the old pods ended.
	replaced time.Time
}

// maxRound is how long the rest of a round may take after the old pods have ended: the agent shows them for a minute.
const maxRound = 50 * time.Second

// TestAccuracy: the counts of a pod are the queries that it has sent, except for those that
// nobody could know to be its own, which are unknown. Each query counts once, for its address.
func TestAccuracy(t *testing.T) {
	t.Parallel()
	for _, kernel := range []bool{false, true} {
		t.Run(map[bool]string{false: "sockets", true: "kernel"}[kernel], func(t *testing.T) {
			t.Parallel()
			skipUnusable(t, kernel)
			table := make(map[string]*line)
			for done, seed := 0, uint64(1); done < soak.Choose(1, 4) && !t.Failed(); seed++ {
				t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
					r := newRound(t, kernel, seed)
					r.run()
					if took := time.Since(r.replaced); took > maxRound {
						t.Logf("the old pods ended %v ago: the agent may have forgotten them", took)
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
	r.asHost = r.askAsHost(r.queries)
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
			r.showNew(p, p.random.IntN(2) == 0)
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
	if r.kernel {
		r.awaitKernel()
	}
}

// awaitKernel lets all pods ask until the kernel has answered each of the new ones. It does not answer an address
// in the first ten seconds after it has moved.
func (r *round) awaitKernel() {
	r.t.Helper()
	r.queries = 8
	r.agent.Must(r.t, "answers from the kernel for the new pods", func(context.Context) error {
		time.Sleep(kernelPause)
		r.together(r.askLast)
		rows := r.rows()
		for _, p := range r.places {
			if !p.stays && rows.pods[p.new.key()].Kernel == 0 {
				return fmt.Errorf("the agent answers %s", p.new.name)
			}
		}
		return nil
	})
}

// kernelPause is less than the two seconds for which the kernel may answer a client after the agent has.
const kernelPause = 500 * time.Millisecond

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
	r.replaced = time.Now()
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
	newFirst := p.random.IntN(2) == 0
	wg.Go(func() { r.showNew(p, newFirst) })
	err = r.ask(p, p.new, false)
	wg.Wait()
	return err
}

// showNew shows the new pod with its address, and removes the old one if nothing else does, before or after.
func (r *round) showNew(p *place, newFirst bool) {
	if p.stays {
		return
	}
	steps := []func(){func() { r.show(p.new, running) }}
	if !p.removedFirst && !p.removedLast {
		steps = append(steps, func() { r.remove(p.old) })
	}
	if !newFirst {
		slices.Reverse(steps)
	}
	for _, step := range steps {
		step()
	}
}

// askLast lets the pod of the place ask that is running.
func (r *round) askLast(p *place) error {
	pods := p.pods()
	return r.ask(p, pods[len(pods)-1], true)
}
