// Package fairness measures the section about fair shares: what other pods see while one pod floods their node,
// what leaves the node for an upstream with a budget, and what fair shares, limits and budgets cost a query while nobody is
// beyond any of them.
//
// Pods are network namespaces. One loop of package load plays all of them, and the upstream.
package fairness

import (
	"context"
	"fmt"
	"strings"

	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// Parts are the parts of the section to measure.
type Parts struct{ Floods, Budgets, Shares bool }

// Any says whether there is one.
func (p Parts) Any() bool { return p.Floods || p.Budgets || p.Shares }

// Flags returns the flags that choose the parts.
func (p Parts) Flags() string {
	var list []string
	for _, part := range []struct {
		flag string
		on   bool
	}{{harness.FloodsFlag, p.Floods}, {harness.BudgetsFlag, p.Budgets}, {harness.SharesFlag, p.Shares}} {
		if part.on {
			list = append(list, part.flag)
		}
	}
	return strings.Join(list, " ")
}

// run measures the parts, in one node.
type run struct {
	*harness.Run
	out  *Report
	node *node
	// The rows of the parts that have a binary.
	floodServers, budgetServers, shareServers, loadServers []harness.Server
}

// Report is the result.
type Report struct {
	*harness.Report
	// floods are the results by server and case, and floodRates the rates by case.
	floods     harness.Results[floodResult]
	floodRates map[string]int
	// loads are what floods from one pod cost the node, by server.
	loads harness.Results[loadResult]
	// budgets are the results by server.
	budgets harness.Results[budgetResult]
}

func newReport(r *harness.Report) *Report {
	return &Report{
		Report: r, floods: harness.Results[floodResult]{}, floodRates: map[string]int{},
		loads: harness.Results[loadResult]{}, budgets: harness.Results[budgetResult]{},
	}
}

// maxRounds is the number of rounds of the parts whose differences are not hundredths.
const maxRounds = 3

// Measure measures the parts. A part that fails has a note in place of its tables, and the others are measured. Nothing that Measure
// started runs when it returns.
func Measure(ctx context.Context, p harness.Plan, parts Parts) (*Report, error) {
	if err := testbed.Usable(); err != nil {
		return nil, err
	}
	b, err := harness.New(p, floodServers()[:1])
	if err != nil {
		return nil, err
	}
	defer b.Close()
	b.OwnClient, b.Cluster = true, false
	run := &run{Run: b, out: newReport(b.Report)}
	// The node takes the agent's binary, whatever is measured.
	b.Only = harness.Plan{}.Only
	if err := b.Build(ctx); err != nil {
		return nil, err
	}
	b.Only = p.Only
	if err := run.findServers(ctx, parts); err != nil {
		return nil, err
	}
	b.Settled = true
	if err := machine.PinSelf(b.LoadCores); err != nil {
		return nil, err
	}
	run.node, err = newNode(b, run.pods())
	defer run.node.close()
	if err != nil {
		return nil, err
	}
	if err := run.measureParts(ctx, parts); err != nil {
		return nil, err
	}
	b.Report.Workloads = nil // they have tables of their own
	b.Report.NoteLoad()
	return run.out, nil
}

// pods is the number of pods that any part takes.
func (b *run) pods() int { return max(1+b.victims(), askingPods+2) }

// findServers finds the binaries of all rows.
func (b *run) findServers(ctx context.Context, parts Parts) error {
	for _, part := range []struct {
		on   bool
		rows []harness.Server
		to   *[]harness.Server
	}{
		{parts.Floods, b.Plan.WithBefore(floodServers()), &b.floodServers},
		{parts.Floods, loadServers(), &b.loadServers},
		{parts.Budgets, budgetServers(), &b.budgetServers},
		{parts.Shares, shareServers(), &b.shareServers},
	} {
		if !part.on {
			continue
		}
		for _, s := range part.rows {
			if !b.Only.Server(s) {
				continue
			}
			b.Report.Servers = nil
			if err := b.FindBinary(ctx, s); err != nil {
				return err
			}
			*part.to = append(*part.to, b.Report.Servers...)
		}
	}
	b.Report.Servers = nil
	return nil
}

// measureParts measures the parts one after the other, and writes the tables of each when it is done.
func (b *run) measureParts(ctx context.Context, parts Parts) error {
	for _, part := range []struct {
		on      bool
		name    string
		measure func(context.Context) error
		tables  func() []string
	}{
		{parts.Shares, harness.SharesFlag, b.measureShares, func() []string { return []string{b.out.shareTable()} }},
		{parts.Budgets, harness.BudgetsFlag, b.measureBudgets, b.out.budgetTables},
		{parts.Floods, harness.FloodsFlag, b.measureFloods, b.out.floodTables},
		{parts.Floods, "the node's CPU time for a flood", b.measureLoads, func() []string { return []string{b.out.loadTable()} }},
	} {
		if !part.on {
			continue
		}
		err := part.measure(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			b.note("**%s: measuring failed:** %s.", part.name, reason(err))
			fmt.Fprintf(b.Progress, "%s: %v\n", part.name, err)
		}
		for _, t := range part.tables() {
			fmt.Fprintf(b.Progress, "\n%s\n", t)
		}
	}
	return nil
}

// note adds a note to the page.
func (b *run) note(format string, args ...any) {
	b.Report.Notes = append(b.Report.Notes, fmt.Sprintf(format, args...))
}

// maxReason is the length of an error's text in a note.
const maxReason = 300

// reason is the text of an error in one line, cut where it is long. It may have what a process wrote.
func reason(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	if len(text) > maxReason {
		text = text[:maxReason] + "…"
	}
	return strings.TrimSuffix(text, ".")
}

// rounds returns the number of rounds of a part whose differences are not hundredths.
func (b *run) rounds() int { return min(b.Plan.Rounds, maxRounds) }
