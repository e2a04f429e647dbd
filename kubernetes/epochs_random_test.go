// Internal: feeds handlers and reads the epochs.

package kubernetes

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/test/soak"
)

// epochTable is a table with so many groups that keys hardly ever share one: a missing bump
// would otherwise be hidden by another key's.
type epochTable struct {
	*epoch.Table
	words []atomic.Uint64
}

const (
	counterBits = 12
	counterBase = 3
)

func newCounters() *epochTable { return newCountersOf(counterBits) }

// newCountersOf returns a table of 1<<bits groups. With many, two names hardly ever share one.
func newCountersOf(bits int) *epochTable {
	words := make([]atomic.Uint64, epoch.Words(bits))
	return &epochTable{epoch.New(words, counterBase, bits), words}
}

func (c *epochTable) isCurrent(m epoch.Mark) bool {
	return c.words[m.Index-counterBase].Load() == m.Value
}

// newView makes v use c.
func (c *epochTable) newView(v *View) *View {
	v.index.epochs, v.imports.epochs = c.Table, c.Table
	v.serial.shared = c.AcquireValue()
	v.serial.Store(v.serial.Load())
	return v
}

// copied is a copy of an answer.
type copied struct {
	name  string
	qtype uint16
	reply []byte
	mark  epoch.Mark
}

// copy takes a copy of z's answer as the kernel path does; ok is false if there is nothing to
// copy.
func (c *epochTable) copy(t testing.TB, z *Zone, name string, qtype uint16) (k copied, ok bool) {
	t.Helper()
	q := parsed(t, name, qtype)
	var r wire.Reply
	r.Start(nil, &q)
	before := c.Any()
	outcome, _ := z.Answer(&q, &r, nil)
	k = copied{name: name, qtype: qtype}
	var b Budget
	b.Refill()
	k.mark, ok = z.Mark(&q, &r, &b)
	if ok && outcome != Answered {
		t.Errorf("%s %s: a mark of what has outcome %d", name, dns.TypeToString[qtype], outcome)
	}
	k.reply = r.Finish(wire.MaxMessage)
	return k, ok && outcome == Answered && c.Any() == before
}

// checkSerial writes the current serial into a copy that shares it.
func (c *epochTable) checkSerial(t testing.TB, m epoch.Mark, q *wire.Query, reply []byte) {
	t.Helper()
	if m.Serial == 0 {
		return
	}
	found := 0
	for _, r := range q.Records(reply) {
		if r.Type == wire.TypeSOA {
			binary.BigEndian.PutUint32(reply[r.End-20:], uint32(c.words[m.Serial-counterBase].Load()))
			found++
		}
	}
	if found != 1 {
		t.Errorf("a copy with a serial has %d SOA records", found)
	}
}

// copySet is the copies of one zone's answers.
type copySet struct {
	testing.TB
	*epochTable
	zone *Zone
	kept map[string]copied
	// lasted counts the copies that outlived a change elsewhere, of positive answers and of
	// others.
	lasted [2]int
}

func (s *copySet) key(name string, qtype uint16) string { return name + " " + dns.TypeToString[qtype] }

// store copies the answer, unless there is a current copy.
func (s *copySet) store(name string, qtype uint16) {
	key := s.key(name, qtype)
	if k, ok := s.kept[key]; ok && s.isCurrent(k.mark) {
		return
	}
	delete(s.kept, key)
	if k, ok := s.copy(s, s.zone, name, qtype); ok {
		s.kept[key] = k
	}
}

// check compares all current copies with the present answers.
func (s *copySet) check(after string) {
	s.Helper()
	for key, k := range s.kept {
		if !s.isCurrent(k.mark) {
			delete(s.kept, key)
			continue
		}
		q := parsed(s, k.name, k.qtype)
		var r wire.Reply
		r.Start(nil, &q)
		outcome, _ := s.zone.Answer(&q, &r, nil)
		now := r.Finish(wire.MaxMessage)
		c := slices.Clone(k.reply)
		s.checkSerial(s, k.mark, &q, c)
		if outcome != Answered || string(now[2:]) != string(c[2:]) { // but for the ID
			s.Fatalf("%s: a copy of the answer to %s is good:\n%s\nthe answer is (outcome %d)\n%s",
				after, key, unpacked(s, k.reply), outcome, unpacked(s, now))
		}
		switch {
		case k.mark.Index == counterBase: // nothing has changed
		case r.Rcode() == wire.NoError && r.Count(wire.Answer) > 0:
			s.lasted[0]++
		default:
			s.lasted[1]++
		}
	}
}

func unpacked(t testing.TB, b []byte) *dns.Msg {
	t.Helper()
	m := new(dns.Msg)
	noError(t, m.Unpack(b))
	return m
}

// plainConfig is a directive with deterministic answers.
func plainConfig(t testing.TB) *config.Kubernetes {
	cfg := multiclusterConfig(t)
	cfg.Topology, cfg.Zonal = config.TopologyOff, true
	return cfg
}

// kindsOfZone are zones whose answers are made from different data.
var kindsOfZone = []struct {
	name   string
	change func(*config.Kubernetes)
}{
	{"plain", func(*config.Kubernetes) {}},
	{"listed", func(c *config.Kubernetes) { c.NamespaceLabels = "a=b" }},
	{"verified", func(c *config.Kubernetes) { c.Pods = config.PodsVerified }},
	{"namespaces", func(c *config.Kubernetes) { c.Namespaces = []string{"a"} }},
	{"empty_service", func(c *config.Kubernetes) { c.IgnoreEmptyService = true }},
	{"fallthrough", func(c *config.Kubernetes) { c.Fallthrough = &config.Fallthrough{} }},
}

// newCopySet returns the copy set of a zone with that change to its directive.
func (c *epochTable) newCopySet(t testing.TB, v *View, change func(*config.Kubernetes)) *copySet {
	cfg := plainConfig(t)
	change(cfg)
	return &copySet{TB: t, epochTable: c, zone: NewZone(v, cfg), kept: map[string]copied{}}
}

// everyName returns the names that the objects of a world may have, and some that don't
// exist.
func everyName() (list []string) {
	add := func(labels string) {
		list = append(list, labels+"cluster.local", labels+"clusterset.local")
	}
	for _, labels := range []string{"", "svc.", "ns.dns.", "dns-version.", "google.com.", "a.b.c.d.e.f.g.", "10-1-0-1.a.pod."} {
		add(labels)
	}
	for _, ns := range []string{"a", "b"} {
		add(ns + ".svc.")
		add(ns + ".")
		for _, service := range []string{"x", "y"} {
			base := service + "." + ns + ".svc."
			for _, front := range []string{
				"", "h1.", "10-1-0-1.", "_tcp.", "_http._tcp.", "east.h1.", "h1.east.", "_zone.", "east.pin._zone.", "west.prefer._zone.",
			} {
				add(front + base)
			}
		}
	}
	for _, addr := range []string{"10.0.0.1", "10.1.0.1", "10.1.0.2", "192.0.2.1", "9.9.9.9"} {
		list = append(list, arpa(addr))
	}
	return list
}

var copiedTypes = []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeCNAME, dns.TypePTR, dns.TypeSOA, dns.TypeNS}

// extra makes a change to v that [objectWorld.step] does not.
func (w *objectWorld) extra(v *View) string {
	ns, f := w.pick("a", "b"), faults{}
	service := w.pick("x", "y")
	switch w.rng.IntN(7) {
	case 0:
		o := testImport(service, w.pick("ClusterSetIP", "Headless"), []serviceImportPort{{Name: "http", Port: 80}}, "10.240.0."+w.pick("1", "2"))
		o.Namespace = ns
		v.putImport(o, &f)
		return "an import"
	case 1:
		v.dropImport(ns, service)
		return "an import that goes"
	case 2:
		o := importSlice(service+w.pick("-1", "-2"), service, w.pick("east", ""), 80, w.pick("h1", "")+"=10.8.0."+w.pick("1", "2"))
		o.Namespace = ns
		v.putImportSlice(o, &f)
		return "an import's slice"
	case 3:
		v.dropImportSlice(ns, service+w.pick("-1", "-2"))
		return "an import's slice that goes"
	case 4:
		v.setLevel(level(w.rng.IntN(int(levelAll) + 1)))
		return "a level"
	}
	o := makeService(ns, service, w.pick("10.0.0.1", "None"))
	if w.rng.IntN(2) == 0 {
		o.Spec.ExternalIPs = []string{"192.0.2." + w.pick("1", "2")}
	} else {
		o.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: w.pick("lb.example.com", "lb.example.net")}}
	}
	if w.rng.IntN(3) == 0 {
		o.Spec.Type = corev1.ServiceTypeExternalName
		o.Spec.ExternalName = w.pick("x", "y") + "." + ns + ".svc." + w.pick("cluster.local", "clusterset.local", "example.com")
	}
	w.objects[services][objectKey(ns, service)] = o
	handlerFixture{v, services}.put(o)
	return "a Service of another sort"
}

// After any change, current copies equal the zones' answers byte for byte. Names are
// checked only now and then, so that a copy sees several changes.
func TestCurrentCopiesMatchAnswers(t *testing.T) {
	var lasted [2]int
	names := everyName()
	seeds := soak.Choose(2, 8)
	for _, kind := range kindsOfZone {
		for seed := range uint64(seeds) {
			w, c, now := newWorld(seed), newCounters(), testClock()
			v := c.newView(emptyView())
			v.now = func() time.Time { return now }
			v.converter = newConverter(plainConfig(t), testNode)
			s := c.newCopySet(t, v, kind.change)
			for i := range 60 {
				for range 60 {
					s.store(names[w.rng.IntN(len(names))], copiedTypes[w.rng.IntN(len(copiedTypes))])
				}
				if w.rng.IntN(3) == 0 {
					now = now.Add(time.Second)
				}
				after := "an event"
				if w.rng.IntN(3) == 0 {
					after = w.extra(v)
				} else {
					w.step(v)
				}
				s.check(fmt.Sprintf("%s, seed %d, event %d, %s", kind.name, seed, i, after))
			}
			lasted[0], lasted[1] = lasted[0]+s.lasted[0], lasted[1]+s.lasted[1]
		}
	}
	t.Logf("%d copies were good after a change", lasted)
	if slices.Min(lasted[:]) < 125*seeds {
		t.Errorf("only %d copies were good after a change: the test tests little", lasted)
	}
}

// Whatever the sliceManager does, and however far the sources have come, current copies
// equal the zone's answers.
func TestCurrentCopiesByScope(t *testing.T) {
	lasted, seeds := 0, soak.Choose(10, 40)
	for seed := range uint64(seeds) {
		rng := rand.New(rand.NewPCG(seed, 4))
		l := newLab(t, func(c *config.Kubernetes) {
			*c = *plainConfig(t)
			c.ScopeMax = 1 + rng.IntN(3)
			if rng.IntN(4) == 0 {
				c.Scope = config.ScopeCluster
			}
		})
		const many = 4
		s := &copySet{TB: t, epochTable: newCounters(), zone: l.zone, kept: map[string]copied{}}
		s.newView(l.view)
		var names []string
		for i := range many {
			ns := fmt.Sprintf("ns%d", i)
			l.service(ns, "db", rng.IntN(2) == 0)
			handlerFixture{l.view, pods}.put(makePod(ns, "p", fmt.Sprintf("10.1.%d.1", i)))
			if i > 1 {
				handlerFixture{l.view, pods}.drop(makePod(ns, "p"))
			}
			names = append(names, "db."+ns+".svc.cluster.local", arpa(fmt.Sprintf("10.1.%d.1", i)), "nope."+ns+".svc.cluster.local")
		}
		for i := range 150 {
			ns := fmt.Sprintf("ns%d", rng.IntN(many))
			after := l.randomEvent(rng, ns)
			if rng.IntN(2) == 0 { // else the namespaces are not in use
				s.check(fmt.Sprintf("seed %d, event %d, %s", seed, i, after))
				name := names[rng.IntN(len(names))]
				s.store(name, dns.TypeA)
				s.store(name, dns.TypePTR)
			}
		}
		lasted += s.lasted[0]
	}
	t.Logf("%d copies were good after a change", lasted)
	if lasted < 2*seeds {
		t.Errorf("only %d copies were good after a change: the test tests little", lasted)
	}
}

// randomEvent makes one random change and returns its description.
func (l *sliceLab) randomEvent(rng *rand.Rand, ns string) string {
	switch rng.IntN(8) {
	case 0:
		l.slice(ns, "db", rng.IntN(2) == 0, fmt.Sprintf("10.1.%s.%d", ns[2:], 1+rng.IntN(3)))
		return "a slice"
	case 1:
		l.api.write(makeSlice(ns, "db", "db-1"), true)
		return "a slice that goes"
	case 2, 3:
		l.keep.reconcile(l.ctx)
		l.awaitSynced()
		return "the sliceManager"
	case 4:
		if rng.IntN(3) == 0 {
			l.idle()
		}
		return "time"
	}
	l.awaitSynced()
	l.api.mu.Lock()
	var s *sliceReader
	if n := len(l.api.open); n > 0 {
		s = l.api.open[rng.IntN(n)]
	}
	l.api.mu.Unlock()
	if s != nil {
		l.api.advance(s)
	}
	return "a source"
}

// While the cluster changes, a current copy is never older than an answer that was given
// before: neither of a Service nor, by the serial, of a name that depends on nothing else
// or on a missing Service.
func TestCurrentCopiesAreNeverStale(t *testing.T) {
	const enough = 300 // copies that were good when they were looked at, of each name
	c := newCounters()
	v := c.newView(emptyView())
	var clock atomic.Int64
	v.now = func() time.Time { return time.Unix(clock.Add(1), 0) }
	z := NewZone(v, testConfig(t))
	names := []string{"web.a.svc.cluster.local", "google.com.cluster.local", "nope.a.svc.cluster.local"}
	put := func(i int) {
		handlerFixture{v, services}.put(makeService("a", "web", fmt.Sprintf("10.%d.%d.%d", 1+i>>16, i>>8&255, i&255)))
	}
	put(0)
	var kept [3]atomic.Pointer[copied]
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { // keeps copies
			for {
				for i, name := range names {
					if k, ok := c.copy(t, z, name, dns.TypeA); ok {
						kept[i].Store(&k)
					}
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	wg.Go(func() {
		for i := 1; ; i++ {
			select {
			case <-done:
				return
			default:
				put(i)
			}
		}
	})
	defer wg.Wait()
	defer close(done)
	var good [3]int
	for slices.Min(good[:]) < enough {
		for i, name := range names {
			m, _, _ := ask(t, z, name, dns.TypeA)
			k := kept[i].Load()
			if k == nil || !c.isCurrent(k.mark) {
				continue
			}
			good[i]++
			q, reply := parsed(t, name, dns.TypeA), slices.Clone(k.reply)
			c.checkSerial(t, k.mark, &q, reply)
			if remainingTTL(m) > remainingTTL(unpacked(t, reply)) {
				t.Fatalf("%s: after\n%s\na copy is good of\n%s", name, m, unpacked(t, reply))
			}
		}
	}
}

// remainingTTL returns a number that grows from one answer of
// TestCurrentCopiesAreNeverStale to the next.
func remainingTTL(m *dns.Msg) (n uint32) {
	for _, rr := range append(m.Answer, m.Ns...) {
		switch rr := rr.(type) {
		case *dns.A:
			ip := rr.A.To4()
			n = uint32(ip[1])<<16 | uint32(ip[2])<<8 | uint32(ip[3])
		case *dns.SOA:
			n = rr.Serial
		}
	}
	return n
}
