package clients_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/server/clients"
)

// sameNames compares rows about names.
var sameNames = cmp.Comparer(func(a, b clients.NameCount) bool { return a == b })

// TestNamesOfReusedAddress: names belong to the client that had the address when they were asked for.
func TestNamesOfReusedAddress(t *testing.T) {
	isHost := false
	clock := new(fakeClock)
	table := nameTable{clients.New(clients.Options{Clock: clock.read, Stripes: 2, Host: func(netip.Addr) bool { return isHost }}), clock}
	table.SetKernelSample(1)
	steps := []struct {
		change func()
		kind   clients.Kind
		pod    clients.Pod
	}{
		{func() {}, clients.Unknown, clients.Pod{}},
		{func() { table.SetPod(addr(1), podNo(1)) }, clients.PodClient, podNo(1)},
		{func() { table.SetPod(addr(1), podNo(2)) }, clients.PodClient, podNo(2)},
		{func() { table.EndAddr(addr(1)) }, clients.Unknown, clients.Pod{}},
		{func() { table.SetPod(addr(1), podNo(3)) }, clients.PodClient, podNo(3)},
		{func() { table.SetPod(addr(1), clients.Pod{}); isHost = true }, clients.Host, clients.Pod{}},
		{func() { isHost = false; table.Sweep() }, clients.Unknown, clients.Pod{}},
		{func() { table.SetPod(addr(1), podNo(3)) }, clients.PodClient, podNo(3)},
	}
	var want []clients.NameCount
	for i, step := range steps {
		step.change()
		name, n := string(rune('a'+i))+".test.", len(steps)-i
		table.ask(t, 1, name, clients.Query{}, n)
		table.SampleKernel(addr(1), wireName(t, name), false)
		table.Sweep()
		want = append(want, clients.NameCount{Name: name, Kind: step.kind, Pod: step.pod, Addr: addr(1), Count: uint64(n) + 1})
	}
	if diff := cmp.Diff(want, table.Names(clients.TopClientNames, clients.Minute, 99).Names, sameNames); diff != "" {
		t.Error(diff)
	}
	tops := make(map[string]string)
	for _, row := range table.Report(clients.Pods, clients.Minute).Clients {
		tops[row.Kind.String()+row.Pod.Name] = row.TopName.Name
	}
	if want := map[string]string{"(unknown)": "a.test.", podNo(1).Name: "b.test.", podNo(2).Name: "c.test.", podNo(3).Name: "e.test.", "(host)": "f.test."}; !cmp.Equal(want, tops) {
		t.Error(cmp.Diff(want, tops))
	}
}

// TestNamesOfOneClient: a client that has lost its address and got it back has one row for a name.
func TestNamesOfOneClient(t *testing.T) {
	table := newNameTable()
	for range 3 {
		table.SetPod(addr(1), podNo(1))
		table.ask(t, 1, "a.test.", clients.Query{}, 2)
		table.SetPod(addr(1), clients.Pod{})
	}
	want := []clients.NameCount{{Name: "a.test.", Kind: clients.PodClient, Pod: podNo(1), Addr: addr(1), Count: 6}}
	if diff := cmp.Diff(want, table.Names(clients.TopClientNames, clients.Minute, 9).Names, sameNames); diff != "" {
		t.Error(diff)
	}
}

// TestNamesOfOther: clients without counters of their own share a row.
func TestNamesOfOther(t *testing.T) {
	clock := new(fakeClock)
	table := nameTable{clients.New(clients.Options{Clock: clock.read, MaxClients: 1}), clock}
	table.SetKernelSample(4)
	for i := range 3 {
		table.ask(t, i, "a.test.", clients.Query{}, 1)
	}
	table.SampleKernel(addr(3), wireName(t, "a.test."), false)
	want := []clients.NameCount{{Name: "a.test.", Kind: clients.Other, Count: 6}, {Name: "a.test.", Kind: clients.Unknown, Addr: addr(0), Count: 1}}
	if diff := cmp.Diff(want, table.Names(clients.TopClientNames, clients.Minute, 9).Names, sameNames); diff != "" {
		t.Error(diff)
	}
	if row := table.Report(clients.Pods, clients.Minute).Clients[0]; row.Kind != clients.Other || row.TopName.Name != "a.test." {
		t.Errorf("the first row is %+v", row)
	}
}

// TestIdentityBound: of clients that come and go, the table remembers a bounded number.
func TestIdentityBound(t *testing.T) {
	table := newNameTable()
	table.SetPod(addr(1), podNo(1))
	table.ask(t, 1, "first.test.", clients.Query{}, 9)
	for i := range 2000 {
		table.SetPod(addr(1), podNo(2+i%2))
		table.ask(t, 1, "later.test.", clients.Query{}, 1)
		table.clock.advance(time.Millisecond)
	}
	rows := table.Names(clients.TopClientNames, clients.Minute, 9).Names
	var first clients.NameCount
	for _, row := range rows {
		if row.Name == "first.test." {
			first = row
		}
	}
	if want := (clients.NameCount{Name: "first.test.", Kind: clients.Unknown, Count: 9}); first != want {
		t.Errorf("%+v, want %+v: %+v", first, want, rows)
	}
}
