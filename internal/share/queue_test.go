package share_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/share"
)

// TestQueueTurns: clients take turns, and each is served in the order of arrival.
func TestQueueTurns(t *testing.T) {
	var q share.Queue[string]
	push := func(c share.Client, name string) *share.Waiter[string] {
		w := &share.Waiter[string]{Value: name}
		q.Push(c, w)
		return w
	}
	for _, name := range []string{"a1", "a2", "a3", "a4"} {
		push(1, name)
	}
	push(2, "b1")
	gone := push(3, "c1")
	push(2, "b2")
	if !q.Remove(gone) || q.Remove(gone) {
		t.Error("a waiter is not removed exactly once")
	}
	var got []string
	for q.Len() > 0 {
		got = append(got, q.Pop(time.Time{}).Value)
		if len(got) == 2 {
			push(4, "d1")
		}
	}
	if d := cmp.Diff([]string{"a1", "b1", "a2", "b2", "d1", "a3", "a4"}, got); d != "" {
		t.Errorf("served (-want +got):\n%s", d)
	}
	if q.Pop(time.Time{}) != nil {
		t.Error("an empty queue has a waiter")
	}
}

// TestQueueOverload: the newest waiter of a client is served first while its oldest is late and, since that one arrived, more have
// arrived than were served. Other clients keep their turns and their order.
func TestQueueOverload(t *testing.T) {
	start := time.Now()
	late := start.Add(time.Second)
	for _, tt := range []struct {
		name   string
		at     time.Time // when the later half is served
		behind []string  // what arrives before that
		want   []string
	}{
		{name: "not late yet", at: late.Add(-1), behind: []string{"a5", "a6"}, want: []string{"b2", "a3", "a4", "a5", "a6"}},
		{name: "nothing new", at: late, want: []string{"b2", "a3", "a4"}},
		{name: "as many as served", at: late, behind: []string{"a5"}, want: []string{"b2", "a3", "a4", "a5"}},
		{name: "more than served", at: late, behind: []string{"a5", "a6", "a7"}, want: []string{"b2", "a7", "a6", "a3", "a4", "a5"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var q share.Queue[string]
			push := func(c share.Client, name string) {
				q.Push(c, &share.Waiter[string]{Value: name, Late: late})
			}
			for _, name := range []string{"a1", "a2", "a3", "a4"} {
				push(1, name)
			}
			push(2, "b1")
			push(2, "b2")
			for _, want := range []string{"a1", "b1", "a2"} {
				if got := q.Pop(start).Value; got != want {
					t.Fatalf("served %s, want %s", got, want)
				}
			}
			for _, name := range tt.behind {
				push(1, name)
			}
			var got []string
			for q.Len() > 0 {
				got = append(got, q.Pop(tt.at).Value)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("served (-want +got):\n%s", d)
			}
		})
	}
}

// TestQueueModel compares the queue with lists per client, over random operations.
func TestQueueModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	type waiter = share.Waiter[share.Client]
	var q share.Queue[share.Client]
	var circle []share.Client // in the order of their turns
	lines := map[share.Client][]*waiter{}
	arrived, served := map[share.Client]int{}, map[share.Client]int{}
	behind := map[*waiter][2]int{} // arrived and served when it was pushed
	start := time.Now()
	drop := func(c share.Client, w *waiter) {
		lines[c] = slices.DeleteFunc(lines[c], func(other *waiter) bool { return other == w })
		if i := slices.Index(circle, c); len(lines[c]) == 0 {
			circle = slices.Delete(circle, i, i+1)
		}
	}
	next := func(c share.Client, now time.Time) *waiter {
		w := lines[c][0]
		if at := behind[w]; now.Before(w.Late) || arrived[c]-at[0] <= served[c]-at[1] {
			return w
		}
		return lines[c][len(lines[c])-1]
	}
	for step := range 20_000 {
		now := start.Add(time.Duration(step))
		switch c := share.Client(random.IntN(12)); {
		case random.IntN(5) < 2:
			w := &waiter{Value: c, Late: now.Add(time.Duration(random.IntN(200)))}
			q.Push(c, w)
			arrived[c]++
			behind[w] = [2]int{arrived[c], served[c]}
			if lines[c] = append(lines[c], w); len(lines[c]) == 1 {
				circle = append(circle, c)
			}
		case random.IntN(3) == 0 && len(lines[c]) > 0:
			w := lines[c][random.IntN(len(lines[c]))]
			if !q.Remove(w) {
				t.Fatalf("step %d: a waiter was not in the queue", step)
			}
			drop(c, w)
		case len(circle) > 0:
			c = circle[0]
			if want, got := next(c, now), q.Pop(now); got != want {
				t.Fatalf("step %d: got the wrong waiter, of client %d, want one of %d", step, got.Value, c)
			} else {
				circle = append(circle[1:], c)
				served[c]++
				drop(c, want)
			}
		}
		n := 0
		var order []share.Client
		q.EachClient(func(first *waiter, k int) { n, order = n+k, append(order, first.Value) })
		if n != q.Len() || !slices.Equal(order, circle) {
			t.Fatalf("step %d: %d waiters in the order %v, want %d and %v", step, n, order, q.Len(), circle)
		}
	}
}

// TestSlots: one client leaves an eighth free, background work too, and what is released goes to the clients in turn.
func TestSlots(t *testing.T) {
	s := share.NewSlots[int](16)
	take := func(c share.Client) (n int) {
		for s.Try(c) {
			n++
		}
		return n
	}
	if n := take(share.NoClient); n != 14 {
		t.Errorf("background work got %d of 16 slots, want 14", n)
	}
	if n := take(1); n != 2 {
		t.Errorf("a client got %d of the 2 others", n)
	}
	for range 14 {
		s.Release(share.NoClient)
	}
	if n := take(1); n != 12 || s.InUse() != 14 {
		t.Errorf("one client got %d more slots, want 12, so that it has 14", n)
	}
	first, second, third := &share.Waiter[int]{Value: 1}, &share.Waiter[int]{Value: 2}, &share.Waiter[int]{Value: 3}
	s.Wait(1, first)
	if n := take(2); n != 2 {
		t.Errorf("while a client waits that may have no more slots, another got %d of the 2 free ones", n)
	}
	s.Wait(2, second)
	s.Wait(3, third)
	var got []*share.Waiter[int]
	for _, c := range []share.Client{2, 2, 1} {
		s.Release(c)
		got = append(got, s.Next(time.Time{}))
	}
	if d := cmp.Diff([]int{2, 3, 1}, []int{got[0].Value, got[1].Value, got[2].Value}); d != "" {
		t.Errorf("the slots went to (-want +got):\n%s", d)
	}
	if s.InUse() != 16 || s.Waiting() != 0 {
		t.Errorf("%d slots in use and %d waiting, want 16 and 0", s.InUse(), s.Waiting())
	}
}

// TestSlotsFew: with few slots a client may have all.
func TestSlotsFew(t *testing.T) {
	s := share.NewSlots[int](1)
	if !s.Try(1) || s.Try(2) {
		t.Error("one slot is not for one client")
	}
	w := new(share.Waiter[int])
	s.Wait(2, w)
	if !s.Cancel(w) {
		t.Error("a waiter can't be removed")
	}
	s.Release(1)
	if s.Next(time.Time{}) != nil || !s.Try(2) {
		t.Error("a slot that is released without a waiter is not free")
	}
}

// TestQueueAllocations: waiting costs no memory once a client with this number has waited.
func TestQueueAllocations(t *testing.T) {
	var q share.Queue[int]
	a, b := new(share.Waiter[int]), new(share.Waiter[int])
	if n := testing.AllocsPerRun(100, func() {
		q.Push(3, a)
		q.Push(5, b)
		q.Pop(time.Time{})
		q.Remove(b)
	}); n != 0 {
		t.Errorf("%v allocations for two waiters", n)
	}
}
