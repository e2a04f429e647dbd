package baseline

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/stat"
)

// Regression is something that has become worse.
type Regression struct {
	// Kind is what has become worse: one of the Kind constants.
	Kind string
	// Zone is the name of the zone or view.
	Zone string
	// Detail has the numbers of both agents as text.
	Detail string
}

// The kinds of regressions.
const (
	KindServFail = "servfail"
	KindLatency  = "latency"
	KindHits     = "hits"
	KindView     = "view"
)

// String returns the regression as one line.
func (r Regression) String() string { return r.Kind + " in " + r.Zone + ": " + r.Detail }

// The thresholds are far above what a healthy agent shows, because a needless way back stops
// the rollout until an operator looks. A share counts as worse only if it differs by a minimum
// (an effect that matters) and by minScore standard errors (not chance). The minimum is above
// the [Peak], because queries come in bursts, which standard errors don't know.
const (
	// minScore is so high because a comparison is repeated every second for each zone, and rare
	// failures are more frequent by chance than standard errors say. With it 10 failed queries
	// are enough in a zone whose last 27 queries worked.
	minScore = 6
	// minServFail is the minimum number of SERVFAILs: resolvers repeat a failed query several
	// times, so a few of them may be a single name.
	minServFail = 10
	// servFailRise is the minimum rise of the SERVFAIL share in a zone without SERVFAIL; see
	// [servFailLimit].
	servFailRise = 0.05

	// minTimed is the minimum number of queries of both agents for the 99th percentile.
	minTimed = 200
	// slowFactor and slowRise are the minimum rise of the 99th percentile. Two buckets of the
	// histogram are a factor of 4, and clients don't notice less than 10 ms.
	slowFactor = 4
	slowRise   = 10 * time.Millisecond
	// slowShare is the minimum rise of the share of queries slower than that. A few more
	// queries to a distant upstream make a percentile jump, but not this share.
	slowShare = 0.05

	// minLookups is the minimum number of cache lookups of both agents. Hit ratios of fewer
	// depend on which client asks first.
	minLookups = 500
	// hitsFall is the minimum fall of the hit ratio. New workloads change it by less.
	hitsFall = 0.20

	// minObjects is the number of objects from which on half of them are a regression. In a
	// small cluster half may be deleted at once.
	minObjects = 10
	// oldView is the age of a regressed view, and freshView the maximum before. The API server
	// sends an event after 75 s at most.
	oldView   = 2 * time.Minute
	freshView = 90 * time.Second
)

// Compare returns what is worse in now than in before, if there are enough queries to tell;
// else nil. It compares zones and views that both have. It leaves out a zone if only one of
// them has a certain zone below it, which takes some of its queries.
func Compare(before, now Statistics) []Regression {
	var out []Regression
	for _, z := range now.Zones {
		if b, ok := before.zone(z); ok && !before.hasOther(now, z) && !now.hasOther(before, z) {
			out = append(out, compareZone(b, z)...)
		}
	}
	for _, v := range now.Views {
		for _, b := range before.Views {
			if b.Zone == v.Zone {
				out = append(out, compareView(b, v)...)
			}
		}
	}
	return out
}

func compareZone(before, now Zone) (out []Regression) {
	for _, compare := range []func(before, now Zone) (kind, detail string){compareServFail, compareLatency, compareHits} {
		if kind, detail := compare(before, now); kind != "" {
			out = append(out, Regression{Kind: kind, Zone: strings.TrimSpace(now.Name + " " + now.Group), Detail: detail})
		}
	}
	return out
}

// within reports whether name is zone or below it.
func within(name, zone string) bool {
	return zone == "." || name == zone || strings.HasSuffix(name, "."+zone)
}

// score returns how many standard errors the share a of n is above the share b of m: the
// statistic of the two-proportion z-test with pooled variance.
func score(a, n, b, m uint64) float64 {
	if n == 0 || m == 0 {
		return 0
	}
	pooled := float64(a+b) / float64(n+m)
	deviation := math.Sqrt(pooled * (1 - pooled) * (1/float64(n) + 1/float64(m)))
	if deviation == 0 {
		return 0
	}
	return (share(a, n) - share(b, m)) / deviation
}

// share returns a of n.
func share(a, n uint64) float64 { return float64(a) / float64(max(n, 1)) }

// servFailLimit returns the share of SERVFAIL that is worse than before: twice as much and
// servFailRise more, but half of the queries that worked before are always enough. The more
// queries fail because of their names' own servers, the more does their share vary.
func servFailLimit(before float64) float64 {
	return min(2*before+servFailRise, (1+before)/2)
}

func compareServFail(before, now Zone) (kind, detail string) {
	if now.ServFail < minServFail ||
		share(now.ServFail, now.Queries) < servFailLimit(max(share(before.ServFail, before.Queries), before.Peak.ServFail)) ||
		score(now.ServFail, now.Queries, before.ServFail, before.Queries) < minScore {
		return "", ""
	}
	return KindServFail, fmt.Sprintf("%s of %d queries failed; before %s of %d",
		percent(now.ServFail, now.Queries), now.Queries, percent(before.ServFail, before.Queries), before.Queries)
}

func compareLatency(before, now Zone) (kind, detail string) {
	n, m := now.Duration.Total(), before.Duration.Total()
	if n < minTimed || m < minTimed {
		return "", ""
	}
	p99 := max(before.Duration.p99(), bucket(before.Peak.Bucket))
	i := p99.slower()
	slow, slowBefore := now.Duration.from(i), before.Duration.from(i)
	if i == numBuckets || now.Duration.p99() < i ||
		share(slow, n)-share(slowBefore, m) < slowShare || score(slow, n, slowBefore, m) < minScore {
		return "", ""
	}
	return KindLatency, fmt.Sprintf("99%% of %d replies within %s; before within %s; %s took longer than %s, before %s",
		n, now.Duration.p99(), p99, percent(slow, n), i-1, percent(slowBefore, m))
}

func compareHits(before, now Zone) (kind, detail string) {
	if now.Lookups < minLookups || before.Lookups < minLookups ||
		min(share(before.Hits, before.Lookups), 1-before.Peak.Misses)-share(now.Hits, now.Lookups) < hitsFall ||
		score(before.Hits, before.Lookups, now.Hits, now.Lookups) < minScore {
		return "", ""
	}
	return KindHits, fmt.Sprintf("the cache answered %s of %d queries; before %s of %d",
		percent(now.Hits, now.Lookups), now.Lookups, percent(before.Hits, before.Lookups), before.Lookups)
}

func compareView(before, now View) []Regression {
	var detail string
	switch {
	case before.Synced && !now.Synced:
		detail = "not synced; it was synced before"
	case before.Objects > 0 && now.Objects == 0,
		before.Objects >= minObjects && now.Objects < before.Objects/2:
		detail = fmt.Sprintf("%d Services and namespaces; before %d", now.Objects, before.Objects)
	case before.Age <= freshView && now.Age > oldView:
		detail = fmt.Sprintf("the last event of the API server is %s old; before %s",
			now.Age.Round(time.Second), before.Age.Round(time.Second))
	default:
		return nil
	}
	return []Regression{{Kind: KindView, Zone: now.Zone, Detail: detail}}
}

// bucket is an index of a [Histogram]'s buckets.
type bucket int

// p99 returns the bucket with the 99th percentile, the first one without durations.
func (h Histogram) p99() bucket { return bucket(max(0, stat.QuantileBucket(h[:], 99))) }

// from returns the number of durations in bucket i and those after it.
func (h Histogram) from(i bucket) (n uint64) {
	for ; i < numBuckets; i++ {
		n += h[i]
	}
	return n
}

// slower returns the first bucket whose durations all are slowFactor times and slowRise longer
// than the upper bound of p, numBuckets if there is none.
func (p bucket) slower() bucket {
	if p == numBuckets-1 {
		return numBuckets
	}
	limit := max(slowFactor*p.bound(), p.bound()+slowRise)
	i := p + 1
	for i < numBuckets && (i-1).bound() < limit {
		i++
	}
	return i
}

// bound returns the upper bound of p's durations. The last bucket has none; it gets its lower
// bound.
func (p bucket) bound() time.Duration {
	seconds := stat.DurationBuckets[min(int(p), numBuckets-2)]
	return time.Duration(math.Round(seconds * float64(time.Second)))
}

// String returns p's upper bound.
func (p bucket) String() string {
	if p == numBuckets-1 {
		return "more than " + p.bound().String()
	}
	return p.bound().String()
}

// percent returns a of n as text.
func percent(a, n uint64) string { return fmt.Sprintf("%.1f%%", 100*share(a, n)) }
