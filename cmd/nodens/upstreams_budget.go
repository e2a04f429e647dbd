package main

import (
	"fmt"
	"slices"

	"github.com/nodens-dns/nodens/internal/report"
)

// budgetFormat says which columns about budgets a table of upstreams has: none unless an upstream has a budget.
type budgetFormat struct{ shown, wide bool }

func newBudgetFormat(list []report.Upstream, wide bool) budgetFormat {
	return budgetFormat{slices.ContainsFunc(list, func(u report.Upstream) bool { return u.Budget != nil }), wide}
}

// columns returns the names of the columns.
func (f budgetFormat) columns() []string {
	switch {
	case !f.shown:
		return nil
	case f.wide:
		return []string{"BUDGET", "USED", "WAITING", "WAITED", "EXPIRED", "GIVEN-UP"}
	}
	return []string{"BUDGET", "USED", "WAITING"}
}

// row returns the columns of one upstream, whose budget may be nil.
func (f budgetFormat) row(b *report.Budget) []string {
	row := make([]string, len(f.columns()))
	for i := range row {
		row[i] = "-"
	}
	if !f.shown || b == nil {
		return row
	}
	limit, used := "-", "-"
	if b.LimitPerSecond > 0 {
		limit, used = fmt.Sprintf("%.0f/s", b.LimitPerSecond), percent(b.UsedShare)
	}
	if b.Auto {
		limit = "auto " + limit
	}
	copy(row, []string{limit, used, fmt.Sprint(b.Waiting), fmt.Sprint(b.Waited), fmt.Sprint(b.Expired), fmt.Sprint(b.GivenUp)})
	return row
}
