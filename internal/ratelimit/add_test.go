package ratelimit_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/ratelimit"
)

// TestAdd: what is left for a client after queries that were answered elsewhere, up to a second ago.
func TestAdd(t *testing.T) {
	const rate, burst = 100, 50
	a, now := addr(1), time.Hour
	for _, c := range []struct {
		name   string
		before int    // queries a second earlier
		added  uint64 // and then
		want   int
	}{
		{"nothing", 0, 0, rate + burst},
		{"fewer than the rate", 0, 30, rate + burst - 30},
		{"as many as the rate", 0, rate, burst},
		{"more", 0, rate + 20, burst - 20},
		{"all", 0, rate + burst, 0},
		{"far more", 0, 1 << 40, 0},
		{"after some", 60, 30, rate + burst - 30},
		{"after all", rate + burst, 30, rate - 30},
	} {
		l := ratelimit.New(ratelimit.Options{Rate: rate, Burst: burst, Lag: time.Second})
		allowed(l, a, c.before, now-time.Second)
		l.Add(a, c.added, now)
		if got := allowed(l, a, 2*rate, now); got != c.want {
			t.Errorf("%s: %d are allowed, want %d", c.name, got, c.want)
		}
		if got := allowed(l, a.Next(), 2*rate, now); got != rate+burst {
			t.Errorf("%s: %d of another client are allowed", c.name, got)
		}
		// However many were added, a client has its rate again after a while.
		if got := allowed(l, a, 2*rate, now+3*time.Second); got < rate {
			t.Errorf("%s: %d are allowed three seconds later", c.name, got)
		}
	}
}

// TestAddRate: a client gets its rate in all if the kernel counts all its queries, answers some of those within the limit
// and passes the others on, and reports once a second what it has answered; as much again passes beyond the limit.
func TestAddRate(t *testing.T) {
	const rate, burst, seconds = 200, 100, 60
	a := netip.MustParseAddr("2001:db8::1")
	for _, share := range []int{0, 1, 5, 9, 10} { // of ten queries, so many can be answered by the kernel
		for _, load := range []int{rate / 2, rate, rate + rate/5, 4 * rate} {
			kernel := ratelimit.New(ratelimit.Options{Rate: rate, Burst: burst})
			excess := ratelimit.New(ratelimit.Options{Rate: rate, Burst: burst})
			l := ratelimit.New(ratelimit.Options{Rate: rate, Burst: burst, Lag: time.Second})
			got, added, last := 0, uint64(0), time.Hour
			for i := range load * seconds {
				now := time.Hour + time.Duration(i)*time.Second/time.Duration(load)
				if now-last >= time.Second {
					l.Add(a, added, now)
					added, last = 0, now
				}
				within := kernel.Allow(a, now)
				switch {
				case within && i%10 < share:
					got, added = got+1, added+1
				case (within || excess.Allow(a, now)) && l.Allow(a, now):
					got++
				}
			}
			least, most := min(load, rate)*seconds, min(load*seconds, rate*seconds+burst+2*rate) // 2: of the first second and the last
			if got < least || got > most {
				t.Errorf("%d queries per second, %d of 10 in the kernel: %d in all, want %d to %d", load, share, got, least, most)
			}
		}
	}
}

// TestAddExempt: nothing is counted for addresses without a limit, and nothing is allocated.
func TestAddExempt(t *testing.T) {
	free := addr(1)
	l := ratelimit.New(ratelimit.Options{Rate: 1, Burst: 1, Lag: time.Second, Exempt: func(a netip.Addr) bool { return a == free }})
	for i := range 3 {
		l.Add(free, 1000, time.Duration(i)*time.Hour)
		if got := allowed(l, free, 10, time.Duration(i)*time.Hour); got != 10 {
			t.Errorf("%d of 10 are allowed", got)
		}
	}
	if n := testing.AllocsPerRun(100, func() { l.Add(addr(2), 3, time.Second) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestAddFull: queries of clients for which there is no row count, too.
func TestAddFull(t *testing.T) {
	l := ratelimit.New(ratelimit.Options{Rate: 1, Burst: 10, Lag: time.Second})
	for i := range 4 * ratelimit.MaxClients {
		l.Add(addr(i), 1000, time.Hour)
	}
	for i := range 4 * ratelimit.MaxClients {
		if l.Allow(addr(i), time.Hour) {
			t.Fatalf("client %d may ask", i)
		}
	}
}
