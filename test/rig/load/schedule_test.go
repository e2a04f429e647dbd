package load

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// TestSchedule asks an upstream that falls silent in the middle.
func TestSchedule(t *testing.T) {
	t.Parallel() // it waits for answers
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
