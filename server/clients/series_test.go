package clients_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/server/clients"
)

// seriesOf returns the queries of each series by its namespace and workload.
func seriesOf(table *clients.Table) map[string]uint64 {
	all := make(map[string]uint64)
	for _, s := range table.Series() {
		all[s.Namespace+" "+s.Workload.Name] += s.Counts.Queries()
	}
	return all
}

// TestSetLevel: a namespace's pods count in its series, in those of its workloads, or in (other). A change
// takes effect with the next query, loses none, and moves none. The former series end a minute later,
// unless the namespace goes back to them.
func TestSetLevel(t *testing.T) {
	var c fakeClock
	table := clients.New(clients.Options{Clock: c.read})
	for i, namespace := range []string{"a", "a", "b"} {
		name := string(rune('x' + i))
		table.SetPod(addr(i), clients.Pod{Namespace: namespace, Name: name, UID: name, Workload: clients.Workload{Kind: "Deployment", Name: name}})
	}
	for _, step := range []struct {
		name   string
		change func()
		want   map[string]uint64
	}{
		{"default", func() {}, map[string]uint64{"a ": 2, "b ": 1}},
		{"workload", func() { table.SetLevel("a", clients.ByWorkload) }, map[string]uint64{"a ": 2, "a x": 1, "a y": 1, "b ": 2}},
		{"59 s later", func() { c.advance(59 * time.Second) }, map[string]uint64{"a ": 2, "a x": 2, "a y": 2, "b ": 3}},
		{"back", func() { table.ResetLevel("a") }, map[string]uint64{"a ": 4, "a x": 2, "a y": 2, "b ": 4}},
		{"off", func() { table.SetLevel("a", clients.NoSeries) }, map[string]uint64{"a ": 4, "a x": 2, "a y": 2, "b ": 5, "(other) ": 2}},
		{"60 s later", func() { c.advance(time.Minute) }, map[string]uint64{"b ": 6, "(other) ": 4}},
		{"the same again", func() { table.SetLevel("a", clients.NoSeries) }, map[string]uint64{"b ": 7, "(other) ": 6}},
		{"anew", func() { table.SetLevel("a", clients.ByNamespace) }, map[string]uint64{"a ": 2, "b ": 8, "(other) ": 6}},
		{"another namespace", func() { table.SetLevel("c", clients.NoSeries) }, map[string]uint64{"a ": 4, "b ": 9, "(other) ": 6}},
	} {
		step.change()
		for i := range 3 {
			table.Count(i, addr(i), clients.Query{})
		}
		if diff := cmp.Diff(step.want, seriesOf(table)); diff != "" {
			t.Errorf("%s: %s", step.name, diff)
		}
	}
	want := clients.Usage{Addresses: 3, Namespaces: 2, MaxAddresses: 512, MaxNamespaces: 32, MaxWorkloads: 64}
	if diff := cmp.Diff(want, table.Usage()); diff != "" {
		t.Error(diff)
	}
}

// TestSetLevelEndsNow: the series of a namespace without pods end a minute after the last pod, whatever
// level the namespace gets then.
func TestSetLevelEndsNow(t *testing.T) {
	var c fakeClock
	table := clients.New(clients.Options{Clock: c.read, Level: clients.ByWorkload})
	table.SetPod(addr(1), podNo(0))
	table.Count(0, addr(1), clients.Query{})
	table.SetPod(addr(1), clients.Pod{})
	c.advance(30 * time.Second)
	table.SetLevel("ns0", clients.NoSeries)
	c.advance(29 * time.Second)
	if got := seriesOf(table); len(got) != 1 {
		t.Errorf("59 s after the pod: %v", got)
	}
	c.advance(time.Second)
	if got := seriesOf(table); len(got) != 0 {
		t.Errorf("60 s after the pod: %v", got)
	}
}
