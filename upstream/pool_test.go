// Inside the package: a test starts probes.

package upstream

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

func TestCovers(t *testing.T) {
	names := func(s ...string) (out []wire.Name) {
		for _, s := range s {
			n, err := wire.ParseName(s)
			noError(t, err)
			out = append(out, n)
		}
		return out
	}
	tests := []struct {
		from   string
		except []string
		in     []string
		out    []string
	}{
		{from: ".", in: []string{".", "org", "a.b.c"}},
		{from: "example.org", in: []string{"example.org", "www.example.org", "a.b.example.org"}, out: []string{".", "org", "badexample.org", "example.com"}},
		{from: ".", except: []string{"cluster.local", "corp"}, in: []string{".", "local", "xcluster.local"}, out: []string{"cluster.local", "a.cluster.local", "x.corp"}},
		{from: "example.org", except: []string{"example.org"}, in: []string{"example.org"}, out: []string{"www.example.org"}},
	}
	for _, tt := range tests {
		p := newPool(t, &config.Forward{From: names(tt.from)[0], Except: names(tt.except...)})
		for _, n := range names(tt.in...) {
			if !p.Covers([]byte(n)) {
				t.Errorf("forward %s except %v does not cover %s", tt.from, tt.except, n)
			}
		}
		for _, n := range names(tt.out...) {
			if p.Covers([]byte(n)) {
				t.Errorf("forward %s except %v covers %s", tt.from, tt.except, n)
			}
		}
	}
}

func TestCoversAllocatesNothing(t *testing.T) {
	p := newPool(t, &config.Forward{From: wire.Root, Except: []wire.Name{"\x07example\x03org\x00", "\x04corp\x00"}})
	q := question(t, "a-name-that-is-longer-than-thirty-two-bytes.in.example.com.")
	if n := testing.AllocsPerRun(100, func() { p.Covers(q.Name()) }); n != 0 {
		t.Errorf("Covers allocates %v times, want 0", n)
	}
}

func TestOrder(t *testing.T) {
	const rounds = 6000
	tests := []struct {
		policy config.Policy
		n      int
		// share is how often each server is asked first; slack allows for more than six
		// standard deviations.
		share, slack []int
	}{
		{config.PolicySequential, 3, []int{rounds, 0, 0}, []int{0, 0, 0}},
		{config.PolicyRoundRobin, 3, []int{2000, 2000, 2000}, []int{0, 0, 0}},
		{config.PolicyRandom, 3, []int{2000, 2000, 2000}, []int{250, 250, 250}},
		{config.PolicyRandom, 1, []int{rounds}, []int{0}},
	}
	for _, tt := range tests {
		o := serverOrder{policy: tt.policy}
		first := make([]int, tt.n)
		for range rounds {
			list := o.appendOrder(nil, tt.n)
			first[list[0]]++
			seen := make([]bool, tt.n)
			for _, i := range list {
				seen[i] = true
			}
			if len(list) != tt.n || !cmp.Equal(seen, allTrue(tt.n)) {
				t.Fatalf("policy %d: %v is no order of %d", tt.policy, list, tt.n)
			}
		}
		for i := range first {
			if off := first[i] - tt.share[i]; off > tt.slack[i] || -off > tt.slack[i] {
				t.Errorf("policy %d asks server %d first %d times of %d, want %d±%d", tt.policy, i, first[i], rounds, tt.share[i], tt.slack[i])
			}
		}
	}
	o := serverOrder{policy: config.PolicyRoundRobin}
	o.appendOrder(nil, 4)
	equal(t, []int{1, 0, 2, 3}, o.appendOrder(nil, 4), "the second turn of round_robin")
}

func allTrue(n int) []bool {
	out := make([]bool, n)
	for i := range out {
		out[i] = true
	}
	return out
}

func TestPolicyOnTheWire(t *testing.T) {
	a, b := startFake(t, answerOK), startFake(t, answerOK)
	cfg := forwardTo(a, b)
	cfg.Policy = config.PolicyRoundRobin
	p := newPool(t, cfg)
	for range 10 {
		mustAnswer(t, p, "example.org.")
	}
	if x, y := len(a.requests()), len(b.requests()); x != 5 || y != 5 {
		t.Errorf("round_robin sent %d and %d of 10 queries, want 5 and 5", x, y)
	}
}

func TestMaxConcurrent(t *testing.T) {
	arrived, release := make(chan request, 2), make(chan struct{})
	f := startFake(t, func(r request) {
		arrived <- r
		<-release
		answerOK(r)
	})
	cfg := forwardTo(f)
	cfg.MaxConcurrent = 1
	p := newPool(t, cfg)
	var first error
	var wg sync.WaitGroup
	q := question(t, "example.org.")
	wg.Go(func() { _, first = p.Exchange(t.Context(), q, false) })
	<-arrived
	if _, err := p.Exchange(t.Context(), question(t, "example.org."), false); !errors.Is(err, ErrTooMany) {
		t.Errorf("the second of one query is %v, want ErrTooMany", err)
	}
	if st := p.Stats(); st.InFlight != 1 || st.MaxConcurrent != 1 || st.Servers[0].InFlight != 1 || st.Servers[0].MaxInFlight != maxInFlightUDP {
		t.Errorf("in flight: %+v", st)
	}
	close(release)
	wg.Wait()
	if first != nil {
		t.Errorf("the first query failed: %v", first)
	}
	if _, err := p.Exchange(t.Context(), question(t, "example.org."), false); err != nil {
		t.Errorf("with no query under way: %v", err)
	}
	if st := p.Stats(); st.MaxConcurrentRejects != 1 || st.InFlight != 0 || st.Servers[0].InFlight != 0 {
		t.Errorf("at the end: %+v", st)
	}
}

func TestContext(t *testing.T) {
	for _, overTCP := range []bool{false, true} {
		arrived := make(chan request, 4)
		f := startFake(t, func(r request) { arrived <- r })
		p := newPool(t, forwardTo(f))
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-arrived
			cancel()
		}()
		_, err := p.Exchange(ctx, question(t, "example.org."), overTCP)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled (TCP %t): %v, want context.Canceled", overTCP, err)
		}
		if n := len(f.requests()); n != 1 {
			t.Errorf("cancelled (TCP %t): %d queries were sent, want 1", overTCP, n)
		}

		soon, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, err = p.Exchange(soon, question(t, "example.org."), overTCP)
		stop()
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrTimeout) {
			t.Errorf("past ctx's deadline (TCP %t): %v, want a timeout", overTCP, err)
		}
		// The socket of a canceled exchange must not be reused.
		s := answerOK
		f.script.Store((*script)(&s))
		if _, err := p.Exchange(t.Context(), question(t, "example.org."), overTCP); err != nil {
			t.Errorf("after the cancelled ones (TCP %t): %v", overTCP, err)
		}
	}
}

func TestWholeDeadline(t *testing.T) {
	f := startFake(t, ignore)
	cfg := forwardTo(f)
	cfg.ReadTimeout = time.Hour
	p := New(cfg, Options{Deadline: 20 * time.Millisecond})
	defer p.Close()
	q := question(t, "example.org.")
	ended := make(chan error, 1)
	go func() {
		_, err := p.Exchange(context.Background(), q, false)
		ended <- err
	}()
	eventually(t, "the exchange gives up", func() bool { return len(ended) == 1 })
	if err := <-ended; !errors.Is(err, ErrTimeout) {
		t.Errorf("past the deadline: %v, want ErrTimeout", err)
	}
	if n := queriesReceived(f); n > 1 {
		t.Errorf("%d queries were sent, want no second one behind the deadline", n)
	}
}

func TestClose(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("in flight", func(t *testing.T) {
		f := startFake(t, ignore)
		dead := startFake(t, ignore)
		cfg := forwardTo(f, dead)
		cfg.Policy = config.PolicyRoundRobin
		cfg.ReadTimeout = time.Hour // only Close ends these exchanges
		p := New(cfg, Options{Deadline: time.Hour, ProbeTimeout: time.Hour})
		for _, s := range p.servers() {
			p.startProbe(s) // probes without a reply
		}
		var wg sync.WaitGroup
		errs := make([]error, 16)
		for i := range errs {
			q := question(t, "example.org.")
			wg.Go(func() { _, errs[i] = p.Exchange(context.Background(), q, i%2 == 0) })
		}
		eventually(t, "16 queries and 2 probes under way", func() bool {
			return len(f.requests())+len(dead.requests()) >= 18
		})
		closed := make(chan error, 2)
		for range cap(closed) {
			go func() { closed <- p.Close() }()
		}
		eventually(t, "both calls of Close are over", func() bool { return len(closed) == 2 })
		wg.Wait()
		for i, err := range errs {
			if !errors.Is(err, ErrClosed) {
				t.Errorf("exchange %d ended with %v, want ErrClosed", i, err)
			}
		}
		if _, err := p.Exchange(context.Background(), question(t, "example.org."), false); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v, want ErrClosed", err)
		}
		eventually(t, "all connections closed", func() bool { return f.open()+dead.open() == 0 })
	})
	eventually(t, "all goroutines gone", func() bool { return runtime.NumGoroutine() <= before })
}

// TestCloseAmongExchanges closes the Pool while queries are in flight: nothing hangs or
// panics, and each query succeeds or fails with ErrClosed.
func TestCloseAmongExchanges(t *testing.T) {
	f := startFake(t, answerOK)
	for range 20 {
		p := New(forwardTo(f), Options{})
		var wg sync.WaitGroup
		for i := range 4 {
			q := question(t, "example.org.")
			wg.Go(func() {
				for {
					if _, err := p.Exchange(context.Background(), q, i%2 == 0); err != nil {
						if !errors.Is(err, ErrClosed) {
							t.Errorf("an exchange ended with %v", err)
						}
						return
					}
				}
			})
		}
		p.Close()
		wg.Wait()
	}
}
