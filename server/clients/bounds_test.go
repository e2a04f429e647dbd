package clients_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/server/clients"
)

// TestMaxClients: the addresses beyond the limit are counted as (other), and their number is
// estimated. A pod takes the place of an address of no pod.
func TestMaxClients(t *testing.T) {
	const limit, more = 512, 300
	table := clients.New(clients.Options{Stripes: 2})
	for range 2 {
		for i := range limit + more {
			table.Count(i, addr(i), clients.Query{})
		}
	}
	r := table.Report(clients.Pods, clients.Minute)
	all := queries(r)
	if n := all["(other)"]; n != 2*more || len(all) != limit+1 || r.Used != limit || r.Max != limit {
		t.Errorf("(other) has %d queries beside %d clients, used %d of %d", n, len(all)-1, r.Used, r.Max)
	}
	want := clients.Usage{Addresses: limit, MaxAddresses: limit, MaxNamespaces: 32, MaxWorkloads: 64}
	if diff := cmp.Diff(want, table.Usage()); diff != "" {
		t.Error(diff)
	}
	if r.Refused < more*9/10 || r.Refused > more*11/10 {
		t.Errorf("%d addresses are estimated to be (other), want about %d", r.Refused, more)
	}
	table.SetPod(addr(limit+1), podNo(1))
	table.Count(1, addr(limit+1), clients.Query{})
	if n := queries(table.Report(clients.Pods, clients.Minute))["pod-1"]; n != 1 {
		t.Errorf("the pod has %d queries, want 1", n)
	}
	want.Namespaces = 1
	if diff := cmp.Diff(want, table.Usage()); diff != "" {
		t.Errorf("with a pod: %s", diff)
	}
}

// TestIdle: a client that is no pod loses its counters after ten minutes without queries, and its
// row a minute later.
func TestIdle(t *testing.T) {
	var c fakeClock
	table := clients.New(clients.Options{MaxClients: 3, Clock: c.read})
	table.SetPod(addr(3), podNo(3))
	for i := 1; i <= 3; i++ {
		table.Count(0, addr(i), clients.Query{})
	}
	table.Sweep()
	for range 10 {
		c.advance(time.Minute)
		table.Count(0, addr(2), clients.Query{})
		table.Sweep()
	}
	table.Count(0, addr(4), clients.Query{})
	want := map[string]uint64{addr(1).String(): 1, addr(2).String(): 11, "pod-3": 1, addr(4).String(): 1}
	if diff := cmp.Diff(want, queries(table.Report(clients.Pods, clients.Minute))); diff != "" {
		t.Error(diff)
	}
	c.advance(time.Minute)
	table.Sweep()
	delete(want, addr(1).String())
	if diff := cmp.Diff(want, queries(table.Report(clients.Pods, clients.Minute))); diff != "" {
		t.Error(diff)
	}
}

// TestEndedPod: the row of a pod goes a minute after the pod.
func TestEndedPod(t *testing.T) {
	var c fakeClock
	table := clients.New(clients.Options{Clock: c.read})
	table.SetPod(addr(1), podNo(1))
	table.Count(0, addr(1), clients.Query{})
	table.EndAddr(addr(1))
	table.SetPod(addr(1), clients.Pod{})
	for _, step := range []struct {
		after time.Duration
		rows  int
	}{{0, 1}, {59 * time.Second, 1}, {time.Second, 0}} {
		c.advance(step.after)
		table.Sweep()
		if r := table.Report(clients.Pods, clients.Minute); len(r.Clients) != step.rows || r.Used != 0 {
			t.Errorf("after %v: %d rows, %d slots in use", c.read(), len(r.Clients), r.Used)
		}
	}
}

// TestRestoredAddress: a pod that still has its address a minute after the address has ended gets it back,
// unless it has lost it meanwhile.
func TestRestoredAddress(t *testing.T) {
	var c fakeClock
	table := clients.New(clients.Options{Clock: c.read})
	for i := 1; i <= 3; i++ {
		table.SetPod(addr(i), podNo(i))
		table.EndAddr(addr(i))
	}
	table.SetPod(addr(2), clients.Pod{})
	table.SetPod(addr(3), clients.Pod{})
	table.SetPod(addr(3), podNo(3)) // the news is late
	ask := func(after time.Duration) {
		c.advance(after)
		table.Sweep()
		for i := 1; i <= 3; i++ {
			table.Count(0, addr(i), clients.Query{})
		}
	}
	ask(59 * time.Second)
	ask(time.Second)
	want := map[string]uint64{addr(1).String(): 1, addr(2).String(): 2, addr(3).String(): 1, "pod-1": 1, "pod-3": 1}
	if diff := cmp.Diff(want, queries(table.Report(clients.Pods, clients.Minute))); diff != "" {
		t.Error(diff)
	}
}

// TestMaxSeries: 32 namespaces and 64 workloads have series, and the rest is (other).
func TestMaxSeries(t *testing.T) {
	const pods = 100
	for level, limit := range map[clients.Level]uint64{clients.ByNamespace: 32, clients.ByWorkload: 64, clients.NoSeries: 0} {
		table := clients.New(clients.Options{Level: level})
		for i := range pods {
			name := fmt.Sprint(i)
			table.SetPod(addr(i), clients.Pod{Namespace: "n" + name, Name: name, UID: name, Workload: clients.Workload{Kind: "Pod", Name: name}})
			table.Count(0, addr(i), clients.Query{})
		}
		var own, other uint64
		for _, s := range table.Series() {
			if s.Namespace == "(other)" {
				other += s.Counts.Queries()
			} else {
				own += s.Counts.Queries()
			}
		}
		if own != limit || other != pods-limit {
			t.Errorf("level %d: %d queries in series of their own, %d in (other)", level, own, other)
		}
	}
}

// TestSeriesEnd: a series ends a minute after the last pod of its namespace, starts again at
// zero, and never decreases between.
func TestSeriesEnd(t *testing.T) {
	var c fakeClock
	table := clients.New(clients.Options{Clock: c.read})
	of := func() (n uint64, ok bool) {
		for _, s := range table.Series() {
			if s.Namespace == "ns0" {
				return s.Counts.Queries(), true
			}
		}
		return 0, false
	}
	check := func(when string, want uint64, wantOK bool) {
		t.Helper()
		if n, ok := of(); n != want || ok != wantOK {
			t.Errorf("%s: %d, %t, want %d, %t", when, n, ok, want, wantOK)
		}
	}
	table.SetPod(addr(1), podNo(0))
	check("before the first query", 0, false)
	table.Count(0, addr(1), clients.Query{})
	check("after it", 1, true)
	c.advance(time.Hour)
	check("an hour later", 1, true)
	table.SetPod(addr(1), clients.Pod{})
	c.advance(59 * time.Second)
	check("59 s after the pod", 1, true)
	table.SetPod(addr(2), podNo(3)) // the same namespace
	c.advance(time.Hour)
	check("with another pod", 1, true)
	table.Count(0, addr(2), clients.Query{})
	check("after its query", 2, true)
	table.EndAddr(addr(2))
	c.advance(time.Minute)
	check("60 s after the last pod", 0, false)
	table.SetPod(addr(3), podNo(6))
	table.Count(0, addr(3), clients.Query{})
	check("with a new pod", 1, true)
}

// TestWindows: a window covers between half of its length and all of it.
func TestWindows(t *testing.T) {
	var c fakeClock
	table := clients.New(clients.Options{Clock: c.read})
	table.SetPod(addr(1), podNo(1))
	for range 7200 {
		c.advance(time.Second)
		table.Count(0, addr(1), clients.Query{})
		table.Sweep()
	}
	for w, length := range map[clients.Window]time.Duration{clients.TenSeconds: 10 * time.Second, clients.Minute: time.Minute, clients.Hour: time.Hour} {
		r := table.Report(clients.Pods, w)
		if r.Window < length/2 || r.Window > length || r.Since != 2*time.Hour {
			t.Errorf("the window of %v covers %v of %v", length, r.Window, r.Since)
		}
		if n := r.Clients[0].Window.Queries(); n != uint64(r.Window/time.Second) {
			t.Errorf("the window of %v has %d queries in %v", length, n, r.Window)
		}
		var latencies uint64
		for _, n := range r.Clients[0].Latency {
			latencies += n
		}
		if latencies < 30 || latencies > 60 {
			t.Errorf("%d latencies", latencies)
		}
	}
}

// TestMemory: 250 pods on a node with 16 processors or more take less than 1.5 MiB.
func TestMemory(t *testing.T) {
	const pods, limit = 250, 3 << 19
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	table := clients.New(clients.Options{Stripes: 16})
	for i := range pods {
		table.SetPod(addr(i), podNo(i))
		for stripe := range 16 {
			table.Count(stripe, addr(i), clients.Query{})
		}
	}
	table.Sweep()
	runtime.GC()
	runtime.ReadMemStats(&after)
	bytes := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("%d bytes", bytes)
	if bytes > limit {
		t.Errorf("%d bytes, want at most %d", bytes, limit)
	}
	runtime.KeepAlive(table)
}
