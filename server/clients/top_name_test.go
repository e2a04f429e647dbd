package clients_test

import (
	"testing"
	"time"

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
	if top := table.Report(clients.Pods, clients.Seconds10).Clients[0].TopName; top != (clients.TopName{}) {
		t.Errorf("an hour later: %+v", top)
	}
}
