package ratelimit_test

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/ratelimit"
)

// addr returns the i-th address.
func addr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// allowed returns how many of n queries of a are within the limit at now.
func allowed(l *ratelimit.Limiter, a netip.Addr, n int, now time.Duration) (ok int) {
	for range n {
		if l.Allow(a, now) {
			ok++
		}
	}
	return ok
}

// TestAllow: a client may ask its burst at once, and then at the rate.
func TestAllow(t *testing.T) {
	l := ratelimit.New(ratelimit.Options{Rate: 100, Burst: 30})
	for _, step := range []struct {
		at      time.Duration
		n, want int
	}{
		{time.Hour, 50, 30},
		{time.Hour, 1, 0},
		{time.Hour + 9*time.Millisecond, 1, 0},
		{time.Hour + 10*time.Millisecond, 5, 1},
		{time.Hour + 60*time.Millisecond, 50, 5},
		{time.Hour + 10*time.Second, 50, 30}, // no more than the burst after a long pause
	} {
		limited := l.Limited(addr(1), step.at)
		if n := allowed(l, addr(1), step.n, step.at); n != step.want || limited != (step.want == 0) {
			t.Errorf("at %v: %d of %d are allowed, want %d; limited before: %t", step.at, n, step.n, step.want, limited)
		}
	}
	if n := allowed(l, addr(2), 50, 2*time.Hour); n != 30 {
		t.Errorf("another client: %d", n)
	}
}

// TestAllowRate: over a long time exactly rate queries a second are allowed, however many are asked.
func TestAllowRate(t *testing.T) {
	for _, rate := range []int{1, 20, 1000, ratelimit.MaxRate} {
		l := ratelimit.New(ratelimit.Options{Rate: rate, Burst: 1})
		step := time.Second / time.Duration(rate) / 4
		n := 0
		for i := range 4000 {
			if l.Allow(addr(1), time.Minute+time.Duration(i)*step) {
				n++
			}
		}
		if n != 1000 {
			t.Errorf("rate %d: %d of 4000 queries at four times the rate are allowed", rate, n)
		}
	}
}

// TestSameClient: forms of an address are one client, and so are the addresses of an IPv6 network.
func TestSameClient(t *testing.T) {
	l := ratelimit.New(ratelimit.Options{Rate: 1, Burst: 1, Client: func(a netip.Addr) netip.Addr {
		if netip.MustParsePrefix("fd00::/16").Contains(a) {
			return a
		}
		return netip.PrefixFrom(a, 64).Masked().Addr()
	}})
	for _, c := range []struct {
		first, second string
		same          bool
	}{
		{"10.0.0.1", "::ffff:10.0.0.1", true},
		{"10.0.0.2", "10.0.0.3", false},
		{"fe80::1%eth0", "fe80::1%eth1", true},
		{"2001:db8::1", "2001:db8::2", true},
		{"2001:db8:1::1", "2001:db8:1:1::1", false},
		{"fd00::1", "fd00::2", false},
	} {
		first, second := l.Allow(netip.MustParseAddr(c.first), time.Hour), l.Allow(netip.MustParseAddr(c.second), time.Hour)
		if !first || second == c.same {
			t.Errorf("%s: %t, then %s: %t; the same client: %t", c.first, first, c.second, second, c.same)
		}
	}
}

// TestExempt: an exempt address has no limit as long as it is exempt, give or take a minute, even beside others of its
// network.
func TestExempt(t *testing.T) {
	var own atomic.Bool
	own.Store(true)
	node := netip.MustParseAddr("10.0.0.9")
	node6 := netip.MustParseAddr("2001:db8::9")
	l := ratelimit.New(ratelimit.Options{
		Rate: 1, Burst: 1, Exempt: func(a netip.Addr) bool { return own.Load() && (a == node || a == node6) },
		Client: func(a netip.Addr) netip.Addr { return netip.PrefixFrom(a, 64).Masked().Addr() },
	})
	for _, a := range []netip.Addr{node, netip.AddrFrom16(node.As16()), node6} {
		if n := allowed(l, a, 100, time.Hour); n != 100 || l.Limited(a, time.Hour) {
			t.Errorf("%d of 100 queries of %v are allowed", n, a)
		}
	}
	if n := allowed(l, netip.MustParseAddr("2001:db8::1"), 100, time.Hour); n != 1 {
		t.Errorf("%d queries of its neighbour are allowed", n)
	}
	own.Store(false)
	if n := allowed(l, node, 100, time.Hour+time.Minute); n != 1 {
		t.Errorf("%d queries are allowed when it is not exempt any more", n)
	}
	own.Store(true)
	if n := allowed(l, node, 100, 2*time.Hour); n < 1 {
		t.Errorf("%d queries are allowed when it is exempt again", n)
	}
}

// TestManyAddresses: a flood from many addresses is limited as a whole, and does not change what a client with a
// row may ask.
func TestManyAddresses(t *testing.T) {
	const rate, burst = 10, 20
	now := time.Hour
	l := ratelimit.New(ratelimit.Options{Rate: rate, Burst: burst})
	victim := addr(1)
	if n := allowed(l, victim, burst-1, now); n != burst-1 { // one is left
		t.Fatalf("%d queries", n)
	}
	passed := 0
	for i := range 8 * ratelimit.MaxClients {
		passed += allowed(l, addr(2+i), 1, now)
	}
	if most := ratelimit.MaxClients + ratelimit.SharedBuckets*burst; passed > most || passed < ratelimit.MaxClients*9/10 {
		t.Errorf("%d queries of as many addresses are allowed, want at most %d", passed, most)
	}
	if n := allowed(l, victim, 100, now); n != 1 {
		t.Errorf("%d queries of the client that came before are allowed, want 1", n)
	}
	if n := allowed(l, victim, 100, now+time.Second); n != rate {
		t.Errorf("%d queries of it are allowed a second later, want %d", n, rate)
	}
	// All buckets are full again: the rows are free.
	if n := allowed(l, addr(1_000_000), 100, now+10*time.Second); n != burst {
		t.Errorf("%d queries of a new client are allowed, want %d", n, burst)
	}
}

// TestConcurrent: readers that ask for one client at the same time allow no more than one reader would.
func TestConcurrent(t *testing.T) {
	const readers, burst = 4, 1000
	for round := range 20 {
		l := ratelimit.New(ratelimit.Options{Rate: 1, Burst: burst})
		l.Allow(addr(round), time.Hour)
		var passed atomic.Int64
		var running sync.WaitGroup
		for range readers {
			running.Go(func() { passed.Add(int64(allowed(l, addr(round), burst, time.Hour))) })
		}
		running.Wait()
		if passed.Load() != burst-1 {
			t.Errorf("%d queries are allowed, want %d", passed.Load(), burst-1)
		}
	}
}

// TestConcurrentNew: clients that come while others do have a limit, too.
func TestConcurrentNew(t *testing.T) {
	const readers, clients = 4, 4000
	l := ratelimit.New(ratelimit.Options{Rate: 1, Burst: 2})
	var running sync.WaitGroup
	var passed [clients]atomic.Int64
	for range readers {
		running.Go(func() {
			for i := range clients {
				passed[i].Add(int64(allowed(l, addr(i), 5, time.Hour)))
			}
		})
	}
	running.Wait()
	over := 0
	for i := range passed {
		if passed[i].Load() > 2 {
			over++
		}
	}
	if over > clients/100 { // two readers may take different rows for the same new client
		t.Errorf("%d of %d clients have exceeded the burst", over, clients)
	}
}

// TestAllocs: neither a known nor a new client costs an allocation.
func TestAllocs(t *testing.T) {
	l := ratelimit.New(ratelimit.Options{Rate: 1, Burst: 1})
	i := 0
	if n := testing.AllocsPerRun(1000, func() { i++; l.Allow(addr(1), time.Hour); l.Allow(addr(i), time.Hour) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkAllow is the cost of a query that is within the limit, and of one that is not.
func BenchmarkAllow(b *testing.B) {
	for _, c := range []struct {
		name string
		rate int
	}{{"within", ratelimit.MaxRate}, {"over", 1}} {
		b.Run(c.name, func(b *testing.B) {
			l := ratelimit.New(ratelimit.Options{Rate: c.rate, Burst: 1})
			now := time.Hour
			for b.Loop() {
				now += time.Microsecond
				l.Allow(addr(1), now)
			}
		})
	}
}
