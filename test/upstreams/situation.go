package upstreams

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/load"
)

// Situation is what happens to a bed under load.
type Situation struct {
	Name string
	// rates are how many queries a second each forwarder gets over each transport, one rate after the
	// other, for length.
	rates  []int
	length time.Duration
	// kind returns the kind of the i-th name; nil: all are answered at once.
	kind func(i int) string
	// during runs beside the load.
	during func(ctx context.Context, b *Bed) error
	// Zero says that no query of nodens may fail.
	Zero bool
	// needs reports whether the situation is for a server.
	needs func(s Server) bool
}

// Situations returns all situations in the order in which a bed goes through them. The first one meets
// forwarders without a connection.
func Situations() []Situation {
	forwards := func(s Server) bool { return s.Usual && !s.authority }
	usual := func(s Server) bool { return s.Usual }
	limited := func(s Server) bool { return !s.Usual && s.Program != "" }
	fake := func(s Server) bool { return s.Program == "" }
	return []Situation{
		{Name: "burst first", rates: []int{5000, 200}, length: 40 * time.Millisecond, Zero: true, needs: usual},
		{Name: "slow names", rates: []int{200}, length: 2 * time.Second, kind: someSlow, Zero: true, needs: forwards},
		{Name: "restart", rates: []int{100}, length: 3 * time.Second, during: restart(syscall.SIGKILL, 0), Zero: true, needs: usual},
		{Name: "graceful stop", rates: []int{100}, length: 3 * time.Second, kind: someHeld, during: restart(syscall.SIGTERM, time.Second), Zero: true, needs: forwards},
		{Name: "idle", rates: []int{50}, length: 200 * time.Millisecond, during: idle, Zero: true, needs: usual},
		{Name: "after idle", rates: []int{50}, length: 500 * time.Millisecond, Zero: true, needs: usual},
		{Name: "TTLs", rates: []int{100}, length: 200 * time.Millisecond, kind: extremeTTL, Zero: true, needs: forwards},
		{Name: "limits", rates: []int{20, 200, 1000}, length: time.Second, Zero: true, needs: limited},
		{Name: "cut replies", rates: []int{200}, length: time.Second, kind: cutWithoutTC, Zero: true, needs: fake},
	}
}

// someSlow makes every twentieth name slow.
func someSlow(i int) string {
	if i%20 == 7 {
		return "slow"
	}
	return "now"
}

// someHeld makes every twentieth name one that is in flight when the server stops.
func someHeld(i int) string {
	if i%20 == 7 {
		return "held"
	}
	return "now"
}

func extremeTTL(i int) string { return []string{"ttl0", "ttl31", "ttl32"}[i%3] }

// cutWithoutTC makes names whose replies the fake upstream cuts if it is asked over UDP.
func cutWithoutTC(i int) string {
	if i%20 == 7 {
		return "cut"
	}
	return "now"
}

// away is how long a server is away in a restart.
const away = time.Second

// restart returns a function that stops the server by a signal after a while, lets it end by itself for
// the grace time, and starts it again when it has been away long enough.
func restart(by syscall.Signal, grace time.Duration) func(context.Context, *Bed) error {
	return func(ctx context.Context, b *Bed) error {
		began := time.Now()
		if err := sleep(ctx, 500*time.Millisecond); err != nil {
			return err
		}
		if b.Program == "dnsmasq" {
			by = syscall.SIGTERM // its children would keep the port
		}
		if err := b.server.Signal(by); err != nil {
			return err
		}
		stopped := time.Now()
		select {
		case <-b.server.Done():
		case <-time.After(max(grace, away)):
			b.server.Kill()
		}
		b.ended = time.Since(began)
		if err := sleep(ctx, away-time.Since(stopped)); err != nil {
			return err
		}
		err := b.server.start(ctx)
		b.back = time.Since(began)
		return err
	}
}

// readTimeout is for how long a forwarder tries to get an answer, and pause how long it may wait between attempts.
const (
	readTimeout = 2 * time.Second
	pause       = 250 * time.Millisecond
)

// hopeless reports whether a query had to fail, because no server could answer it before its deadline: a busy machine may take long
// to start one again, and a name that is held takes its time again from a server that ended before its reply.
func (b *Bed) hopeless(f Failure) bool {
	possible := b.back + pause
	if strings.HasPrefix(f.What, "held ") {
		if f.Sent+heldTime < b.ended {
			return false
		}
		possible += heldTime
	}
	return f.Sent+readTimeout < possible
}

// idle waits for longer than the servers keep idle connections.
func idle(ctx context.Context, _ *Bed) error { return sleep(ctx, 2500*time.Millisecond) }

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Of says what is counted: a forwarder over a transport.
type Of struct {
	Forwarder string
	Transport Transport
}

// Count is what became of queries.
type Count struct {
	Asked int
	// Wrong are the failures.
	Wrong []Failure
	// Connections are those that were opened meanwhile.
	Connections int
	// Latencies are in ascending order; what failed took as long as it was waited for.
	Latencies []time.Duration
}

// Failure is a query without the right answer: the kind of name with the rcode or "no reply", when it was sent after the begin of its
// rate, and how long it took.
type Failure struct {
	What        string
	Sent, After time.Duration
}

func (f Failure) String() string {
	return fmt.Sprintf("%s after %s, at %s", f.What, f.After.Round(time.Millisecond), f.Sent.Round(time.Millisecond))
}

// Add adds another count.
func (c *Count) Add(more Count) {
	c.Asked, c.Connections = c.Asked+more.Asked, c.Connections+more.Connections
	c.Latencies, c.Wrong = append(c.Latencies, more.Latencies...), append(c.Wrong, more.Wrong...)
	slices.Sort(c.Latencies)
}

// Applies reports whether the situation is for the server.
func (s Situation) Applies(to Server) bool { return s.needs(to) }

// Run puts b through the situation, all forwarders and transports at once.
func (b *Bed) Run(ctx context.Context, s Situation) (map[Of]Count, error) {
	counts := map[Of]Count{}
	before, err := b.allConnections()
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var running sync.WaitGroup
	var failures []error
	report := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		failures = append(failures, err)
	}
	b.ended, b.back = 0, 0
	if s.during != nil {
		running.Go(func() { report(s.during(ctx, b)) })
	}
	for _, f := range b.forwarders {
		for _, t := range b.Transports {
			running.Go(func() {
				for _, rate := range s.rates {
					c, err := ask(ctx, f, t, rate, s.length, s.kind)
					report(err)
					mu.Lock()
					sum := counts[Of{f.name, t}]
					sum.Add(c)
					counts[Of{f.name, t}] = sum
					mu.Unlock()
				}
			})
		}
	}
	running.Wait()
	after, err := b.allConnections()
	if err := errors.Join(append(failures, err)...); err != nil {
		return nil, fmt.Errorf("%s, %s: %w", b.Name, s.Name, err)
	}
	for of, c := range counts {
		c.Connections = after[of] - before[of]
		c.Wrong = slices.DeleteFunc(c.Wrong, b.hopeless)
		counts[of] = c
	}
	return counts, nil
}

// allConnections returns how many connections were opened so far.
func (b *Bed) allConnections() (map[Of]int, error) {
	all := map[Of]int{}
	for _, f := range b.forwarders {
		n, err := b.connections(f)
		if err != nil {
			return nil, err
		}
		for t, n := range n {
			all[Of{f.name, t}] = n
		}
	}
	return all, nil
}

// ask asks a forwarder for new names.
func ask(ctx context.Context, f *forwarder, t Transport, rate int, length time.Duration, kind func(int) string) (c Count, err error) {
	if kind == nil {
		kind = func(int) string { return "now" }
	}
	rcodes := map[int]int{}
	results, err := load.Schedule{
		Server: f.addr(t), Rate: rate, Count: max(1, int(length.Seconds()*float64(rate))),
		Name: func(i int) string { return newName(kind(i)) },
		Right: func(i int, reply []byte) bool {
			rcodes[i] = int(reply[3] & 15)
			return rcodes[i] == dns.RcodeSuccess && reply[6]|reply[7] != 0
		},
	}.Run(ctx)
	for i, r := range results {
		c.Asked++
		what := "no reply"
		if rcode, ok := rcodes[i]; ok {
			what = dns.RcodeToString[rcode]
		}
		if r.Failed {
			c.Wrong = append(c.Wrong, Failure{kind(i) + " " + what, r.Sent, r.Latency})
		}
		c.Latencies = append(c.Latencies, r.Latency)
	}
	slices.Sort(c.Latencies)
	return c, err
}

// Latency asks each forwarder over t at the rate for so long, one after the other.
func (b *Bed) Latency(ctx context.Context, t Transport, rate int, length time.Duration) (map[Of]Count, error) {
	counts := map[Of]Count{}
	before, err := b.allConnections()
	if err != nil {
		return nil, err
	}
	for _, f := range b.forwarders {
		if counts[Of{f.name, t}], err = ask(ctx, f, t, rate, length, nil); err != nil {
			return nil, fmt.Errorf("%s over %s: %w", b.Name, t, err)
		}
	}
	after, err := b.allConnections()
	for of, c := range counts {
		c.Connections = after[of] - before[of]
		counts[of] = c
	}
	slices.Reverse(b.forwarders) // the next time the other one is first
	return counts, err
}
