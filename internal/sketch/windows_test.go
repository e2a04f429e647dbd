package sketch_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/sketch"
	"github.com/nodens-dns/nodens/test/soak"
)

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// TestWindows: what a reader sees at each time of three keys, at 1, 7 and 33 s.
func TestWindows(t *testing.T) {
	w := sketch.NewWindows(0)
	w.Add(seconds(1), []byte("a"), 1)
	w.Add(seconds(7), []byte("b"), 2)
	w.Add(seconds(33), []byte("c"), 3)
	w.Add(seconds(2), []byte("late"), 4) // counts as of the latest time
	for _, c := range []struct {
		now     int
		window  sketch.Window
		covered int
		want    string
	}{
		{33, sketch.TenSeconds, 8, "late 4 c 3"},
		{33, sketch.Minute, 33, "late 4 c 3 b 2 a 1"},
		{33, sketch.Hour, 33, "late 4 c 3 b 2 a 1"},
		{39, sketch.TenSeconds, 9, "late 4 c 3"},
		{40, sketch.TenSeconds, 5, ""},
		{59, sketch.Minute, 59, "late 4 c 3 b 2 a 1"},
		{60, sketch.Minute, 30, "late 4 c 3"},
		{90, sketch.Minute, 30, ""},
		{90, sketch.Hour, 90, "late 4 c 3 b 2 a 1"},
		{3599, sketch.Hour, 3599, "late 4 c 3 b 2 a 1"},
		{3600, sketch.Hour, 1800, ""},
		{7199, sketch.Hour, 3599, ""},
		{20_000, sketch.Hour, 2000, ""},
	} {
		got := w.Top(seconds(c.now), c.window, 10)
		text := ""
		for i, e := range got.Entries {
			if i > 0 {
				text += " "
			}
			text += fmt.Sprint(e.Key, " ", e.Count)
		}
		if text != c.want || got.Covered != seconds(c.covered) || got.Floor != 0 {
			t.Errorf("after %d s, of %v: %q of %v, floor %d, want %q of %d s", c.now, c.window.Length(), text, got.Covered, got.Floor, c.want, c.covered)
		}
	}
}

// TestWindowsReset: nothing of before is left.
func TestWindowsReset(t *testing.T) {
	w := sketch.NewWindows(0)
	w.Add(seconds(1), []byte("a"), 1)
	w.Add(seconds(70), []byte("b"), 2)
	w.Reset(seconds(100))
	want := sketch.Report{Covered: seconds(3), Sum: 4, MaxWeight: 4, Entries: []sketch.Entry{{Key: "c", Count: 4}}}
	w.Add(seconds(101), []byte("c"), 4)
	if diff := cmp.Diff(want, w.Top(seconds(103), sketch.Hour, 5)); diff != "" {
		t.Error(diff)
	}
}

// TestWindowsBounds compares each window with exact counts of the time that it covers.
func TestWindowsBounds(t *testing.T) {
	for name, stream := range streams {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(soak.Choose(1, 30)) {
				checkWindows(t, rand.New(rand.NewPCG(seed, 2)), stream)
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
}

func checkWindows(t *testing.T, r *rand.Rand, stream func(*rand.Rand, int, int) (string, uint64)) {
	t.Helper()
	start := seconds(r.IntN(10_000))
	w, now, perSecond := sketch.NewWindows(start), start, make(map[time.Duration]exact)
	for i := range 300 {
		now += seconds(r.IntN(4))
		if r.IntN(100) == 0 {
			now += seconds(r.IntN(1000))
		}
		if perSecond[now] == nil {
			perSecond[now] = make(exact)
		}
		for j := range 30 {
			key, weight := stream(r, 30*i+j, 9000)
			w.Add(now, []byte(key), weight)
			if weight > 0 {
				perSecond[now][key] += weight
			}
		}
		if i%20 > 0 {
			continue
		}
		for _, window := range []sketch.Window{sketch.TenSeconds, sketch.Minute, sketch.Hour} {
			got := w.Top(now, window, 10*sketch.MaxKeys)
			if got.Covered < min(window.Length()/2, now-start) || got.Covered >= window.Length() {
				t.Errorf("%v of %v are covered", got.Covered, window.Length())
			}
			want := make(exact)
			for at, counts := range perSecond {
				for key, n := range counts {
					if at >= now-got.Covered {
						want[key] += n
					}
				}
			}
			want.check(t, got.Sum, got.Floor, got.Entries)
		}
	}
}

// TestWindowsFind: the names that half of the queries are for are found in all windows, with their
// counts to a tenth, whatever the other half is.
func TestWindowsFind(t *testing.T) {
	w := sketch.NewWindows(0)
	n := 0
	for at := 0; at < 3599; at++ {
		for range 20 {
			n++
			w.Add(seconds(at), fmt.Appendf(nil, "random-%d.example.com.shop.svc.cluster.local", n), 1)
			w.Add(seconds(at), fmt.Appendf(nil, "name-%d.shop.svc.cluster.local", n%10), 1)
		}
	}
	for _, window := range []sketch.Window{sketch.TenSeconds, sketch.Minute, sketch.Hour} {
		got := w.Top(seconds(3598), window, 10)
		for _, e := range got.Entries {
			share := float64(e.Count) / float64(got.Sum)
			if len(e.Key) > 30 || share < 0.049 || share > 0.055 {
				t.Errorf("of %v: %+v, %.3f of all", window.Length(), e, share)
			}
		}
		if got.Floor > got.Sum/100 {
			t.Errorf("of %v: the floor is %d of %d", window.Length(), got.Floor, got.Sum)
		}
	}
}

func TestWindowsAllocate(t *testing.T) {
	w := sketch.NewWindows(0)
	key := []byte("api.shop.svc.cluster.local")
	if n := testing.AllocsPerRun(1000, func() { w.Add(seconds(1), key, 1) }); n != 0 {
		t.Errorf("Add allocates %v times", n)
	}
}

// BenchmarkAdvance ends halves of ten seconds in which as many keys came as there is place for.
func BenchmarkAdvance(b *testing.B) {
	w := sketch.NewWindows(0)
	now := time.Duration(0)
	for b.Loop() {
		b.StopTimer()
		for i := range 2 * sketch.MaxKeys {
			w.Add(now, fmt.Appendf(nil, "name-%d.shop.svc.cluster.local", i), uint64(i))
		}
		now += 5 * time.Second
		b.StartTimer()
		w.Advance(now)
	}
}
