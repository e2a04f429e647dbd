package clients_test

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
)

// nameTable is a table with a clock that the test sets.
type nameTable struct {
	*clients.Table
	clock *fakeClock
}

func newNameTable() nameTable {
	clock := new(fakeClock)
	return nameTable{clients.New(clients.Options{Clock: clock.read, Stripes: 2}), clock}
}

// ask counts n queries of the i-th address for a name.
func (t nameTable) ask(tb testing.TB, i int, name string, q clients.Query, n int) {
	tb.Helper()
	wireName, err := wire.ParseName(name)
	if err != nil {
		tb.Fatal(err)
	}
	q.Name, q.Now = []byte(wireName), t.clock.read()
	for range n {
		t.Count(i, addr(i), q)
	}
}

// TestNames: each topic has its names, with their clients and causes, and all of the queries below the
// limit of samples are counted.
func TestNames(t *testing.T) {
	table := newNameTable()
	table.SetPod(addr(1), podNo(1))
	table.ask(t, 1, "web.shop.svc.cluster.local.", clients.Query{}, 30)
	table.ask(t, 2, "web.shop.svc.cluster.local.", clients.Query{}, 20)
	table.ask(t, 1, "www.example.com.svc.cluster.local.", clients.Query{Rcode: wire.NXDomain, Waste: true}, 7)
	table.ask(t, 1, "api.example.com.svc.cluster.local.", clients.Query{Rcode: wire.NXDomain, Waste: true}, 4)
	table.ask(t, 1, "broken.test.", clients.Query{Rcode: wire.ServFail, Upstream: true, Cause: clients.TimeoutCause}, 3)
	table.ask(t, 2, "shed.test.", clients.Query{Rcode: wire.ServFail, Shed: true, Cause: clients.QueueCause}, 2)
	table.ask(t, 2, "late.test.", clients.Query{Upstream: true, Cause: clients.HedgeCause, Latency: time.Second}, 5)
	table.ask(t, 2, ".", clients.Query{}, 1)
	pod := func(name string, n uint64) clients.NameCount {
		return clients.NameCount{Name: name, Kind: clients.PodClient, Pod: podNo(1), Addr: addr(1), Count: n}
	}
	unknown := func(name string, n uint64) clients.NameCount {
		return clients.NameCount{Name: name, Kind: clients.Unknown, Addr: addr(2), Count: n}
	}
	for _, topic := range []struct {
		name  string
		topic clients.Topic
		total uint64
		want  []clients.NameCount
	}{
		{"names", clients.TopNames, 72, []clients.NameCount{
			{Name: "web.shop.svc.cluster.local.", Count: 50}, {Name: "www.example.com.svc.cluster.local.", Count: 7}, {Name: "late.test.", Count: 5},
		}},
		{"names of clients", clients.TopClientNames, 72, []clients.NameCount{
			pod("web.shop.svc.cluster.local.", 30), unknown("web.shop.svc.cluster.local.", 20), pod("www.example.com.svc.cluster.local.", 7),
		}},
		{"waste", clients.TopWaste, 11, []clients.NameCount{{Name: "example.com.svc.cluster.local.", Count: 11}}},
		{"failing", clients.TopFailing, 5, []clients.NameCount{
			{Name: "broken.test.", Cause: clients.TimeoutCause, Count: 3}, {Name: "shed.test.", Cause: clients.QueueCause, Count: 2},
		}},
		{"slow", clients.TopSlow, 5, []clients.NameCount{{Name: "late.test.", Cause: clients.HedgeCause, Count: 5}}},
	} {
		r := table.Names(topic.topic, clients.Minute, 3)
		if d := cmp.Diff(topic.want, r.Names, cmp.Comparer(func(a, b clients.NameCount) bool { return a == b })); d != "" {
			t.Errorf("%s (-want +got):\n%s", topic.name, d)
		}
		if r.Total != topic.total || r.Floor != 0 {
			t.Errorf("%s: %d queries, floor %d, want %d and 0", topic.name, r.Total, r.Floor, topic.total)
		}
	}
	table.clock.advance(time.Hour)
	if r := table.Names(clients.TopNames, clients.TenSeconds, 3); len(r.Names) > 0 || r.Total > 0 {
		t.Errorf("an hour later: %v", r)
	}
}

// TestBypasses: other servers are counted by client, with a pod's name for as long as it has the address, and by no sample.
func TestBypasses(t *testing.T) {
	table := newNameTable()
	table.SetKernelSample(64)
	if r := table.Names(clients.TopBypass, clients.Minute, 9); len(r.Names) > 0 || r.Total > 0 {
		t.Errorf("nothing was counted: %+v", r)
	}
	table.SetPod(addr(1), podNo(1))
	table.CountBypass(addr(1), "udp 192.0.2.53:53", 400)
	table.CountBypass(addr(1), "tcp 192.0.2.53:53", 3)
	table.CountBypass(addr(2), "udp 192.0.2.53:53", 20)
	table.EndAddr(addr(1))
	table.SetPod(addr(1), podNo(2))
	table.CountBypass(addr(1), "udp 192.0.2.53:53", 7)
	want := []clients.NameCount{
		{Name: "udp 192.0.2.53:53", Kind: clients.PodClient, Pod: podNo(1), Addr: addr(1), Count: 400},
		{Name: "udp 192.0.2.53:53", Kind: clients.Unknown, Addr: addr(2), Count: 20},
		{Name: "udp 192.0.2.53:53", Kind: clients.PodClient, Pod: podNo(2), Addr: addr(1), Count: 7},
	}
	r := table.Names(clients.TopBypass, clients.Minute, 3)
	if d := cmp.Diff(want, r.Names, cmp.Comparer(func(a, b clients.NameCount) bool { return a == b })); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if r.Total != 430 || r.More != 1 || r.MaxWeight != 1 || r.KernelSample != 0 {
		t.Errorf("%+v", r)
	}
	table.clock.advance(time.Hour)
	table.Sweep()
	if r := table.Names(clients.TopBypass, clients.Minute, 9); len(r.Names) > 0 {
		t.Errorf("an hour later: %+v", r.Names)
	}
}

// TestNameSamples: of many queries a random part is added, with a weight that keeps the counts right on
// average. Failing and slow ones are all counted.
func TestNameSamples(t *testing.T) {
	table := newNameTable()
	const perSecond, seconds = 64_000, 4
	table.ask(t, 0, "first.test.", clients.Query{}, perSecond) // the rate of the first second is not known yet
	for range seconds {
		table.clock.advance(time.Second)
		for range perSecond / 4 { // a period of four names
			table.ask(t, 0, "often.test.", clients.Query{}, 3)
			table.ask(t, 0, "rarely.test.", clients.Query{Rcode: wire.ServFail}, 1)
		}
	}
	counts := make(map[string]float64)
	r := table.Names(clients.TopNames, clients.Minute, 10)
	for _, n := range r.Names {
		counts[n.Name] = float64(n.Count)
	}
	for name, want := range map[string]float64{
		"first.test.": perSecond, "often.test.": seconds * perSecond * 3 / 4, "rarely.test.": seconds * perSecond / 4,
	} {
		// Some 1,000 samples of each in all: a standard deviation of 3 %.
		if got := counts[name]; math.Abs(got-want) > want/3 {
			t.Errorf("%s: %v queries, want about %v", name, got, want)
		}
	}
	if r.MaxWeight < 64 || r.MaxWeight > 128 { // of the second whose rate was known before
		t.Errorf("a query stands for %d at most", r.MaxWeight)
	}
	if r := table.Names(clients.TopFailing, clients.Minute, 1); r.Total != seconds*perSecond/4 || r.MaxWeight != 1 {
		t.Errorf("%d failing queries, want all %d; a query stands for %d", r.Total, seconds*perSecond/4, r.MaxWeight)
	}
}
