package main

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/test/node/load"
)

// lossLimit is what the README says that pods see of an event, in numbers.
type lossLimit struct {
	// name the promise is called in messages.
	name string
	// dying is how much time's worth of questions may be lost besides those of the time
	// that an agent takes to die.
	dying time.Duration
	// disconnects is how many times every TCP connection that is open may end, and with it its
	// question.
	disconnects uint64
	// fallback says that the cluster's DNS may answer meanwhile.
	fallback bool
}

// The promises: README.md, "When the agent is down" and "Upgrades".
var (
	// An upgrade, and whatever the agent has no part in, is not seen at all.
	lossless = lossLimit{name: "nothing lost, all answered on the node"}
	// rolledTwice is a rollout on the heels of another: the agent that has just taken over is
	// stopped, and the connections that were passed on to it end with it.
	rolledTwice = lossLimit{name: "connections may end once, all answered on the node", disconnects: 1}
	// An agent that is stopped answers what it has, and its TCP connections end with it;
	// those that the cluster's DNS answers meanwhile end when the next agent listens.
	agentDeleted = lossLimit{name: "only connections end, once with the agent and once with the next one's start", disconnects: 2, fallback: true}
	// agentKilled takes the questions with it that it has, and those that come while the kernel
	// gives back its memory, which is measured. The rest is what waits in its sockets and
	// for its upstreams when it is killed: half of it is too little on a core that others
	// want too, double would hide an agent that is missed.
	agentKilled = lossLimit{name: "only what it had, and connections as above", dying: 50 * time.Millisecond, disconnects: 2, fallback: true}
)

// podKill is of a node's agent: when it was killed, and when it was gone. It is zero if it
// was not killed.
type podKill struct{ killed, gone time.Time }

// losses is what an event has done to the pods of a node.
type losses struct {
	node string
	podKill
	// jobs are what was asked, and reports what became of it, in the same order.
	jobs    []load.Job
	reports []*load.Report
}

// total is of all that was asked.
func (t losses) total() (all load.Counts) {
	for _, r := range t.reports {
		all.Add(r.All())
	}
	return all
}

// longestSilence is the longest time in which no answer came to one kind of question.
func (t losses) longestSilence() (longest time.Duration) {
	for _, r := range t.reports {
		longest = max(longest, r.LongestSilence)
	}
	return longest
}

// skipped is how many questions could not be asked.
func (t losses) skipped() (n uint64) {
	for _, r := range t.reports {
		n += r.Skipped
	}
	return n
}

func (t losses) String() string {
	c := t.total()
	text := fmt.Sprintf("%s: %d asked, %d lost, %d SERVFAIL", t.node, c.Asked, c.Lost, c.Servfail)
	if c.Other > 0 {
		text += fmt.Sprintf(", %d wrong", c.Other)
	}
	if c.Cluster > 0 {
		text += fmt.Sprintf(", %d by cluster DNS", c.Cluster)
	}
	if n := t.skipped(); n > 0 {
		text += fmt.Sprintf(", %d skipped by the client", n)
	}
	return text + fmt.Sprintf(", longest silence %d ms", t.longestSilence().Milliseconds())
}

// check says how the toll breaks the promise; nil if it doesn't.
func (p lossLimit) check(t losses) error {
	var errs []error
	for i, r := range t.reports {
		errs = append(errs, p.checkJob(t.jobs[i], r, t.podKill))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: promised is %s: %w", t.node, p.name, err)
	}
	return nil
}

// skippedPerLost is how many questions a client has not asked, because others had its core, for each
// one that the cluster's DNS may lose for the same reason: its sockets hold a few hundred.
const skippedPerLost = 100

// checkJob is broken for one job. What the client or the machine has dropped themselves, for
// want of time, is no fault of a server.
func (p lossLimit) checkJob(j load.Job, r *load.Report, d podKill) error {
	all, excused, away := r.All(), r.Dropped+r.Backlog, uint64(0)
	if all.Local == 0 {
		return fmt.Errorf("%s: the agent has answered none of %d questions\n%s", j.Zone, all.Asked, reportWithRuns(r))
	}
	if p.fallback {
		excused, away = excused+r.Skipped/skippedPerLost, all.Asked
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
		{r.UDP.Lost, excused + questionsDuring(dying, j.Rate), "are lost over UDP"},
		{r.Stream.Lost, p.disconnects * uint64(j.Streams), "connections that stay open have ended"},
		{r.OneShot.Lost, excused + questionsDuring(dying, j.OneShots) + p.disconnects, "connections for one question have ended"},
		{late.Failed(), excused, "are lost that were asked when the process was gone"},
		{all.Cluster, away, "are answered by the cluster's DNS"},
	} {
		if limit.got > limit.most {
			return fmt.Errorf("%s: %d %s, at most %d may be\n%s", j.Zone, limit.got, limit.what, limit.most, reportWithRuns(r))
		}
	}
	return nil
}

// questionsDuring is how many questions are asked in the time at the rate.
func questionsDuring(d time.Duration, rate int) uint64 {
	return uint64(math.Ceil(d.Seconds() * float64(rate)))
}

// runsShown is how many runs of a report a message has.
const runsShown = 12

// reportWithRuns is the report, with what was not as usual in it.
func reportWithRuns(r *load.Report) string {
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
