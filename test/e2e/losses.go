package main

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/test/rig/load"
)

// lossLimit is what docs/explanation/promises.md promises for an event, as limits.
type lossLimit struct {
	// name describes the limit in messages.
	name string
	// dying is the time whose queries may be lost in addition to the time that a killed
	// agent takes to exit.
	dying time.Duration
	// disconnects is how often each open TCP connection may end, losing its query.
	disconnects uint64
	// fallback allows answers from the cluster DNS.
	fallback bool
	// restart allows that queries are lost after the process is gone, too, until the next one runs.
	restart bool
}

// The limits follow docs/explanation/promises.md.
var (
	// lossless is for upgrades and for faults that don't touch the agent.
	lossless = lossLimit{name: "nothing lost, all answered on the node"}
	// rolledTwice is for a rollout right after another one: the new agent is stopped, and the
	// connections handed over to it end.
	rolledTwice = lossLimit{name: "connections may end once, all answered on the node", disconnects: 1}
	// agentDeleted is for a deleted pod: a stopped agent answers its pending queries, and its TCP connections end. The
	// connections to the cluster DNS end when the next agent listens.
	agentDeleted = lossLimit{name: "only connections end, once with the agent and once with the next one's start", disconnects: 2, fallback: true}
	// agentKilled is for a killed process: the agent loses its pending queries and those that arrive until the
	// process is gone, which is measured. dying covers the queries in its socket buffers and
	// at its upstreams.
	agentKilled = lossLimit{name: "only what it had, and connections as above", dying: 50 * time.Millisecond, disconnects: 2, fallback: true}
)

// The limits of agents in pods of their own, to which Cilium leads the queries. They have no hand-over: a connection goes
// on to the pod that it began with, and ends with it.
var (
	redirected = lossLimit{name: "only connections end", disconnects: 1, fallback: true}
	// redirectedKill is for what Kubernetes and Cilium take until they notice.
	redirectedKill = lossLimit{name: "what is asked until an agent is ready again", dying: 10 * time.Second, disconnects: 50, fallback: true, restart: true}
)

// podKill is when a node's agent was killed, and when its process was gone. The zero value means
// that it was not killed.
type podKill struct{ killed, gone time.Time }

// losses is the result of an event for the pods of a node.
type losses struct {
	node string
	podKill
	// jobs and reports correspond to each other.
	jobs    []load.Job
	reports []*load.Report
}

// total returns the sum of all counts.
func (t losses) total() (all load.Counts) {
	for _, r := range t.reports {
		all.Add(r.All())
	}
	return all
}

// longestSilence returns the longest time without an answer in any job.
func (t losses) longestSilence() (longest time.Duration) {
	for _, r := range t.reports {
		longest = max(longest, r.LongestSilence)
	}
	return longest
}

// skipped returns how many queries the clients could not send in time.
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

// check returns an error if the losses exceed the limit.
func (p lossLimit) check(t losses) error {
	var errs []error
	for i, r := range t.reports {
		errs = append(errs, p.checkJob(t.jobs[i], r, t.podKill))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: the limit is %q: %w", t.node, p.name, err)
	}
	return nil
}

// skippedPerLost is the number of skipped queries (the client lacked CPU time) that excuse one lost
// query of the cluster DNS, which lacked it too.
const skippedPerLost = 100

// checkJob is check for one job. Queries that the client or the machine dropped don't count.
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
		began := d.gone
		if p.restart {
			began = began.Add(p.dying)
		}
		late = r.Between(began, r.End.Add(1))
	}
	dying := p.dying + d.gone.Sub(d.killed)
	for _, limit := range []struct {
		got, most uint64
		what      string
	}{
		{all.Servfail + all.Other, 0, "are SERVFAIL or wrong"},
		{r.UDP.Lost, excused + questionsDuring(dying, j.Rate), "are lost over UDP"},
		// One that is opened again while the process dies ends with it, too.
		{r.Stream.Lost, excused + p.disconnects*uint64(j.Streams) + min(questionsDuring(dying, j.StreamRate), uint64(j.Streams)), "connections that stay open have ended"},
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

// questionsDuring returns the number of queries sent in d at the rate per second.
func questionsDuring(d time.Duration, rate int) uint64 {
	return uint64(math.Ceil(d.Seconds() * float64(rate)))
}

// runsShown is the maximum number of runs in a message.
const runsShown = 12

// reportWithRuns formats the report and its runs with other outcomes than load.Local.
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
