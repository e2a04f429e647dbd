package main

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/test/node/load"
)

// promise is what the README says that pods see of an event, in numbers.
type promise struct {
	// what the promise is called in messages.
	what string
	// dying is how much time's worth of questions may be lost besides those of the time
	// that an agent takes to die.
	dying time.Duration
	// breaks is how many times every TCP connection that is open may end, and with it its
	// question.
	breaks uint64
	// away says that the cluster's DNS may answer meanwhile.
	away bool
}

// The promises: README.md, "When the agent is down" and "Upgrades".
var (
	// An upgrade, and whatever the agent has no part in, is not seen at all.
	unseen = promise{what: "nothing lost, all answered on the node"}
	// superseded is a rollout on the heels of another: the agent that has just taken over is
	// stopped, and the connections that were passed on to it end with it.
	superseded = promise{what: "connections may end once, all answered on the node", breaks: 1}
	// An agent that is stopped answers what it has, and its TCP connections end with it;
	// those that the cluster's DNS answers meanwhile end when the next agent listens.
	stopped = promise{what: "only connections end, once with the agent and once with the next one's start", breaks: 2, away: true}
	// killed takes the questions with it that it has, and those that come while the kernel
	// gives back its memory, which is measured. The rest is what waits in its sockets and
	// for its upstreams when it is killed: half of it is too little on a core that others
	// want too, double would hide an agent that is missed.
	killed = promise{what: "only what it had, and connections as above", dying: 50 * time.Millisecond, breaks: 2, away: true}
)

// death is of a node's agent: when it was killed, and when it was gone. It is zero if it
// was not killed.
type death struct{ killed, gone time.Time }

// toll is what an event has done to the pods of a node.
type toll struct {
	node string
	death
	// jobs are what was asked, and reports what became of it, in the same order.
	jobs    []load.Job
	reports []*load.Report
}

// sum is of all that was asked.
func (t toll) sum() (all load.Counts) {
	for _, r := range t.reports {
		all.Add(r.All())
	}
	return all
}

// silence is the longest time in which no answer came to one kind of question.
func (t toll) silence() (longest time.Duration) {
	for _, r := range t.reports {
		longest = max(longest, r.LongestSilence)
	}
	return longest
}

// skipped is how many questions could not be asked.
func (t toll) skipped() (n uint64) {
	for _, r := range t.reports {
		n += r.Skipped
	}
	return n
}

func (t toll) String() string {
	c := t.sum()
	text := fmt.Sprintf("%s: %d asked, %d lost, %d SERVFAIL", t.node, c.Asked, c.Lost, c.Servfail)
	if c.Other > 0 {
		text += fmt.Sprintf(", %d wrong", c.Other)
	}
	if c.Cluster > 0 {
		text += fmt.Sprintf(", %d by the cluster's DNS", c.Cluster)
	}
	if n := t.skipped(); n > 0 {
		text += fmt.Sprintf(", %d not asked for want of time", n)
	}
	return text + fmt.Sprintf(", longest silence %d ms", t.silence().Milliseconds())
}

// broken says how the toll breaks the promise; nil if it doesn't.
func (p promise) broken(t toll) error {
	var errs []error
	for i, r := range t.reports {
		errs = append(errs, p.over(t.jobs[i], r, t.death))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: promised is %s: %w", t.node, p.what, err)
	}
	return nil
}

// slow is how many questions a client has not asked, because others had its core, for each
// one that the cluster's DNS may lose for the same reason: its sockets hold a few hundred.
const slow = 100

// over is broken for one job. What the client or the machine has dropped themselves, for
// want of time, is no fault of a server.
func (p promise) over(j load.Job, r *load.Report, d death) error {
	all, excused, away := r.All(), r.Dropped+r.Backlog, uint64(0)
	if all.Local == 0 {
		return fmt.Errorf("%s: the agent has answered none of %d questions\n%s", j.Zone, all.Asked, unusual(r))
	}
	if p.away {
		excused, away = excused+r.Skipped/slow, all.Asked
	}
	var late load.Counts
	if !d.gone.IsZero() {
		late = r.Between(d.gone, r.End.Add(1))
	}
	dying := p.dying + d.gone.Sub(d.killed)
	for _, limit := range []struct {
		got, most uint64
		what      string
	}{
		{all.Servfail + all.Other, 0, "are SERVFAIL or wrong"},
		{r.UDP.Lost, excused + most(dying, j.Rate), "are lost over UDP"},
		{r.Stream.Lost, p.breaks * uint64(j.Streams), "connections that stay open have ended"},
		{r.OneShot.Lost, excused + most(dying, j.OneShots) + p.breaks, "connections for one question have ended"},
		{late.Failed(), excused, "are lost that were asked when the process was gone"},
		{all.Cluster, away, "are answered by the cluster's DNS"},
	} {
		if limit.got > limit.most {
			return fmt.Errorf("%s: %d %s, at most %d may be\n%s", j.Zone, limit.got, limit.what, limit.most, unusual(r))
		}
	}
	return nil
}

// most is how many questions are asked in the time at the rate.
func most(d time.Duration, rate int) uint64 {
	return uint64(math.Ceil(d.Seconds() * float64(rate)))
}

// runsShown is how many runs of a report a message has.
const runsShown = 12

// unusual is the report, with what was not as usual in it.
func unusual(r *load.Report) string {
	var b strings.Builder
	b.WriteString(r.String())
	n := 0
	for _, run := range r.Runs {
		if run.Outcome == load.Local || n == runsShown {
			continue
		}
		n++
		fmt.Fprintf(&b, "\n    %d %s, asked from %v to %v", run.Count, run.Outcome, run.First.Sub(r.Start), run.Last.Sub(r.Start))
	}
	return b.String()
}
