package harness

import (
	"fmt"
	"strings"

	"github.com/nodens-dns/nodens/test/bench/figures"
)

// Target is a line of the result: a value of nodens' and the limit that it has to
// keep.
type Target struct {
	What string
	// Limit is the most that the value may be; below says that it must be less.
	Limit float64
	Below bool
	// Unit is what the value and the limit are in; empty for a ratio.
	Unit string
	// Of are the values, the greatest of which counts. Those that were not
	// Measured are left out.
	Of []TargetValue
}

// TargetValue finds a value; false if it was not measured.
type TargetValue struct {
	Name string
	Find func() (figures.Spread, bool)
}

// TargetResult is a target with what was measured.
type TargetResult struct {
	Target
	Worst    string
	Spread   figures.Spread
	Measured bool
}

// Met says whether the median keeps the limit. A value that varies around the limit does not.
func (s TargetResult) Met() bool {
	return s.Measured && !s.open() && (s.Spread.Median < s.Limit || !s.Below && s.Spread.Median == s.Limit)
}

// open says that the rounds differ so much that they don't tell on which side of the limit the value is.
func (s TargetResult) open() bool {
	return s.Spread.Varies() && s.Spread.Least <= s.Limit && s.Limit <= s.Spread.Most
}

func (s TargetResult) Verdict() string {
	switch {
	case !s.Measured:
		return "not measured"
	case s.open():
		return "open"
	case s.Met():
		return "met"
	default:
		return "**missed**"
	}
}

// Judge finds the target's greatest value.
func (c Target) Judge() TargetResult {
	res := TargetResult{Target: c}
	for _, v := range c.Of {
		if s, ok := v.Find(); ok && (!res.Measured || s.Median > res.Spread.Median) {
			res.Worst, res.Spread, res.Measured = v.Name, s, true
		}
	}
	return res
}

// Missed names the targets that are not met, each with its greatest value.
func Missed(targets []Target) (list []string) {
	for _, c := range targets {
		if res := c.Judge(); !res.Met() {
			list = append(list, c.What+": "+res.Worst)
		}
	}
	return list
}

// TargetTable is the table of targets, without those that were not measured unless
// all are asked for.
func TargetTable(targets []Target, all bool) string {
	rows := [][]string{{"target", "at most", "median", "least–most", "of", ""}}
	for _, c := range targets {
		res := c.Judge()
		if !res.Measured && !all {
			continue
		}
		limit := fmt.Sprintf("%.4g", c.Limit)
		if c.Below {
			limit = "below " + limit
		}
		row := []string{c.What, strings.TrimSpace(limit + " " + c.Unit), "", "", res.Worst, res.Verdict()}
		if res.Measured {
			row[2] = res.Spread.Text("%.2f")
			row[3] = fmt.Sprintf("%.2f–%.2f", res.Spread.Least, res.Spread.Most)
		}
		rows = append(rows, row)
	}
	return figures.Table(rows)
}
