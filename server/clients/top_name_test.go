package clients_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
)

// TestTopName: each row has the name that its addresses ask for most, with its share of the queries, those
// answered in the kernel included.
func TestTopName(t *testing.T) {
	table := newNameTable()
	table.SetPod(addr(1), podNo(1))
	table.SetPod(addr(2), podNo(1))
	table.ask(t, 1, "first.test.", clients.Query{}, 30)
	table.ask(t, 1, "both.test.", clients.Query{}, 20)
	table.ask(t, 2, "both.test.", clients.Query{}, 30)
	table.ask(t, 3, "broken.test.", clients.Query{Rcode: wire.ServFail}, 4)
	table.Count(0, addr(4), clients.Query{Now: table.clock.read()}) // of no name
	table.SetKernelSample(64)
	table.CountKernel(addr(1), 80, 0, 0)
	table.SampleKernel(addr(1), wireName(t, "first.test."), false)
	table.clock.advance(2 * time.Second)
	pod, unknown := clients.TopName{Name: "first.test.", Share: 94.0 / 160}, clients.TopName{Name: "broken.test.", Share: 1}
	for by, want := range map[clients.By][]clients.TopName{
		clients.Pods:       {pod, unknown, {}},
		clients.Workloads:  {pod, {Name: "broken.test.", Share: 4.0 / 5}},
		clients.Namespaces: {pod, {Name: "broken.test.", Share: 4.0 / 5}},
	} {
		rows := table.Report(by, clients.Minute).Clients
		if len(rows) != len(want) {
			t.Fatalf("by %d: %d rows", by, len(rows))
		}
		for i, row := range rows {
			if row.TopName != want[i] {
				t.Errorf("by %d, row %d: %+v, want %+v", by, i, row.TopName, want[i])
			}
		}
	}
	table.clock.advance(time.Hour)
	if top := table.Report(clients.Pods, clients.TenSeconds).Clients[0].TopName; top != (clients.TopName{}) {
		t.Errorf("an hour later: %+v", top)
	}
}

// sameAddrs compares addresses.
var sameAddrs = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

// TestTop: the first clients are those of a complete report, and the others are counted.
func TestTop(t *testing.T) {
	table := newNameTable()
	for i := range 20 {
		table.SetPod(addr(i), podNo(i/2)) // two addresses each
		table.ask(t, i, "a.test.", clients.Query{}, 1+i%7)
	}
	for i := 20; i < 24; i++ {
		table.ask(t, i, "b.test.", clients.Query{Rcode: wire.NXDomain}, i-19) // of no pod
	}
	for _, by := range []clients.By{clients.Pods, clients.Workloads, clients.Namespaces} {
		all := table.Report(by, clients.Minute)
		var total uint64
		for i, c := range all.Clients {
			total += c.Window.Queries()
			if i > 0 && all.Clients[i-1].Window.Queries() < c.Window.Queries() {
				t.Errorf("by %d: row %d has more queries than the one before", by, i)
			}
		}
		if all.More != 0 || all.Total.Queries() != total || total == 0 {
			t.Errorf("by %d: %d more, %d queries in all, want %d", by, all.More, all.Total.Queries(), total)
		}
		for _, limit := range []int{0, 1, 5, len(all.Clients), 100} {
			top := table.Top(by, clients.Minute, limit)
			n := min(limit, len(all.Clients))
			if diff := cmp.Diff(all.Clients[:n], top.Clients, sameAddrs); diff != "" || top.More != len(all.Clients)-n || top.Total != all.Total {
				t.Errorf("by %d, limit %d: %d more, %s", by, limit, top.More, diff)
			}
		}
	}
}

// TestTopNamesAge: the names of Top are read again after ten seconds, those of Report at once.
func TestTopNamesAge(t *testing.T) {
	table := newNameTable()
	table.SetPod(addr(1), podNo(1))
	table.ask(t, 1, "a.test.", clients.Query{}, 1)
	name := func(r clients.Report) string { return r.Clients[0].TopName.Name }
	if got := name(table.Top(clients.Pods, clients.Minute, 1)); got != "a.test." {
		t.Errorf("the first name is %q", got)
	}
	table.clock.advance(9 * time.Second)
	table.ask(t, 1, "b.test.", clients.Query{}, 5)
	if old, now := name(table.Top(clients.Pods, clients.Minute, 1)), name(table.Report(clients.Pods, clients.Minute)); old != "a.test." || now != "b.test." {
		t.Errorf("soon afterwards the names are %q and %q", old, now)
	}
	table.clock.advance(time.Second)
	if got := name(table.Top(clients.Pods, clients.Minute, 1)); got != "b.test." {
		t.Errorf("ten seconds later the name is %q", got)
	}
}

// BenchmarkReport is a report about 250 pods, and one about the first ten of them.
func BenchmarkReport(b *testing.B) {
	table := newNameTable()
	for i := range 250 {
		table.SetPod(addr(i), podNo(i))
		for n := range 40 {
			table.ask(b, i, fmt.Sprintf("name-%d.shop.svc.cluster.local.", (i+n)%400), clients.Query{}, 1)
		}
	}
	for name, report := range map[string]func(){
		"all":   func() { table.Report(clients.Pods, clients.Minute) },
		"top":   func() { table.Top(clients.Pods, clients.Minute, 10) },
		"names": func() { table.Names(clients.TopNames, clients.Minute, 10) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				report()
			}
		})
	}
}
