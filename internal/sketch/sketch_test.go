package sketch_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/sketch"
	"github.com/nodens-dns/nodens/test/soak"
)

// exact counts the keys of a stream without an error.
type exact map[string]uint64

func (x exact) sum() (sum uint64) {
	for _, n := range x {
		sum += n
	}
	return sum
}

// check compares what a table reports with the true counts.
func (x exact) check(t *testing.T, sum, floor uint64, entries []sketch.Entry) {
	t.Helper()
	if want := x.sum(); sum != want {
		t.Errorf("the sum is %d, want %d", sum, want)
	}
	listed := make(map[string]bool)
	for i, e := range entries {
		if n := x[e.Key]; n > e.Count || n < e.Count-min(e.Count, e.Error) {
			t.Errorf("%q: %d - %d, want %d", e.Key, e.Count, e.Error, n)
		}
		if listed[e.Key] {
			t.Errorf("%q is there twice", e.Key)
		}
		if listed[e.Key] = true; i > 0 && e.Count > entries[i-1].Count {
			t.Errorf("%q with %d is behind %d", e.Key, e.Count, entries[i-1].Count)
		}
	}
	for key, n := range x {
		if !listed[key] && n > floor {
			t.Errorf("%q is missing with %d; the floor is %d", key, n, floor)
		}
	}
}

// streams are functions that return the i-th of n keys and its weight.
var streams = map[string]func(r *rand.Rand, i, n int) (string, uint64){
	"few keys": func(r *rand.Rand, _, _ int) (string, uint64) { return fmt.Sprint("name-", r.IntN(sketch.MaxKeys)), 1 },
	"uniform":  func(r *rand.Rand, _, _ int) (string, uint64) { return fmt.Sprint("name-", r.IntN(2000)), 1 },
	"skewed": func(r *rand.Rand, _, _ int) (string, uint64) {
		return fmt.Sprint("name-", int(5000*r.Float64()*r.Float64()*r.Float64()*r.Float64())), 1
	},
	"new keys":  func(_ *rand.Rand, i, _ int) (string, uint64) { return fmt.Sprint(i), 1 },
	"ascending": func(_ *rand.Rand, i, _ int) (string, uint64) { return fmt.Sprint(i % 400), 1 },
	"late":      func(_ *rand.Rand, i, n int) (string, uint64) { return fmt.Sprint(min(i, n*9/10)), 1 },
	"weights":   func(r *rand.Rand, _, _ int) (string, uint64) { return fmt.Sprint(r.IntN(1000)), 1 << r.IntN(12) },
	"none":      func(r *rand.Rand, _, _ int) (string, uint64) { return fmt.Sprint(r.IntN(300)), uint64(r.IntN(2)) },
	"long keys": func(r *rand.Rand, _, _ int) (string, uint64) { return longKey(r.IntN(100), sketch.MaxKeyLen), 1 },
	"mixed lengths": func(r *rand.Rand, _, _ int) (string, uint64) {
		return longKey(r.IntN(500), r.IntN(sketch.MaxKeyLen)), 1
	},
	"empty key": func(r *rand.Rand, _, _ int) (string, uint64) { return strings.Repeat("x", r.IntN(2)), 1 },
	"prefixes": func(r *rand.Rand, _, _ int) (string, uint64) {
		return strings.Repeat("x", r.IntN(sketch.MaxKeyLen+1)), uint64(1 + r.IntN(3))
	},
}

// longKey returns a key of length bytes that differs from others in the last ones.
func longKey(i, length int) string {
	text := fmt.Sprint(i)
	return strings.Repeat("k", max(0, length-len(text))) + text
}

func TestSketchBounds(t *testing.T) {
	for name, stream := range streams {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(soak.Choose(2, 200)) {
				r := rand.New(rand.NewPCG(seed, 1))
				s, x := sketch.New(), make(exact)
				for round, n := range []int{1, 100, 8_000} {
					short := true
					for i := range n {
						key, weight := stream(r, i, n)
						s.Add([]byte(key), weight)
						if short = short && len(key) <= 32; weight > 0 {
							x[key] += weight
						}
					}
					x.check(t, s.Sum(), s.Floor(), s.Top(sketch.MaxKeys))
					if short && s.Floor() > s.Sum()/sketch.MaxKeys {
						t.Errorf("the floor is %d of %d", s.Floor(), s.Sum())
					}
					if len(x) <= 28 && s.Floor() > 0 {
						t.Errorf("%d keys do not fit", len(x))
					}
					if t.Failed() {
						t.Fatalf("seed %d, round %d", seed, round)
					}
				}
				s.Reset()
				exact{}.check(t, s.Sum(), s.Floor(), s.Top(sketch.MaxKeys))
			}
		})
	}
}

// TestSketchExact: as long as all keys fit, counts have no error.
func TestSketchExact(t *testing.T) {
	s := sketch.New()
	for i := range sketch.MaxKeys {
		for range i + 1 {
			s.Add([]byte(longKey(i, 32)), 2)
		}
	}
	want := []sketch.Entry{{Key: longKey(255, 32), Count: 512}, {Key: longKey(254, 32), Count: 510}}
	if diff := cmp.Diff(want, s.Top(2)); diff != "" || s.Floor() != 0 {
		t.Errorf("floor %d, %s", s.Floor(), diff)
	}
	if n := len(s.Top(1000)); n != sketch.MaxKeys || len(s.Top(-1)) != 0 {
		t.Errorf("%d keys", n)
	}
	s.Add([]byte("another"), 1)
	if got := s.Top(1000)[255]; got != (sketch.Entry{Key: "another", Count: 3, Error: 2}) || s.Floor() != 2 {
		t.Errorf("the new key is %+v, the floor %d", got, s.Floor())
	}
}

// TestSketchCut: a key that is too long counts for its first bytes.
func TestSketchCut(t *testing.T) {
	s := sketch.New()
	long := longKey(1, sketch.MaxKeyLen)
	s.Add([]byte(long+"a"), 1)
	s.Add([]byte(long+"b"), 1)
	if diff := cmp.Diff([]sketch.Entry{{Key: long, Count: 2}}, s.Top(9)); diff != "" {
		t.Error(diff)
	}
}

func TestSketchAllocates(t *testing.T) {
	s := sketch.New()
	key := []byte("api.shop.svc.cluster.local")
	if n := testing.AllocsPerRun(1000, func() { s.Add(key, 1) }); n != 0 {
		t.Errorf("a known key allocates %v times", n)
	}
	var i uint32
	if n := testing.AllocsPerRun(1000, func() {
		i++
		binary.BigEndian.PutUint32(key, i)
		s.Add(key, 1)
	}); n != 0 {
		t.Errorf("a new key allocates %v times", n)
	}
	if size := unsafe.Sizeof(*s); size > 17<<10 {
		t.Errorf("a Sketch takes %d bytes", size)
	}
}

func BenchmarkAdd(b *testing.B) {
	key := []byte("name-000.shop.svc.cluster.local")
	for _, c := range []struct {
		name string
		keys uint32
	}{{"one", 1}, {"known", sketch.MaxKeys}, {"new", 1 << 31}} {
		b.Run(c.name, func(b *testing.B) {
			s := sketch.New()
			var i uint32
			for b.Loop() {
				i++
				binary.BigEndian.PutUint32(key, i%c.keys)
				s.Add(key, 1)
			}
		})
	}
}

// FuzzBounds: whatever the keys and weights are, the bounds hold, in a Sketch and in Windows.
func FuzzBounds(f *testing.F) {
	f.Add([]byte("\x03abc\x00\x02ab\x07"))
	f.Add([]byte(strings.Repeat("\x20k\x01", 700)))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := rand.New(rand.NewPCG(uint64(len(data)), 1))
		s, w, x := sketch.New(), sketch.NewWindows(0), make(exact)
		for len(data) > 1 {
			length, weight := min(int(data[0]), len(data)-1), uint64(data[1])
			key := string(data[1:1+length]) + strings.Repeat("x", r.IntN(2)*20)
			data = data[1+length:]
			s.Add([]byte(key), weight)
			w.Add(0, []byte(key), weight)
			if weight > 0 {
				x[key] += weight
			}
		}
		x.check(t, s.Sum(), s.Floor(), s.Top(sketch.MaxKeys))
		for _, now := range []int{0, 7, 31} {
			got := w.Top(seconds(now), sketch.Minute, sketch.MaxKeys)
			x.check(t, got.Sum, got.Floor, got.Entries)
		}
	})
}
