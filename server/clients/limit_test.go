package clients_test

import (
	"bytes"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodens-dns/nodens/server/clients"
)

// limitedOf returns the limited queries of each client in a report by pod, by reason.
func limitedOf(r clients.Report) map[string][]uint64 {
	all := make(map[string][]uint64)
	for _, c := range r.Clients {
		if c.Total.AllLimited() > 0 {
			all[rowName(c)] = slices.Clone(c.Total.Limited[:])
		}
	}
	return all
}

// TestLimit: limited queries are counted for their client, namespace and reason, and are no queries.
func TestLimit(t *testing.T) {
	table := clients.New(clients.Options{MaxClients: 2, Stripes: 2})
	table.SetPod(addr(1), podNo(1))
	for stripe := range 4 {
		table.Limit(stripe, addr(1), clients.ReasonClientLimit, 10)
		table.Limit(stripe, netip.AddrFrom16(addr(1).As16()), clients.ReasonSocket, 1)
	}
	table.Limit(0, addr(2), clients.ReasonPlaces, 2)
	table.Limit(0, addr(3), clients.ReasonConnections, 3) // beyond MaxClients
	table.Limit(0, addr(4), clients.ReasonBudget, 4)
	table.Limit(0, addr(4), clients.ReasonBudget, 0)
	r := table.Report(clients.Pods, clients.Minute)
	want := map[string][]uint64{
		"pod-1": {40, 0, 0, 0, 4, 0}, addr(2).String(): {0, 2, 0, 0, 0, 0}, "(other)": {0, 0, 0, 4, 0, 3},
	}
	if diff := cmp.Diff(want, limitedOf(r)); diff != "" {
		t.Error(diff)
	}
	if r.Total.Queries() != 0 || r.Total.AllLimited() != 53 {
		t.Errorf("all clients: %+v", r.Total)
	}
	series := make(map[string]uint64)
	for _, s := range table.Series() {
		series[s.Namespace] = s.Counts.AllLimited()
	}
	if diff := cmp.Diff(map[string]uint64{"ns1": 44, "(unknown)": 2, "(other)": 7}, series); diff != "" {
		t.Error(diff)
	}
	var none *clients.Table
	none.Limit(0, addr(1), clients.ReasonPlaces, 1) // does not panic
}

// TestLimitConcurrent: no limited query is lost while the counts are read.
func TestLimitConcurrent(t *testing.T) {
	const each = 1000
	table := clients.New(clients.Options{Stripes: 2})
	var readers sync.WaitGroup
	for stripe := range 4 {
		readers.Go(func() {
			for range each {
				table.Limit(stripe, addr(1), clients.ReasonClientLimit, 1)
			}
		})
	}
	for range 10 {
		table.Sweep()
	}
	readers.Wait()
	if n := table.Report(clients.Pods, clients.Minute).Total.AllLimited(); n != 4*each {
		t.Errorf("%d limited queries, want %d", n, 4*each)
	}
}

// TestLimitAllocs: a limited query of a client that has asked before allocates nothing.
func TestLimitAllocs(t *testing.T) {
	table := clients.New(clients.Options{})
	table.Limit(0, addr(1), clients.ReasonClientLimit, 1)
	if n := testing.AllocsPerRun(100, func() { table.Limit(0, addr(1), clients.ReasonClientLimit, 1) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// limitLog is a table with a log, whose new lines take returns.
type limitLog struct {
	*clients.Table
	fakeClock
	out bytes.Buffer
}

func newLimitLog() *limitLog {
	l := new(limitLog)
	handler := slog.NewTextHandler(&l.out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	l.Table = clients.New(clients.Options{Clock: l.read, Log: slog.New(handler)})
	return l
}

// take sweeps the table after a time, and returns the lines that it logs.
func (l *limitLog) take(after time.Duration) (lines []string) {
	l.advance(after)
	l.Sweep()
	lines = strings.FieldsFunc(l.out.String(), func(c rune) bool { return c == '\n' })
	l.out.Reset()
	return lines
}

// TestLimitLog: a line for each client and reason, at most once a minute, with the count since the last one.
func TestLimitLog(t *testing.T) {
	l := newLimitLog()
	l.SetPod(addr(1), podNo(1))
	check := func(step string, after time.Duration, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, l.take(after), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: %s", step, diff)
		}
	}
	const pod = `level=WARN msg="client limited" client=10.1.0.1 namespace=ns1 pod=pod-1 `
	l.Count(0, addr(1), clients.Query{})
	check("a query", time.Second)
	l.Limit(0, addr(1), clients.ReasonClientLimit, 7)
	check("the first one", time.Second, pod+"reason=client_limit count=7")
	l.Limit(0, addr(1), clients.ReasonClientLimit, 1)
	check("less than a minute later", 59*time.Second)
	l.Limit(0, addr(1), clients.ReasonClientLimit, 2)
	l.Limit(0, addr(1), clients.ReasonPlaces, 1)
	check("a minute later", time.Second, pod+"reason=client_limit count=3", pod+"reason=places count=1")
	check("nothing is limited", time.Hour)
	l.Limit(0, addr(2), clients.ReasonSocket, 1)
	check("an unknown address", time.Second, `level=WARN msg="client limited" client=10.1.0.2 namespace=(unknown) pod="" reason=socket count=1`)
}

// TestLimitLogBound: of many limited clients a sweep logs those with the highest counts, and later ones the others.
func TestLimitLogBound(t *testing.T) {
	const limited, each = 12, 5
	l := newLimitLog()
	for i := range limited {
		l.Limit(i, addr(i), clients.ReasonClientLimit, uint64(1+i))
	}
	next := limited
	for _, want := range []int{each, each, limited - 2*each, 0} {
		lines := l.take(time.Second)
		if len(lines) != want {
			t.Errorf("%d lines, want %d", len(lines), want)
		}
		for _, line := range lines {
			if next--; !strings.Contains(line, "client="+addr(next).String()+" ") {
				t.Errorf("%s, want that of %v", line, addr(next))
			}
		}
	}
}
