package scale

import (
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/soak"
)

// TestMeasureFleet takes two small fleets through everything. Only that things were measured is looked at, and what holds however fast
// the machine is.
func TestMeasureFleet(t *testing.T) {
	peer.Build(t, "nodens") // skips under -short
	p := harness.Plan{Rounds: 1, Length: soak.Choose(100*time.Millisecond, time.Second), Short: true, Progress: t.Output(), Section: harness.FleetFlag}
	var err error
	if p.Only, err = harness.ParseFilter("/scope node"); err != nil {
		t.Fatal(err)
	}
	r, err := MeasureFleet(t.Context(), p, MinServices, FleetOptions{Sizes: []int{1, 2}, Partition: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.starts) != 2 || len(r.steady) != 2 || len(r.outages) != 2 {
		t.Errorf("%d starts, %d steady fleets and %d outages, want 2 each", len(r.starts), len(r.steady), len(r.outages))
	}
	for at, runs := range r.steady {
		if runs[0].missed > 0 {
			t.Errorf("%v: %d changes missed", at, runs[0].missed)
		}
	}
	for way, lists := range map[string]int{byList: 4, byUpgrade: 0, byCrash: 0} {
		for _, c := range r.ways[way] {
			if c.requests.lists != lists || c.requests.failed > 0 {
				t.Errorf("%s: %d lists, %d failed requests, want %d lists", way, c.requests.lists, c.requests.failed, lists)
			}
		}
	}
	if r.compared != 6 || r.different > 0 {
		t.Errorf("%d compared, %d different, want 6 and none", r.compared, r.different)
	}
	for _, target := range r.Targets() {
		if !target.Judge().Measured {
			t.Errorf("%s: not measured", target.What)
		}
	}
	if pages, err := r.Render(nil); err != nil || len(pages) != 1 {
		t.Errorf("%d pages: %v", len(pages), err)
	}
	if slices.Contains(r.Tables(), "") {
		t.Error("a table is empty")
	}
}

func TestLineThrough(t *testing.T) {
	l := lineThrough([]float64{0, 1, 2, 3}, []float64{1, 3.5, 4.5, 7})
	value, within := l.value(5000)
	got := []float64{l.at, l.slope, l.residual, value, within}
	// By hand: the mean is 1.5 and 4, and the squares of the distances from the mean are 5.
	want := []float64{1.15, 1.9, 0.45, 9501.15, math.Sqrt(0.45/2*4) / 2 * math.Sqrt(0.25+4998.5*4998.5/5)}
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-6*math.Abs(a) })); d != "" {
		t.Errorf("line (-want +got):\n%s", d)
	}
}

// TestRequestLog counts what a view and client-go ask for, by the second.
func TestRequestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &requestLog{begun: time.Now()}
		code := http.StatusOK
		rt := log.wrap(roundTrip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: code, Body: http.NoBody}, nil
		}))
		ask := func(query string) {
			resp, err := rt.RoundTrip(httptest.NewRequest(http.MethodGet, "/api/v1/services?"+query, nil))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
		ask("watch=true&sendInitialEvents=true")
		ask("limit=500")
		ask("limit=1")
		time.Sleep(2 * time.Second)
		ask("watch=true&resourceVersion=7")
		ask("fieldSelector=metadata.name%3Da")
		code = http.StatusGone
		ask("watch=true&resourceVersion=1")
		want := []requestSecond{{requests: 3, lists: 2, watching: 1}, {}, {requests: 3, failed: 1, watching: 1}}
		if d := cmp.Diff(want, log.series(), cmp.AllowUnexported(requestSecond{})); d != "" {
			t.Errorf("seconds (-want +got):\n%s", d)
		}
		if n := log.total(1).requests; n != 3 {
			t.Errorf("%d requests from the second second on, want 3", n)
		}
	})
}

func TestFleetOptions(t *testing.T) {
	o := DefaultFleet()
	if flags := o.Flags(); flags != "" {
		t.Errorf("the flags of the default are %q", flags)
	}
	if err := o.ParseSizes("400,100"); err != nil {
		t.Error(err)
	}
	o.Partition = time.Second
	if flags := o.Flags(); flags != " -fleet-sizes 100,400 -fleet-partition 1s" {
		t.Errorf("the flags are %q", flags)
	}
	if err := o.ParseSizes("1,x"); err == nil {
		t.Error("x is a number")
	}
}
