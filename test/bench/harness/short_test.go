package harness

import (
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodens-dns/nodens/test/rig/load"
)

// TestForms: the short form is smaller in everything, and the other one changes nothing.
func TestForms(t *testing.T) {
	type values struct {
		Rate, Rate1, Number, Names, Listed int
		Wait, Patience                     time.Duration
		Job                                load.LoopJob
	}
	for _, test := range []struct {
		name string
		plan Plan
		want values
	}{
		{"long", Plan{Length: time.Second}, values{
			Rate: 20000, Rate1: 100, Number: 5000, Names: NameCount, Listed: 20, Wait: time.Minute,
			Job: load.LoopJob{Length: time.Second, Streams: []load.Stream{{Rate: 20000}, {Window: 256}}},
		}},
		{"short", Plan{Length: time.Second, Short: true}, values{
			Rate: shortRate, Rate1: 100, Number: shortNames, Names: shortNames, Listed: shortNames, Wait: time.Second, Patience: shortPatience,
			Job: load.LoopJob{Streams: []load.Stream{
				{Rate: shortRate, Count: shortCount, Patience: shortPatience}, {Window: 256, Count: shortCount, Patience: shortPatience},
			}},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := test.plan
			sets := []QuerySet{QuerySets[0], {Names: make([]string, 20)}}
			streams := []load.Stream{{Rate: 20000}, {Window: 256}}
			workloads := p.Sized([]Workload{{QuerySet: sets[0]}, {QuerySet: sets[1]}})
			got := values{
				Rate: p.Rate(20000), Rate1: p.Rate(100), Number: p.Number(5000), Names: workloads[0].Count(), Listed: workloads[1].Count(),
				Wait: p.Wait(time.Minute), Patience: p.Patience(), Job: p.Job(load.LoopJob{Streams: streams}),
			}
			if d := cmp.Diff(test.want, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if streams[0].Rate != 20000 || sets[0].Count() != NameCount {
				t.Error("the caller's streams or sets have changed")
			}
		})
	}
}

// TestRunAll: the short form runs all at once; the other one stops at the first error.
func TestRunAll(t *testing.T) {
	sick, other := errors.New("sick"), errors.New("other")
	var all sync.WaitGroup
	all.Add(3)
	meet := func(err error) func() error {
		return func() error {
			all.Done()
			all.Wait()
			return err
		}
	}
	if err := (Plan{Short: true}).RunAll([]func() error{meet(nil), meet(sick), meet(other)}); !errors.Is(err, sick) {
		t.Errorf("side by side: %v, want %v", err, sick)
	}
	calls := 0
	call := func(err error) func() error {
		return func() error {
			calls++
			return err
		}
	}
	if err := (Plan{}).RunAll([]func() error{call(nil), call(sick), call(other)}); !errors.Is(err, sick) || calls != 2 {
		t.Errorf("in turn: %v after %d calls, want %v after 2", err, calls, sick)
	}
}

// TestPortSet: no port is returned twice.
func TestPortSet(t *testing.T) {
	var s portSet
	seen := map[Port]bool{}
	for range 200 {
		p, err := s.next()
		if err != nil {
			t.Fatal(err)
		}
		if p == 0 || seen[p] {
			t.Fatalf("port %s is returned twice, or none", p)
		}
		seen[p] = true
	}
}
