package loadgen

// This file needs latest, which can't be observed without 65,536 queries.

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// TestSchedule asks an upstream that falls silent in the middle.
func TestSchedule(t *testing.T) {
	const delay = time.Millisecond
	up := fakedns.Start(t, func(q *fakedns.Query) { q.ReplyAfter(delay, fakedns.Address(q.Msg, 7, "192.0.2.1")) })
	s := Schedule{Server: up.Addr(), Count: 40, Rate: 400, Name: func(i int) string { return fmt.Sprintf("n%d.test.", i) }}
	s.BeforeQuery = func(i int) {
		if i == 20 {
			for up.Count() < 20 {
				runtime.Gosched() // ends with the test's time limit
			}
			up.SetSilent(true)
		}
	}
	results, err := s.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		if i < 20 && (r.Failed || r.Lost || r.Latency < delay) || i >= 20 && (!r.Failed || !r.Lost || r.Latency != answerTimeout) {
			t.Errorf("query %d: %+v", i, r)
		}
	}
	if n := up.Count(); n != 40 {
		t.Errorf("the upstream got %d queries, want 40", n)
	}
}

// TestScheduleRefused asks a server that closes its socket in the middle.
func TestScheduleRefused(t *testing.T) {
	t.Parallel()
	const answered = 5
	for _, lost := range []bool{false, true} {
		up := fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg { return fakedns.Address(q, 7, "192.0.2.1") }))
		read := make(chan struct{}, answered)
		results, err := Schedule{
			Server: up.Addr(), Count: 20, Rate: 400, RefusedIsLost: lost,
			Name:  func(i int) string { return fmt.Sprintf("n%d.test.", i) },
			Right: func(int, []byte) bool { read <- struct{}{}; return true },
			BeforeQuery: func(i int) {
				if i == answered {
					for range answered {
						<-read
					}
					up.Close()
				}
			},
		}.Run(t.Context())
		if !lost {
			if !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%v, want %v", err, unix.ECONNREFUSED)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range results {
			if r.Lost != (i >= answered) {
				t.Errorf("query %d: %+v", i, r)
			}
		}
	}
}

// TestScheduleFailed: SERVFAIL and NODATA are failures.
func TestScheduleFailed(t *testing.T) {
	up := fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg {
		if q.Question[0].Name == "nodata.test." {
			return fakedns.Address(q, 7)
		}
		return new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
	}))
	names := []string{"nodata.test.", "servfail.test."}
	results, err := Schedule{Server: up.Addr(), Count: 2, Rate: 100, Name: func(i int) string { return names[i] }}.Run(t.Context())
	if err != nil || len(results) != 2 || !results[0].Failed || !results[1].Failed || results[0].Latency >= answerTimeout {
		t.Errorf("%+v, %v", results, err)
	}
}

// TestScheduleStops: a closed channel ends sending, and the test says which replies are right.
func TestScheduleStops(t *testing.T) {
	up := fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg { return fakedns.Negative(q, dns.RcodeNameError, 7) }))
	const wrong, last = 2, 4
	stop := make(chan struct{})
	results, err := Schedule{
		Server: up.Addr(), Count: 10_000, Rate: 1000, Stop: stop,
		Name:  func(i int) string { return fmt.Sprintf("n%d.test.", i) },
		Right: func(i int, reply []byte) bool { return i != wrong && reply[3]&15 == dns.RcodeNameError },
		BeforeQuery: func(i int) {
			if i == last {
				close(stop)
			}
		},
	}.Run(t.Context())
	// The query before which the channel is closed is sent; others may be.
	if err != nil || len(results) <= last || len(results) == 10_000 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	for i, r := range results {
		if r.Lost || r.Failed != (i == wrong) {
			t.Errorf("query %d: %+v", i, r)
		}
	}
}

// TestScheduleRate: a rate for which there are not enough IDs is an error.
func TestScheduleRate(t *testing.T) {
	for _, rate := range []int{0, 10_000} {
		if _, err := (Schedule{Count: 1, Rate: rate}).Run(t.Context()); err == nil {
			t.Errorf("no error for %d queries a second", rate)
		}
	}
}

// TestLatest: an ID belongs to the last query that was sent with it.
func TestLatest(t *testing.T) {
	for _, tt := range []struct{ id, sent, want int }{
		{5, 6, 5}, {5, 60_000, 5}, {5, 65_541, 5}, {5, 65_542, 65_541}, {60_000, 65_542, 60_000}, {5, 131_078, 131_077}, {1500, 1500, -1},
	} {
		if got := latest(tt.id, tt.sent); got != tt.want {
			t.Errorf("ID %d of %d queries: %d, want %d", tt.id, tt.sent, got, tt.want)
		}
	}
}

// TestArrivals: times at random have the mean of the rate and the deviation of an exponential
// distribution, which equals it; and they are the same in each run.
func TestArrivals(t *testing.T) {
	const n = 100_000
	a, same, even := newArrivals(1000, false), newArrivals(1000, false), newArrivals(1000, true)
	var sum, squares float64
	for range n {
		d := a.next()
		if d != same.next() || even.next() != time.Millisecond {
			t.Fatal("two runs differ, or even times")
		}
		sum += d.Seconds()
		squares += d.Seconds() * d.Seconds()
	}
	mean := sum / n
	if deviation := math.Sqrt(squares/n - mean*mean); math.Abs(mean-0.001) > 0.00002 || math.Abs(deviation-0.001) > 0.00002 {
		t.Errorf("mean %v and deviation %v, want a thousandth", mean, deviation)
	}
}
