package load

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Report is what became of a job's questions.
type Report struct {
	// Start and Ended are the times of the first and the last question.
	Start, End time.Time
	// UDP, Stream and Shot are the three ways of asking.
	UDP, Stream, OneShot Stats
	// Runs are the fates over UDP in the order of the questions, those in a row with the
	// same fate as one. There are mostRuns at most; Cut is how many are missing after
	// them.
	Runs        []Run
	OmittedRuns int
	// Seconds are the seconds of the time in which questions were asked over UDP.
	Seconds []Second
	// LongestSilence is the longest time without any answer over UDP, Away the longest without
	// one of the agent: between two such answers, the start and the end.
	LongestSilence, LongestAgentAbsence time.Duration
	// Skipped is how many questions were due while the client did not have its core,
	// and were not asked; Dropped is how many packets its kernel lost for want of room.
	// Both say that the client was too slow, and nothing of a server.
	Skipped, Dropped uint64
	// Backlog is how many packets the machine has dropped meanwhile, of this client or
	// anybody else, because a CPU could not keep up: lost questions may be among them.
	Backlog uint64
	// Refused counts ICMP errors: packets for a port where nobody listened.
	Refused uint64
}

// maxRuns bounds the report: a server whose answers change with each question is
// not described by runs.
const maxRuns = 10_000

// Run is questions in a row with the same fate.
type Run struct {
	Outcome Outcome
	// Count is how many; First and Last are when the first and the last was asked.
	Count       int
	First, Last time.Time
}

// Second is what became of the questions asked in one second.
type Second struct {
	Counts
	P99 time.Duration
}

// Counts are numbers of questions by their fates; Asked is the sum.
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

// Failed is how many got no answer that a client can use.
func (c Counts) Failed() uint64 { return c.Lost + c.Servfail + c.Other }

// Add adds the other counts.
func (c *Counts) Add(o Counts) {
	c.Asked += o.Asked
	c.Local += o.Local
	c.Cluster += o.Cluster
	c.Servfail += o.Servfail
	c.Other += o.Other
	c.Lost += o.Lost
}

// Stats is what became of the questions that were asked in one way.
type Stats struct {
	Counts
	// P50, P99 and Max are of the answers that came.
	P50, P99, Max time.Duration
	// Errors are the first few errors of connections, for the eye.
	Errors []string
}

// All is the sum of what became of questions, however they were asked.
func (r *Report) All() Counts {
	var sum Counts
	for _, t := range []Stats{r.UDP, r.Stream, r.OneShot} {
		sum.Add(t.Counts)
	}
	return sum
}

// WorstP99 is the greatest p99 over UDP of any second that ended after from and in which
// at least a thousand answers came, fewer of which say nothing about their hundredth part.
func (r *Report) WorstP99(from time.Time) time.Duration {
	var worst time.Duration
	for i, s := range r.Seconds {
		if end := r.Start.Add(time.Duration(i+1) * time.Second); s.Asked-s.Lost >= 1000 && end.After(from) {
			worst = max(worst, s.P99)
		}
	}
	return worst
}

// Between counts the questions over UDP that were asked at from or later, and before to.
// Those of a run are taken as evenly spaced.
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
	fmt.Fprintf(&b, "longest silence %v, longest without the agent %v, worst p99 of a second %v; %d refused, %d skipped, %d dropped by the client, %d by the machine",
		r.LongestSilence, r.LongestAgentAbsence, r.WorstP99(r.Start), r.Refused, r.Skipped, r.Dropped, r.Backlog)
	return b.String()
}

// percentiles fills in the times; it sorts them.
func (t *Stats) percentiles(took []time.Duration) {
	slices.Sort(took)
	t.P50, t.P99, t.Max = percentile(took, 50), percentile(took, 99), percentile(took, 100)
}

// percentile is of sorted times, 0 of none.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)*p+99)/100-1]
}

// maxErrors is how many errors a tally keeps.
const maxErrors = 5

func (t *Stats) addError(err error) {
	if err != nil && len(t.Errors) < maxErrors {
		t.Errors = append(t.Errors, err.Error())
	}
}

// record is one question over UDP. Times are Unix ones in nanoseconds.
type record struct {
	asked, received int64 // came: 0 for none
	outcome         Outcome
}

// addUDP writes what the records say into the report.
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

// addRun adds one question to the runs.
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

// longestGap is the longest time between two moments at which answers came that count.
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
