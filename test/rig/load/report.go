package load

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Report has the outcomes of a job's queries.
type Report struct {
	// Start and End are the times of the first and the last UDP query.
	Start, End time.Time
	// UDP, Stream and OneShot are by transport.
	UDP, Stream, OneShot Stats
	// Runs are the UDP outcomes in the order of the queries; consecutive equal ones are one Run.
	// There are at most maxRuns; OmittedRuns counts the missing ones at the end.
	Runs        []Run
	OmittedRuns int
	// Seconds has the UDP outcomes by second.
	Seconds []Second
	// LongestSilence is the longest time without a UDP answer, LongestAgentAbsence without one
	// from the agent. Start and End count as answers.
	LongestSilence, LongestAgentAbsence time.Duration
	// Skipped counts queries that were not sent because the client got no CPU in time; Dropped
	// counts answers lost in its socket buffers. Both mean that the client was too slow.
	Skipped, Dropped uint64
	// Discarded counts packets that the client sent again because the kernel had discarded them
	// before they left it.
	Discarded uint64
	// Backlog counts packets of any process that the machine has dropped meanwhile because a
	// CPU was too slow: lost queries may be among them.
	Backlog uint64
	// Refused counts ICMP errors for ports without a socket.
	Refused uint64
}

// maxRuns bounds the report.
const maxRuns = 10_000

// Run is a sequence of queries with the same outcome.
type Run struct {
	Outcome Outcome
	// Count is their number; First and Last are the times of the first and the last.
	Count       int
	First, Last time.Time
}

// Second has the outcomes of the queries sent in one second.
type Second struct {
	Counts
	P99 time.Duration
}

// Counts has the numbers of queries by outcome; Asked is the sum.
type Counts struct{ Asked, Local, Cluster, Servfail, Other, Lost uint64 }

func (c *Counts) add(f Outcome) {
	c.Asked++
	switch f {
	case Local:
		c.Local++
	case Cluster:
		c.Cluster++
	case Servfail:
		c.Servfail++
	case Other:
		c.Other++
	case Lost:
		c.Lost++
	}
}

// Failed returns the number of queries without a usable answer.
func (c Counts) Failed() uint64 { return c.Lost + c.Servfail + c.Other }

// Add adds o.
func (c *Counts) Add(o Counts) {
	c.Asked += o.Asked
	c.Local += o.Local
	c.Cluster += o.Cluster
	c.Servfail += o.Servfail
	c.Other += o.Other
	c.Lost += o.Lost
}

// Stats has the outcomes over one transport.
type Stats struct {
	Counts
	// P50, P99 and Max are percentiles of the latency of answers.
	P50, P99, Max time.Duration
	// Errors are the first few connection errors.
	Errors []string
}

// All returns the sum over all transports.
func (r *Report) All() Counts {
	var sum Counts
	for _, t := range []Stats{r.UDP, r.Stream, r.OneShot} {
		sum.Add(t.Counts)
	}
	return sum
}

// WorstP99 returns the greatest UDP p99 of all seconds that end after from and have at least a thousand
// answers, as a p99 needs.
func (r *Report) WorstP99(from time.Time) time.Duration {
	var worst time.Duration
	for i, s := range r.Seconds {
		if end := r.Start.Add(time.Duration(i+1) * time.Second); s.Asked-s.Lost >= 1000 && end.After(from) {
			worst = max(worst, s.P99)
		}
	}
	return worst
}

// Between counts the UDP queries sent in [from, to). It assumes that those of a Run are evenly
// spaced.
func (r *Report) Between(from, to time.Time) Counts {
	var c Counts
	for _, run := range r.Runs {
		for i := range run.Count {
			at := run.First
			if run.Count > 1 {
				at = at.Add(run.Last.Sub(run.First) * time.Duration(i) / time.Duration(run.Count-1))
			}
			if !at.Before(from) && at.Before(to) {
				c.add(run.Outcome)
			}
		}
	}
	return c
}

func (r *Report) String() string {
	var b strings.Builder
	for _, t := range []struct {
		name string
		Stats
	}{{"UDP", r.UDP}, {"TCP", r.Stream}, {"TCP once", r.OneShot}} {
		if t.Asked == 0 {
			continue
		}
		fmt.Fprintf(&b, "%s: %d asked, %d local, %d cluster, %d SERVFAIL, %d other, %d lost; p50 %v, p99 %v, max %v\n",
			t.name, t.Asked, t.Local, t.Cluster, t.Servfail, t.Other, t.Lost, t.P50, t.P99, t.Max)
		for _, e := range t.Errors {
			fmt.Fprintf(&b, "    %s\n", e)
		}
	}
	fmt.Fprintf(&b, "longest silence %v, longest without the agent %v, worst p99 of a second %v; %d refused, %d skipped, %d discarded and sent again, %d dropped by the client, %d by the machine",
		r.LongestSilence, r.LongestAgentAbsence, r.WorstP99(r.Start), r.Refused, r.Skipped, r.Discarded, r.Dropped, r.Backlog)
	return b.String()
}

// percentiles sets the percentiles. It sorts took.
func (t *Stats) percentiles(took []time.Duration) {
	slices.Sort(took)
	t.P50, t.P99, t.Max = percentile(took, 50), percentile(took, 99), percentile(took, 100)
}

// percentile returns the p-th percentile of sorted durations; 0 for none.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)*p+99)/100-1]
}

// maxErrors bounds Stats.Errors.
const maxErrors = 5

func (t *Stats) addError(err error) {
	if err != nil && len(t.Errors) < maxErrors {
		t.Errors = append(t.Errors, err.Error())
	}
}

// record is a UDP query. Times are in nanoseconds since the epoch.
type record struct {
	asked, received int64 // came: 0 for none
	outcome         Outcome
}

// addUDP fills the report from the records.
func (r *Report) addUDP(records []record) {
	if len(records) == 0 {
		return
	}
	var took []time.Duration
	first, last := records[0].asked, records[len(records)-1].asked
	r.Start, r.End = time.Unix(0, first), time.Unix(0, last)
	seconds := make([][]time.Duration, (last-first)/int64(time.Second)+1)
	r.Seconds = make([]Second, len(seconds))
	for _, q := range records {
		n := (q.asked - first) / int64(time.Second)
		r.UDP.add(q.outcome)
		r.Seconds[n].add(q.outcome)
		r.addRun(q)
		if q.outcome != Lost {
			d := time.Duration(q.received - q.asked)
			took, seconds[n] = append(took, d), append(seconds[n], d)
		}
	}
	r.UDP.percentiles(took)
	for i, s := range seconds {
		slices.Sort(s)
		r.Seconds[i].P99 = percentile(s, 99)
	}
	r.LongestSilence = longestGap(records, first, last, func(f Outcome) bool { return f != Lost })
	r.LongestAgentAbsence = longestGap(records, first, last, func(f Outcome) bool { return f == Local })
}

// addRun adds a query to the runs.
func (r *Report) addRun(q record) {
	at := time.Unix(0, q.asked)
	if n := len(r.Runs); n > 0 && r.Runs[n-1].Outcome == q.outcome && r.OmittedRuns == 0 {
		r.Runs[n-1].Count++
		r.Runs[n-1].Last = at
		return
	}
	if len(r.Runs) == maxRuns {
		r.OmittedRuns++
		return
	}
	r.Runs = append(r.Runs, Run{Outcome: q.outcome, Count: 1, First: at, Last: at})
}

// longestGap returns the longest time between two answers with an outcome that counts.
func longestGap(records []record, first, last int64, counts func(Outcome) bool) time.Duration {
	moments := []int64{first, last}
	for _, q := range records {
		if q.outcome != Lost && counts(q.outcome) && q.received < last {
			moments = append(moments, q.received)
		}
	}
	slices.Sort(moments)
	var longest int64
	for i := range moments[1:] {
		longest = max(longest, moments[i+1]-moments[i])
	}
	return time.Duration(longest)
}
