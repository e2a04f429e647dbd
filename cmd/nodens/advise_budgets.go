package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/nodens-dns/nodens/internal/report"
)

// budgetsOf returns the budgets of an agent's advice with its node.
func budgetsOf(a *report.Advice) []report.NodeBudget {
	list := make([]report.NodeBudget, len(a.Budgets))
	for i := range a.Budgets {
		list[i] = report.NodeBudget{Node: a.Node, AdvisedBudget: a.Budgets[i]}
	}
	return list
}

// printBudgets writes the budgets that are used most, with the workload that asks most and what relieves them; nothing
// for none.
func printBudgets(out io.Writer, list []report.NodeBudget) error {
	if len(list) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nNODE\tUPSTREAM\tBUDGET\tUSED\tWAITING\tMOST-QUERIES\tUPSTREAM/s\tSHARE\tRELIEF\tWHY")
	texts := make(map[string]string)
	var kinds []string
	for i := range list {
		b := &list[i]
		row := fmt.Sprintf("%s\t%s\t%.0f/s\t%s\t%d\t-\t-\t-", b.Node, b.To, b.LimitPerSecond, percent(b.UsedShare), b.Waiting)
		if t := b.Top; t != nil {
			row = fmt.Sprintf("%s\t%s\t%.0f/s\t%s\t%d\t%s\t%.1f\t%s", b.Node, b.To, b.LimitPerSecond, percent(b.UsedShare), b.Waiting, t.Label(), t.UpstreamPerSecond, percent(t.Share))
		}
		if len(b.Relief) == 0 {
			fmt.Fprintf(w, "%s\t-\t-\n", row)
		}
		for _, r := range b.Relief {
			fmt.Fprintf(w, "%s\t%s\t%s\n", row, r.Kind, r.Reason)
			row = "\t\t\t\t\t\t\t"
			if texts[r.Kind] == "" {
				texts[r.Kind], kinds = r.Text, append(kinds, r.Kind)
			}
		}
	}
	if len(kinds) > 0 {
		fmt.Fprintln(w)
	}
	for _, kind := range kinds {
		fmt.Fprintf(w, "%s: %s\n", kind, texts[kind])
	}
	return w.Flush()
}
