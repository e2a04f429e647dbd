package main

import (
	"strings"
)

import "fmt"

// target is a line of the result: a value of nodens' and the limit that it has to
// keep.
type target struct {
	what string
	// limit is the most that the value may be; below says that it must be less.
	limit float64
	below bool
	// unit is what the value and the limit are in; empty for a ratio.
	unit string
	// of are the values, the greatest of which counts. Those that were not
	// measured are left out.
	of []targetValue
}

// targetValue finds a value; false if it was not measured.
type targetValue struct {
	name string
	find func() (spread, bool)
}

// targetResult is a claim with what was measured.
type targetResult struct {
	target
	worst    string
	spread   spread
	measured bool
}

// met says whether the median keeps the limit.
func (s targetResult) met() bool {
	return s.measured && (s.spread.median < s.limit || !s.below && s.spread.median == s.limit)
}

func (s targetResult) verdict() string {
	switch {
	case !s.measured:
		return "not measured"
	case s.met():
		return "met"
	default:
		return "**missed**"
	}
}

// judge finds the claim's greatest value.
func (c target) judge() targetResult {
	res := targetResult{target: c}
	for _, v := range c.of {
		if s, ok := v.find(); ok && (!res.measured || s.median > res.spread.median) {
			res.worst, res.spread, res.measured = v.name, s, true
		}
	}
	return res
}

// targetTable is the table of claims, without those that were not measured unless
// all are asked for.
func targetTable(claims []target, all bool) string {
	rows := [][]string{{"what", "at most", "median", "least–most", "of", ""}}
	for _, c := range claims {
		res := c.judge()
		if !res.measured && !all {
			continue
		}
		limit := fmt.Sprintf("%.4g", c.limit)
		if c.below {
			limit = "below " + limit
		}
		row := []string{c.what, strings.TrimSpace(limit + " " + c.unit), "", "", res.worst, res.verdict()}
		if res.measured {
			row[2] = fmt.Sprintf("%.2f", res.spread.median)
			row[3] = fmt.Sprintf("%.2f–%.2f", res.spread.least, res.spread.most)
		}
		rows = append(rows, row)
	}
	return table(rows)
}
