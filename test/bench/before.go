package main

import (
	"fmt"
	"slices"
)

// beforeRow is the row of the agent that -before names.
const beforeRow = "nodens, before"

// costLimit is what a query may cost the agent beside the one before it.
const costLimit = 1.02

// withBefore adds the agent of the plan's other commit to a table of servers, right
// behind this tree's.
func (p plan) withBefore(list []server) []server {
	i := slices.IndexFunc(list, func(s server) bool { return s.name == "nodens" })
	if p.before == "" || i < 0 {
		return list
	}
	s := list[i]
	s.name, s.commit = beforeRow, p.before
	return slices.Insert(slices.Clone(list), i+1, s)
}

// beforeClaims are what nodens has to show beside the agent before it.
func beforeClaims() []claim {
	var list []claim
	for _, w := range chosen(func(w workload) bool { return w.tool == saturate || w.tool == steady || w.tool == miss }) {
		list = append(list, claim{
			what: fmt.Sprintf("CPU per query, %s, before = 1", w.name), limit: costLimit,
			of: []value{{"", func(r *report) (spread, bool) {
				return r.ratio(sample.price, cell{"nodens", w.name}, cell{beforeRow, w.name})
			}}},
		})
	}
	return list
}
