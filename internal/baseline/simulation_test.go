package baseline_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/baseline"
	"github.com/nodens-dns/nodens/internal/stat"
)

// traffic is what a zone's clients and the agent have in common: probabilities of each query.
type traffic struct {
	perSecond               int
	servFail, hit, upstream float64       // upstream is the share of slow answers among the misses
	fast, slow              time.Duration // typical times of hits and of slow answers
}

// randomTraffic returns a zone of any kind: idle or busy, healthy or with names that fail.
func randomTraffic(r *rand.Rand) traffic {
	pick := func(list ...float64) float64 { return list[r.IntN(len(list))] }
	return traffic{
		perSecond: int(pick(1, 5, 20, 50)), servFail: pick(0, 0, 0.001, 0.01, 0.05, 0.3), hit: pick(0, 0.5, 0.9, 0.99, 1),
		upstream: pick(0, 0.1, 1), fast: time.Duration(pick(50, 200, 800)) * time.Microsecond,
		slow: time.Duration(pick(2, 20, 100)) * time.Millisecond,
	}
}

// burst returns tr with other shares for a while, as clients come and go: the logarithm of their
// odds varies with the standard deviation spread.
func (tr traffic) burst(r *rand.Rand, spread float64) traffic {
	vary := func(p float64) float64 {
		factor := math.Exp(spread * r.NormFloat64())
		return p * factor / (1 - p + p*factor)
	}
	tr.servFail, tr.hit = vary(tr.servFail), vary(tr.hit)
	return tr
}

// run adds seconds of traffic to z.
func (tr traffic) run(r *rand.Rand, z *baseline.Zone, seconds int) {
	for range seconds * tr.perSecond {
		tr.ask(r, z)
	}
}

// spreads are factors of durations: a log-normal distribution.
var spreads = func() (list [500]float64) {
	r := rand.New(rand.NewPCG(3, 4))
	for i := range list {
		list[i] = math.Exp(r.NormFloat64() / 2)
	}
	return list
}()

// ask adds one query to z.
func (tr traffic) ask(r *rand.Rand, z *baseline.Zone) {
	typical := tr.fast
	z.Queries++
	switch {
	case r.Float64() < tr.servFail:
		z.ServFail++
		typical = tr.slow
	case r.Float64() < tr.hit:
		z.Lookups++
		z.Hits++
	default:
		z.Lookups++
		if r.Float64() < tr.upstream {
			typical = tr.slow
		}
	}
	took := typical.Seconds() * spreads[r.IntN(len(spreads))]
	i := 0
	for i < len(stat.DurationBuckets) && took > stat.DurationBuckets[i] {
		i++
	}
	z.Duration[i]++
}

// measured returns the statistics of an agent's last five minutes.
func measured(r *rand.Rand, tr traffic, spread float64) baseline.Statistics {
	var w baseline.Window[int]
	z := baseline.Zone{Name: "."}
	for range 10 {
		w.Add(baseline.Sample[int]{Statistics: zones(z)})
		tr.burst(r, spread).run(r, &z, 30)
	}
	return w.Last(zones(z))
}

// falseAlarms compares successors that work like their predecessors, once a second for a
// minute, and returns how many of them would give the node back.
func falseAlarms(seed uint64, pairs int, spread float64) (list []string) {
	r := rand.New(rand.NewPCG(seed, 0))
	for range pairs {
		tr := randomTraffic(r)
		before := measured(r, tr, spread)
		now := baseline.Zone{Name: "."}
		after := tr.burst(r, spread)
		for second := range 60 {
			if second == 30 {
				after = tr.burst(r, spread)
			}
			after.run(r, &now, 1)
			if worse := baseline.Compare(before, zones(now)); len(worse) > 0 {
				list = append(list, fmt.Sprintf("%+v after %d s: %v", tr, second+1, worse))
				break
			}
		}
	}
	return list
}

// TestNoFalseAlarms: a successor that works like its predecessor never gives the node back, also
// if the shares of failures and misses differ from one half of a minute to the next.
func TestNoFalseAlarms(t *testing.T) {
	for spread, pairs := range map[float64]int{0: 2000, 0.3: 1000} {
		if list := falseAlarms(20, pairs, spread); len(list) > 0 {
			t.Errorf("spread %.1f: %d of %d pairs have a regression:\n%s", spread, len(list), pairs, strings.Join(list[:min(len(list), 5)], "\n"))
		}
	}
}

// TestDetection: each fault is found within so many queries, whatever the predecessor's traffic
// is like. The table is in the test's log.
func TestDetection(t *testing.T) {
	healthy := traffic{perSecond: 20, servFail: 0.001, hit: 0.9, upstream: 1, fast: 200 * time.Microsecond, slow: 20 * time.Millisecond}
	for _, tc := range []struct {
		name, kind string
		fault      func(*traffic)
		within     uint64 // queries
	}{
		{"every query fails", baseline.KindServFail, func(tr *traffic) { tr.servFail = 1 }, 10},
		{"half of the queries fail", baseline.KindServFail, func(tr *traffic) { tr.servFail = 0.5 }, 50},
		{"10 % fail", baseline.KindServFail, func(tr *traffic) { tr.servFail = 0.1 }, 300},
		{"every reply is 300 ms late", baseline.KindLatency, func(tr *traffic) { tr.fast, tr.slow = 300*time.Millisecond, 320*time.Millisecond }, 200},
		{"10 % are 300 ms late", baseline.KindLatency, func(tr *traffic) { tr.slow = 320 * time.Millisecond }, 1000},
		{"the cache has no answers", baseline.KindHits, func(tr *traffic) { tr.hit = 0 }, 600},
		{"the cache has half of the answers", baseline.KindHits, func(tr *traffic) { tr.hit = 0.45 }, 700},
	} {
		r := rand.New(rand.NewPCG(1, 2))
		var worst, sum uint64
		const runs = 50
		for range runs {
			before := measured(r, healthy, 0.3)
			bad, now := healthy, baseline.Zone{Name: "."}
			tc.fault(&bad)
			for found := false; !found && now.Queries < 10*tc.within; {
				bad.ask(r, &now)
				for _, worse := range baseline.Compare(before, zones(now)) {
					found = found || worse.Kind == tc.kind
				}
			}
			worst, sum = max(worst, now.Queries), sum+now.Queries
		}
		t.Logf("%-36s found as %-8s after %4d queries on average, %4d at most", tc.name, tc.kind, sum/runs, worst)
		if worst > tc.within {
			t.Errorf("%s: found after %d queries, want %d at most", tc.name, worst, tc.within)
		}
	}
}
