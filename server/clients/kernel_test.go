package clients_test

import (
	"testing"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
)

// wireName returns a name in wire form.
func wireName(t *testing.T, name string) []byte {
	t.Helper()
	n, err := wire.ParseName(name)
	if err != nil {
		t.Fatal(err)
	}
	return []byte(n)
}

// TestSampleKernel: a sample counts in the tables of names for as many answers as it stands for, and reports
// say so where there may be some.
func TestSampleKernel(t *testing.T) {
	table := newNameTable()
	table.SetPod(addr(1), podNo(1))
	table.SampleKernel(addr(1), wireName(t, "early.test."), false) // of nothing yet
	if r := table.Names(clients.TopNames, clients.Minute, 9); r.KernelSample != 0 || r.Total != 0 {
		t.Errorf("without samples: %+v", r)
	}
	table.SetKernelSample(64)
	table.ask(t, 1, "www.test.", clients.Query{Rcode: wire.ServFail}, 3)
	table.SampleKernel(addr(1), wireName(t, "www.test."), false)
	table.SampleKernel(addr(1), wireName(t, "www.example.com.svc.cluster.local."), true)
	table.SampleKernel(addr(1), nil, false)
	for topic, want := range map[clients.Topic]struct {
		name                 string
		count, total, sample uint64
	}{
		clients.TopNames:       {"www.test.", 67, 131, 64},
		clients.TopClientNames: {"www.test.", 67, 131, 64},
		clients.TopWaste:       {"example.com.svc.cluster.local.", 64, 64, 64},
		clients.TopFailing:     {"www.test.", 3, 3, 0},
	} {
		r := table.Names(topic, clients.Minute, 1)
		if len(r.Names) != 1 || r.Names[0].Name != want.name || r.Names[0].Count != want.count || r.Total != want.total || r.KernelSample != int(want.sample) {
			t.Errorf("topic %d: %+v, want %+v", topic, r, want)
		}
	}
	if r := table.Names(clients.TopClientNames, clients.Minute, 1); r.Names[0].Pod != podNo(1) {
		t.Errorf("the client is %+v", r.Names[0])
	}
}
