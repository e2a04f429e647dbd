package baseline_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodens-dns/nodens/internal/baseline"
	"github.com/nodens-dns/nodens/internal/stat"
)

// zone returns counters of a zone with lookups in the cache for all queries.
func zone(name string, queries, servFail, hits uint64) baseline.Zone {
	return baseline.Zone{Name: name, Queries: queries, ServFail: servFail, Lookups: queries, Hits: hits}
}

// timed returns counters of a zone with fast queries (250 µs at most) and slow ones (512 ms at
// most).
func timed(name string, fast, slow uint64) baseline.Zone {
	z := baseline.Zone{Name: name, Queries: fast + slow}
	z.Duration[0], z.Duration[11] = fast, slow
	return z
}

// peaked returns z with peaks.
func peaked(z baseline.Zone, p baseline.Peak) baseline.Zone {
	z.Peak = p
	return z
}

func zones(list ...baseline.Zone) baseline.Statistics { return baseline.Statistics{Zones: list} }

func view(objects int, age time.Duration, synced bool) baseline.Statistics {
	return baseline.Statistics{Views: []baseline.View{{Zone: "cluster.local.", Objects: objects, Age: age, Synced: synced}}}
}

func TestCompare(t *testing.T) {
	for name, tc := range map[string]struct {
		before, now baseline.Statistics
		want        []string
	}{
		"nothing":                      {zones(), zones(), nil},
		"equal":                        {zones(zone("a.", 1000, 10, 900)), zones(zone("a.", 1000, 10, 900)), nil},
		"all of 10 fail":               {zones(zone("a.", 1000, 0, 0)), zones(zone("a.", 10, 10, 0)), []string{"servfail in a.: 100.0% of 10 queries failed; before 0.0% of 1000"}},
		"all of 9 fail":                {zones(zone("a.", 1000, 0, 0)), zones(zone("a.", 9, 9, 0)), nil},
		"the zone had 27 queries":      {zones(zone("a.", 27, 0, 0)), zones(zone("a.", 10, 10, 0)), []string{"servfail in a.: 100.0% of 10 queries failed; before 0.0% of 27"}},
		"the zone had 26 queries":      {zones(zone("a.", 26, 0, 0)), zones(zone("a.", 10, 10, 0)), nil},
		"the zone had none":            {zones(zone("a.", 0, 0, 0)), zones(zone("a.", 1000, 1000, 0)), nil},
		"all failed before, too":       {zones(zone("a.", 10, 10, 0)), zones(zone("a.", 1000, 1000, 0)), nil},
		"fewer fail":                   {zones(zone("a.", 1000, 500, 0)), zones(zone("a.", 1000, 0, 0)), nil},
		"twice as many fail":           {zones(zone("a.", 1000, 100, 0)), zones(zone("a.", 1000, 240, 0)), nil},
		"more than twice as many fail": {zones(zone("a.", 1000, 100, 0)), zones(zone("a.", 1000, 260, 0)), []string{"servfail in a.: 26.0% of 1000 queries failed; before 10.0% of 1000"}},
		"all fail, most failed before": {zones(zone("a.", 1000, 800, 0)), zones(zone("a.", 1000, 1000, 0)), []string{"servfail in a.: 100.0% of 1000 queries failed; before 80.0% of 1000"}},
		"as many failed at times":      {zones(peaked(zone("a.", 1000, 100, 0), baseline.Peak{ServFail: 0.5})), zones(zone("a.", 1000, 500, 0)), nil},
		"as slow at times":             {zones(peaked(timed("a.", 1000, 0), baseline.Peak{Bucket: 10})), zones(timed("a.", 0, 200)), nil},
		"as few hits at times":         {zones(peaked(zone("a.", 1000, 0, 900), baseline.Peak{Misses: 0.4})), zones(zone("a.", 1000, 0, 450)), nil},
		"4 % more fail":                {zones(zone("a.", 10000, 0, 0)), zones(zone("a.", 10000, 400, 0)), nil},
		"6 % more fail":                {zones(zone("a.", 10000, 0, 0)), zones(zone("a.", 10000, 600, 0)), []string{"servfail in a.: 6.0% of 10000 queries failed; before 0.0% of 10000"}},
		"a zone of before":             {zones(zone("a.", 1000, 0, 0)), zones(zone("b.", 10, 10, 0)), nil},
		"in another group":             {zones(zone("a.", 1000, 0, 0)), zones(baseline.Zone{Name: "a.", Group: "view x", Queries: 10, ServFail: 10}), nil},
		"a new zone below":             {zones(zone("a.", 1000, 0, 0)), zones(zone("a.", 10, 10, 0), zone("b.a.", 1, 0, 0)), nil},
		"a zone below is gone":         {zones(zone(".", 1000, 0, 0), zone("b.a.", 1, 0, 0)), zones(zone(".", 10, 10, 0)), nil},
		"another zone below is":        {zones(zone("b.", 1000, 0, 0), zone("ab.", 1, 0, 0)), zones(zone("b.", 10, 10, 0)), []string{"servfail in b.: 100.0% of 10 queries failed; before 0.0% of 1000"}},
		"a zone below is left out":     {baseline.Statistics{Zones: []baseline.Zone{zone(".", 1000, 0, 0)}, More: true}, zones(zone(".", 10, 10, 0), zone("b.", 1, 0, 0)), []string{"servfail in .: 100.0% of 10 queries failed; before 0.0% of 1000"}},
		"all slow":                     {zones(timed("a.", 1000, 0)), zones(timed("a.", 0, 200)), []string{"latency in a.: 99% of 200 replies within 512ms; before within 250µs; 100.0% took longer than 16ms, before 0.0%"}},
		"all slow, few":                {zones(timed("a.", 1000, 0)), zones(timed("a.", 0, 199)), nil},
		"4 % more are slow":            {zones(timed("a.", 1000, 0)), zones(timed("a.", 960, 40)), nil},
		"slow before":                  {zones(timed("a.", 980, 20)), zones(timed("a.", 500, 500)), nil},
		"the cache hits half as often": {zones(zone("a.", 1000, 0, 900)), zones(zone("a.", 500, 0, 225)), []string{"hits in a.: the cache answered 45.0% of 500 queries; before 90.0% of 1000"}},
		"so, with few queries":         {zones(zone("a.", 1000, 0, 900)), zones(zone("a.", 499, 0, 225)), nil},
		"the cache hits a bit less":    {zones(zone("a.", 1000, 0, 900)), zones(zone("a.", 1000, 0, 710)), nil},
		"not synced":                   {view(100, 0, true), view(100, 0, false), []string{"view in cluster.local.: not synced; it was synced before"}},
		"never synced":                 {view(0, 0, false), view(0, 0, false), nil},
		"empty":                        {view(1, 0, true), view(0, 0, true), []string{"view in cluster.local.: 0 Services and namespaces; before 1"}},
		"half is left":                 {view(10, 0, true), view(5, 0, true), nil},
		"less than half is left":       {view(10, 0, true), view(4, 0, true), []string{"view in cluster.local.: 4 Services and namespaces; before 10"}},
		"less than half of few":        {view(9, 0, true), view(1, 0, true), nil},
		"quiet":                        {view(10, 0, true), view(10, 75*time.Second, true), nil},
		"no API server": {view(10, 75*time.Second, true), view(10, 125*time.Second, true), []string{
			"view in cluster.local.: the last event of the API server is 2m5s old; before 1m15s",
		}},
		"no API server before, too": {view(10, 2*time.Minute, true), view(10, 3*time.Minute, true), nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, r := range baseline.Compare(tc.before, tc.now) {
				got = append(got, r.String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("regressions differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHistogram(t *testing.T) {
	h := stat.NewHistogram(stat.DurationBuckets)
	for _, seconds := range []float64{0.0001, 0.00025, 0.003, 100} {
		h.Observe(seconds)
	}
	if diff := cmp.Diff(baseline.Histogram{0: 2, 4: 1, 16: 1}, baseline.NewHistogram(h.Read())); diff != "" {
		t.Errorf("counts differ (-want +got):\n%s", diff)
	}
}

func TestSub(t *testing.T) {
	before := baseline.Statistics{Interval: time.Minute, Zones: []baseline.Zone{timed("a.", 10, 1), timed("b.", 10, 0)}}
	now := baseline.Statistics{
		Interval: 3 * time.Minute, Zones: []baseline.Zone{timed("a.", 30, 5), timed("b.", 2, 0), timed("c.", 7, 0)},
		Views: view(3, time.Second, true).Views,
	}
	want := baseline.Statistics{
		Interval: 2 * time.Minute, Zones: []baseline.Zone{timed("a.", 20, 4), timed("b.", 2, 0), timed("c.", 7, 0)},
		Views: view(3, time.Second, true).Views,
	}
	if diff := cmp.Diff(want, now.Sub(before)); diff != "" {
		t.Errorf("the difference differs (-want +got):\n%s", diff)
	}
}

func TestWindow(t *testing.T) {
	var w baseline.Window[int]
	now := func(minutes int) baseline.Statistics {
		return baseline.Statistics{Interval: time.Duration(minutes) * time.Minute, Zones: []baseline.Zone{timed("a.", uint64(minutes), 0)}}
	}
	if diff := cmp.Diff(now(1), w.Last(now(1))); diff != "" {
		t.Errorf("without samples (-want +got):\n%s", diff)
	}
	for minutes := range 100 {
		w.Add(baseline.Sample[int]{Statistics: now(minutes)})
	}
	if diff := cmp.Diff(now(10), w.Last(now(100))); diff != "" {
		t.Errorf("with more samples than it keeps (-want +got):\n%s", diff)
	}
}

// TestWindowSince: a shorter time begins at the newest sample that is old enough, or at the oldest.
func TestWindowSince(t *testing.T) {
	var w baseline.Window[int]
	at := func(seconds int) baseline.Statistics {
		return baseline.Statistics{Interval: time.Duration(seconds) * time.Second, Zones: []baseline.Zone{timed("a.", uint64(seconds), 0)}}
	}
	if diff := cmp.Diff(at(7), at(7).Sub(w.Before(at(7).Interval, time.Minute).Statistics)); diff != "" {
		t.Errorf("without samples (-want +got):\n%s", diff)
	}
	for seconds := 0; seconds <= 120; seconds += 30 {
		w.Add(baseline.Sample[int]{Statistics: at(seconds)})
	}
	for now, want := range map[int]int{120: 60, 125: 65, 149: 89, 150: 60} {
		if diff := cmp.Diff(at(want), at(now).Sub(w.Before(at(now).Interval, time.Minute).Statistics)); diff != "" {
			t.Errorf("after %d s (-want +got):\n%s", now, diff)
		}
	}
	if diff := cmp.Diff(at(130), at(130).Sub(w.Before(at(130).Interval, time.Hour).Statistics)); diff != "" {
		t.Errorf("longer than the samples (-want +got):\n%s", diff)
	}
}

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		h    baseline.Histogram
		p    uint64
		want time.Duration
	}{
		{baseline.Histogram{}, 50, 0},
		{baseline.Histogram{1}, 99, 250 * time.Microsecond},
		{baseline.Histogram{99, 0, 1}, 99, 250 * time.Microsecond},
		{baseline.Histogram{98, 0, 2}, 99, time.Millisecond},
		{baseline.Histogram{0, 1, 1}, 50, 500 * time.Microsecond},
		{baseline.Histogram{16: 5}, 50, 16384 * time.Millisecond},
	} {
		if got := c.h.Quantile(c.p); got != c.want {
			t.Errorf("percentile %d of %v is %v, want %v", c.p, c.h, got, c.want)
		}
	}
}

// TestWindowPeaks: the peaks are the worst values between two samples that have enough queries.
func TestWindowPeaks(t *testing.T) {
	var w baseline.Window[int]
	sum := baseline.Zone{Name: "a."}
	for _, slice := range []baseline.Zone{
		{Queries: 1000, Lookups: 1000, Hits: 900, Duration: baseline.Histogram{1000}},
		{Queries: 100, ServFail: 30, Lookups: 50, Duration: baseline.Histogram{90, 10}},
		{Queries: 19, ServFail: 19, Duration: baseline.Histogram{9: 19}},
		{Queries: 1000, ServFail: 10, Lookups: 900, Hits: 600, Duration: baseline.Histogram{980, 0, 0, 20}},
	} {
		w.Add(baseline.Sample[int]{Statistics: zones(sum)})
		sum = sum.Add(slice)
	}
	got := w.Last(zones(sum)).Zones[0].Peak
	if diff := cmp.Diff(baseline.Peak{ServFail: 0.3, Misses: 1.0 / 3, Bucket: 3}, got, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
		t.Errorf("the peaks differ (-want +got):\n%s", diff)
	}
}

func TestEncode(t *testing.T) {
	var s baseline.Statistics
	for i := range baseline.MaxZones + 10 {
		s.Zones = append(s.Zones, timed(strings.Repeat("a", i)+".", uint64(i), 1))
	}
	s.Zones = append(s.Zones, timed(strings.Repeat("a", 1000), 5000, 0))
	s.Interval, s.Views = 5*time.Minute, view(3, 4000*24*time.Hour, true).Views
	got, err := baseline.Decode(baseline.Encode(s))
	if err != nil {
		t.Fatal(err)
	}
	want := s
	want.Zones, want.More = nil, true
	for i := range baseline.MaxZones {
		want.Zones = append(want.Zones, timed(strings.Repeat("a", baseline.MaxZones+9-i)+".", uint64(baseline.MaxZones+9-i), 1))
	}
	want.Views = view(3, 365*24*time.Hour, true).Views
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("decoded statistics differ (-want +got):\n%s", diff)
	}
}

// TestEncodeEscapes: the length holds for names that need many escapes, too.
func TestEncodeEscapes(t *testing.T) {
	var s baseline.Statistics
	for i := range 40 {
		name := strings.Repeat("\x00", 290) + string(rune('a'+i))
		s.Zones = append(s.Zones, timed(name, 1<<50, 1<<50))
		s.Views = append(s.Views, baseline.View{Zone: name})
	}
	text := baseline.Encode(s)
	if len(text) > baseline.MaxEncoded {
		t.Errorf("%d bytes, want %d at most", len(text), baseline.MaxEncoded)
	}
	if got, err := baseline.Decode(text); err != nil || !got.More {
		t.Errorf("Decode: %v, more %t", err, got.More)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, tc := range []struct{ text, problem string }{
		{"", "unexpected end"},
		{"[]", "cannot unmarshal"},
		{`{"interval":-1}`, "interval"},
		{`{"zones":[{"name":"a."},{"name":"a."}]}`, "twice"},
		{`{"zones":[{"name":"` + strings.Repeat("a", 301) + `"}]}`, "a zone name of 301 bytes"},
		{`{"zones":[{"name":"a.","queries":1,"servfail":2}]}`, "contradict"},
		{`{"zones":[{"name":"a.","queries":1,"hits":1}]}`, "contradict"},
		{`{"zones":[{"name":"a.","queries":9007199254740993}]}`, "contradict"},
		{`{"zones":[{"name":"a.","duration":[9007199254740993]}]}`, "durations"},
		{`{"zones":[{"name":"a.","peak":{"servfail":1.1}}]}`, "peak"},
		{`{"zones":[{"name":"a.","peak":{"misses":-1}}]}`, "peak"},
		{`{"zones":[{"name":"a.","peak":{"bucket":17}}]}`, "peak"},
		{`{"views":[{"zone":"a.","objects":-1}]}`, "a view"},
		{`{"views":[{"zone":"a."},{"zone":"a."}]}`, "twice"},
		{`{"zones":[` + strings.Repeat(`{},`, 64) + `{}]}`, "65 zones"},
		{`{"views":[` + strings.Repeat(`{},`, 16) + `{}]}`, "17 views"},
		{`{"views":[` + strings.Repeat(" ", baseline.MaxEncoded) + `]}`, "bytes; the limit"},
	} {
		if _, err := baseline.Decode([]byte(tc.text)); err == nil || !strings.Contains(err.Error(), tc.problem) {
			t.Errorf("Decode(%.60s): %v, want an error with %q", tc.text, err, tc.problem)
		}
	}
}

// FuzzDecode: whatever Decode accepts can be compared and encoded again without a change.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{}`))
	f.Add(baseline.Encode(zones(timed("a.", 1000, 10), zone(".", 5, 5, 0))))
	f.Add(baseline.Encode(view(10, time.Second, true)))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := baseline.Decode(text)
		if err != nil {
			return
		}
		if worse := baseline.Compare(s, s); len(worse) > 0 {
			t.Errorf("worse than itself: %v", worse)
		}
		baseline.Compare(zones(timed("a.", 1000, 10)), s)
		encoded := baseline.Encode(s)
		again, err := baseline.Decode(encoded)
		if err != nil {
			t.Fatalf("Decode does not accept what Encode wrote: %v", err)
		}
		if !again.More && len(again.Zones) != len(s.Zones) {
			t.Errorf("%d of %d zones are left", len(again.Zones), len(s.Zones))
		}
	})
}
