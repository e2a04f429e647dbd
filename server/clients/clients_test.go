package clients_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
)

// fakeClock is a clock that a test sets.
type fakeClock struct{ now atomic.Int64 }

func (c *fakeClock) read() time.Duration     { return time.Duration(c.now.Load()) }
func (c *fakeClock) advance(d time.Duration) { c.now.Add(int64(d)) }

// addr returns the i-th address.
func addr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}) }

// podNo returns the i-th pod.
func podNo(i int) clients.Pod {
	return clients.Pod{
		Namespace: fmt.Sprintf("ns%d", i%3), Name: fmt.Sprintf("pod-%d", i), UID: fmt.Sprintf("uid-%d", i),
		Workload: clients.Workload{Kind: "Deployment", Name: fmt.Sprintf("web%d", i%5)},
	}
}

// queries returns the number of queries of each client in a report by pod: by pod name, by address for
// the unknown, and by kind for the rest.
func queries(r clients.Report) map[string]uint64 {
	all := make(map[string]uint64)
	for _, c := range r.Clients {
		all[rowName(c)] += c.Total.Queries()
	}
	return all
}

func rowName(c clients.Client) string {
	switch c.Kind {
	case clients.PodClient:
		return c.Pod.Name
	case clients.Unknown:
		return c.Addrs[0].String()
	}
	return c.Kind.String()
}

// TestCounts: each property of a query is counted, for its pod, workload and namespace.
func TestCounts(t *testing.T) {
	table := clients.New(clients.Options{})
	table.SetPod(addr(1), podNo(1))
	table.SetPod(netip.MustParseAddr("fd00::1"), podNo(1))
	for stripe, q := range []clients.Query{
		{Rcode: wire.NoError, AAAA: true, Latency: 5 * time.Microsecond},
		{Rcode: wire.NXDomain, Waste: true, Latency: 20 * time.Microsecond},
		{Rcode: wire.ServFail, Shed: true},
		{Rcode: wire.Refused},
		{NoReply: true},
		{Rcode: wire.NoError, Upstream: true, Latency: 100 * time.Millisecond},
	} {
		table.Count(stripe, addr(1), q)
	}
	table.Count(7, netip.MustParseAddr("fd00::1"), clients.Query{Upstream: true, AAAA: true, Latency: 3 * time.Second})
	table.Count(7, netip.MustParseAddr("::ffff:10.1.0.1"), clients.Query{})
	table.CountKernel(addr(1), 10, 3, 2)
	want := clients.Counts{NoError: 11, NXDomain: 4, ServFail: 1, Other: 2, Hits: 15, Kernel: 10, Upstream: 2, Waste: 3, Slow: 2, Shed: 1, AAAA: 2, AAAAUpstream: 1}
	pod := podNo(1)
	for by, id := range map[clients.By]clients.Pod{
		clients.Pods: pod, clients.Workloads: {Namespace: pod.Namespace, Workload: pod.Workload}, clients.Namespaces: {Namespace: pod.Namespace},
	} {
		r := table.Report(by, clients.Minute)
		if len(r.Clients) != 1 {
			t.Fatalf("by %d: %d rows: %v", by, len(r.Clients), r.Clients)
		}
		if diff := cmp.Diff(want, r.Clients[0].Total); diff != "" || r.Clients[0].Pod != id {
			t.Errorf("by %d: %+v\n%s", by, r.Clients[0].Pod, diff)
		}
		if diff := cmp.Diff(want, r.Clients[0].Window); diff != "" {
			t.Errorf("by %d, window: %s", by, diff)
		}
		if p50, p99 := r.Clients[0].Quantile(50), r.Clients[0].Quantile(100); p50 > 10*time.Microsecond || p99 < 3*time.Second {
			t.Errorf("by %d: quantiles are %v and %v", by, p50, p99)
		}
	}
	if list := table.Series(); len(list) != 1 || list[0].Counts != want || list[0].Namespace != pod.Namespace {
		t.Errorf("series: %+v", list)
	}
}

// TestNil: a nil table counts nothing.
func TestNil(*testing.T) {
	var none *clients.Table
	none.Count(0, addr(1), clients.Query{})
	none.CountKernel(addr(1), 1, 0, 0)
	none.SetKernelSample(64)
	none.SampleKernel(addr(1), []byte{0}, false)
	none.CountBypass(addr(1), "udp 192.0.2.53:53", 1)
}

// TestExact: with many goroutines, on stripes that they share or not, each address has exactly its
// queries, while readings settle them and owners change.
func TestExact(t *testing.T) {
	const readers, addrs, each = 8, 200, 5000
	table := clients.New(clients.Options{Stripes: 4, Host: func(a netip.Addr) bool { return a == addr(0) }})
	var wait sync.WaitGroup
	done := make(chan struct{})
	wait.Go(func() { changeOwners(table, addrs, done) })
	var counted [addrs]atomic.Uint64
	var load sync.WaitGroup
	for reader := range readers {
		load.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(reader)))
			for range each {
				i := rng.IntN(addrs)
				table.Count(reader, addr(i), clients.Query{})
				counted[i].Add(1)
			}
		})
	}
	load.Wait()
	close(done)
	wait.Wait()
	got := make([]uint64, addrs)
	for name, n := range queries(table.Report(clients.Pods, clients.Hour)) {
		i := 0
		if a, err := netip.ParseAddr(name); err == nil {
			b := a.As4()
			i = int(b[2])<<8 | int(b[3])
		} else if name != clients.Host.String() {
			_, _ = fmt.Sscanf(name, "pod-%d", &i) // podNo
			i %= addrs
		}
		got[i] += n
	}
	for i := range counted {
		if want := counted[i].Load(); got[i] != want {
			t.Errorf("%s: %d queries were counted, want %d", addr(i), got[i], want)
		}
	}
	var sum uint64
	for _, n := range seriesOf(table) {
		sum += n
	}
	if sum != readers*each {
		t.Errorf("the series have %d queries, want %d", sum, readers*each)
	}
}

// changeOwners gives each address one pod after the other, or none, until done is closed. Pod
// numbers are equal to their address's number, modulo addrs.
func changeOwners(table *clients.Table, addrs int, done <-chan struct{}) {
	rng := rand.New(rand.NewPCG(2, 3))
	for round := 0; ; round++ {
		select {
		case <-done:
			return
		default:
		}
		i := 1 + rng.IntN(addrs-1)
		switch rng.IntN(4) {
		case 0:
			table.EndAddr(addr(i))
		case 1:
			table.SetPod(addr(i), clients.Pod{})
		default:
			table.SetPod(addr(i), podNo(i+addrs*rng.IntN(3)))
		}
		if round%10 == 0 {
			table.SetLevel(podNo(i).Namespace, clients.Level(rng.IntN(3)))
		}
		if round%50 == 0 {
			table.Sweep()
		}
	}
}

// model is a table without bounds and time.
type model struct {
	owner map[int]int // address → pod, absent is unknown
	ended map[int]int // address → the pod that it was taken from
	count map[string]uint64
}

func (m *model) setPod(a, pod int) {
	if last, ok := m.ended[a]; ok && last == pod {
		return
	}
	delete(m.ended, a)
	m.owner[a] = pod
}

func (m *model) endAddr(a int) {
	if pod, ok := m.owner[a]; ok {
		m.ended[a] = pod
	}
	delete(m.owner, a)
}

func (m *model) ask(a int, n uint64) {
	name := addr(a).String()
	if pod, ok := m.owner[a]; ok {
		name = podNo(pod).Name
	}
	m.count[name] += n
}

// TestReusedAddresses: in any order of events each query counts for the pod that has the
// address at that moment, and never for one that has had it.
func TestReusedAddresses(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 7))
		table := clients.New(clients.Options{Stripes: 3})
		m := model{owner: map[int]int{}, ended: map[int]int{}, count: map[string]uint64{}}
		for range 400 {
			a, pod := rng.IntN(6), rng.IntN(10)
			switch rng.IntN(8) {
			case 0, 1:
				table.SetPod(addr(a), podNo(pod))
				m.setPod(a, pod)
			case 2:
				table.SetPod(addr(a), clients.Pod{})
				delete(m.owner, a)
			case 3:
				table.EndAddr(addr(a))
				m.endAddr(a)
			case 4:
				table.Sweep()
			case 5:
				table.CountKernel(addr(a), 3, 1, 1)
				m.ask(a, 3)
			default:
				table.Count(rng.IntN(9), addr(a), clients.Query{})
				m.ask(a, 1)
			}
		}
		if diff := cmp.Diff(m.count, queries(table.Report(clients.Pods, clients.Minute))); diff != "" {
			t.Fatalf("seed %d: %s", seed, diff)
		}
	}
}

// TestHost: the node's own addresses share one row, also when the node gets an address that was
// unknown.
func TestHost(t *testing.T) {
	var own sync.Map
	own.Store(addr(1), true)
	table := clients.New(clients.Options{Host: func(a netip.Addr) bool { _, ok := own.Load(a); return ok }})
	ask := func() {
		for i := range 3 {
			table.Count(0, addr(i), clients.Query{})
		}
	}
	ask()
	want := map[string]uint64{"(host)": 1, addr(0).String(): 1, addr(2).String(): 1}
	if diff := cmp.Diff(want, queries(table.Report(clients.Pods, clients.Minute))); diff != "" {
		t.Error(diff)
	}
	own.Store(addr(2), true)
	table.Sweep()
	ask()
	want = map[string]uint64{"(host)": 3, addr(0).String(): 2, addr(2).String(): 1}
	if diff := cmp.Diff(want, queries(table.Report(clients.Pods, clients.Minute))); diff != "" {
		t.Error(diff)
	}
}

// TestCountAllocates: a query of a known client allocates nothing, nor does one that finds the table full.
func TestCountAllocates(t *testing.T) {
	table := clients.New(clients.Options{MaxClients: 1})
	table.Count(0, addr(1), clients.Query{})
	q := clients.Query{Rcode: wire.ServFail, Latency: time.Second, Now: clock.Now(), Name: []byte("\x03www\x04test\x00")}
	for _, a := range []netip.Addr{addr(1), addr(2)} {
		if n := testing.AllocsPerRun(100, func() { table.Count(0, a, q) }); n > 0 {
			t.Errorf("%s: %v allocations for each query", a, n)
		}
	}
}

// BenchmarkCount is the cost of one query of one of 250 clients, at 330,000 queries a second.
func BenchmarkCount(b *testing.B) {
	table := clients.New(clients.Options{})
	var list [250]netip.Addr
	for i := range list {
		list[i] = addr(i)
		table.SetPod(list[i], podNo(i))
	}
	name := []byte("\x03web\x04shop\x03svc\x07cluster\x05local\x00")
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		table.Count(0, list[i%len(list)], clients.Query{Latency: 20 * time.Microsecond, Name: name, Now: time.Duration(i) * 3 * time.Microsecond})
	}
}
