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
	// dying is how much time's worth of questions over UDP may be lost: those that a
	// process has when it dies, and that come before its sockets are closed.
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
	// elsewhere is unseen where nothing tells who has answered.
	elsewhere = promise{what: "nothing lost", away: true}
	// superseded is a rollout on the heels of another: the agent that has just taken over is
	// stopped, and the connections that were passed on to it end with it.
	superseded = promise{what: "connections may end once, all answered on the node", breaks: 1}
	// An agent that is stopped answers what it has, and its TCP connections end with it;
	// those that the cluster's DNS answers meanwhile end when the next agent listens.
	stopped = promise{what: "only connections end, once with the agent and once with the next one's start", breaks: 2, away: true}
	// killed takes the questions with it that it has, and those that come while the
	// kernel gives back its memory. That takes some milliseconds on a core of its own; a
	// core that the whole cluster shares may have others to serve before, for a few turns
	// of its scheduler. Half of this fails now and then, double would hide an agent that
	// is missed.
	killed = promise{what: "only what it had, and connections as above", dying: 100 * time.Millisecond, breaks: 2, away: true}
)

// toll is what an event has done to the pods of a node.
type toll struct {
	node string
	// gone is when the node's agent had died, zero if it has not.
	gone time.Time
	// jobs are what was asked, and reports what became of it, in the same order.
	jobs    []load.Job
	reports []*load.Report
}

// sum is of all that was asked.
func (t toll) sum() (all load.Counts) {
	for _, r := range t.reports {
		c := r.All()
		all.Asked += c.Asked
		all.Local += c.Local
		all.Cluster += c.Cluster
		all.Servfail += c.Servfail
		all.Other += c.Other
		all.Lost += c.Lost
	}
	return all
}

// silence is the longest time in which no answer came to one kind of question.
func (t toll) silence() (longest time.Duration) {
	for _, r := range t.reports {
		longest = max(longest, r.Silence)
	}
	return longest
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
	return text + fmt.Sprintf(", longest silence %d ms", t.silence().Milliseconds())
}

// broken says how the toll breaks the promise; nil if it doesn't.
func (p promise) broken(t toll) error {
	var errs []error
	for i, r := range t.reports {
		errs = append(errs, p.over(t.jobs[i], r, t.gone))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: promised is %s: %w", t.node, p.what, err)
	}
	return nil
}

// over is broken for one job. What the client or the machine has dropped themselves, for
// want of time, is no fault of a server.
func (p promise) over(j load.Job, r *load.Report, gone time.Time) error {
	all, excused := r.All(), r.Dropped+r.Backlog
	var late load.Counts
	if !gone.IsZero() {
		late = r.Between(gone, r.Ended.Add(1))
	}
	switch {
	case all.Asked == 0 || all.Local == 0:
		return fmt.Errorf("%s: the agent has answered none of %d questions\n%s", j.Zone, all.Asked, r)
	case all.Servfail+all.Other > 0:
		return fmt.Errorf("%s: SERVFAIL or wrong\n%s", j.Zone, unusual(r))
	case r.UDP.Lost > excused+p.may(j.Rate):
		return fmt.Errorf("%s: %d are lost over UDP, at most %d may be\n%s", j.Zone, r.UDP.Lost, excused+p.may(j.Rate), unusual(r))
	case r.Stream.Lost > p.breaks*uint64(j.Streams):
		return fmt.Errorf("%s: %d connections have ended, at most %d may\n%s", j.Zone, r.Stream.Lost, p.breaks*uint64(j.Streams), unusual(r))
	case r.Shot.Lost > p.may(j.Shots)+p.breaks: // the one that is open at the moment
		return fmt.Errorf("%s: %d connections for one question have ended, at most %d may\n%s", j.Zone, r.Shot.Lost, p.may(j.Shots)+p.breaks, unusual(r))
	case late.Failed() > excused:
		return fmt.Errorf("%s: %d that were asked when the process was gone, %v and more before the end, are lost\n%s",
			j.Zone, late.Failed(), r.Ended.Sub(gone).Round(time.Millisecond), unusual(r))
	case all.Cluster > 0 && !p.away:
		return fmt.Errorf("%s: the cluster's DNS has answered\n%s", j.Zone, unusual(r))
	}
	return nil
}

// may is how many questions may be lost of those that are asked at the rate.
func (p promise) may(rate int) uint64 {
	return uint64(math.Ceil(p.dying.Seconds() * float64(rate)))
}

// runsShown is how many runs of a report a message has.
const runsShown = 12

// unusual is the report, with what was not as usual in it.
func unusual(r *load.Report) string {
	var b strings.Builder
	b.WriteString(r.String())
	n := 0
	for _, run := range r.Runs {
		if run.Fate == load.Local || n == runsShown {
			continue
		}
		n++
		fmt.Fprintf(&b, "\n    %d %s, asked from %v to %v", run.Count, run.Fate, run.First.Sub(r.Began), run.Last.Sub(r.Began))
	}
	return b.String()
}
