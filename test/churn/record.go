package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// record is what is kept of a run: what happened, what became of the queries, and the samples. Its
// JSON form is the source of the page and its drawings.
type record struct {
	Date    string        `json:"date"`
	Commit  string        `json:"commit"`
	Command string        `json:"command"`
	Seed    uint64        `json:"seed"`
	Took    time.Duration `json:"took"`
	Rate    int           `json:"rate"` // queries a second for each agent over UDP
	Events  []event       `json:"events"`
	Phases  []phaseRecord `json:"phases"`
	Rounds  []roundRecord `json:"rounds"`
	Agents  []agentRecord `json:"agents"`
	Faults  []string      `json:"faults"`
	Note    string        `json:"note,omitempty"` // added by hand; "": none
}

// event is how often something happened.
type event struct {
	What string `json:"what"`
	N    int    `json:"n"`
}

// phaseRecord is what became of the queries of a phase, in all rounds.
type phaseRecord struct {
	Name     string `json:"name"`
	Asked    int    `json:"asked"`
	Lost     int    `json:"lost"`
	Wrong    int    `json:"wrong"`
	ServFail int    `json:"servfail"`
	Repeated int    `json:"repeated"`
}

// roundRecord is a round: when it ended, and what became of its queries.
type roundRecord struct {
	End     time.Duration `json:"end"`
	Queries phaseRecord   `json:"queries"` // since the start
}

// agentRecord has a value for each round and measure.
type agentRecord struct {
	Name   string               `json:"name"`
	Values map[string][]float64 `json:"values"` // by the name of the quantity
}

// snapshot returns the record of the run so far.
func (r *run) snapshot() record {
	rec := record{
		Date: time.Now().UTC().Format(time.DateOnly), Commit: r.commit, Command: r.plan.command(), Seed: r.plan.seed, Took: r.took, Rate: r.plan.rate,
		Events: r.events(), Rounds: r.ended, Faults: r.faults,
	}
	for _, p := range r.phases {
		rec.Phases = append(rec.Phases, p.record())
	}
	for _, a := range r.agents {
		values := make(map[string][]float64)
		for _, q := range quantities {
			if a.node != nil || !q.ofNode {
				values[q.name] = q.values(a)
			}
		}
		rec.Agents = append(rec.Agents, agentRecord{a.name, values})
	}
	return rec
}

func (p *phase) record() phaseRecord {
	return phaseRecord{p.name, p.asked, p.lost, p.wrong, p.servfail, p.again}
}

// endRound records the end of a round.
func (r *run) endRound() {
	sum := phaseRecord{Name: "all"}
	for _, p := range r.phases {
		sum.add(p.record())
	}
	r.ended = append(r.ended, roundRecord{r.took, sum})
}

// keep writes the record of the run so far, so that a run that is killed leaves its samples.
func (r *run) keep() error {
	if r.plan.out == "" {
		return nil
	}
	if err := os.MkdirAll(r.plan.out, 0o755); err != nil {
		return err
	}
	return r.snapshot().write(filepath.Join(r.plan.out, recordFile))
}

// commit names the tree that runs.
func commit(ctx context.Context) string {
	id, err := output(ctx, "", "git", "rev-parse", "--short=12", "HEAD")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(id)
}

// write replaces the file.
func (rec record) write(file string) error {
	text, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", text, 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}
