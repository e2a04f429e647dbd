package main

import (
	"slices"
)

// beforeRow is the row of the agent that -before names.
const beforeRow = "nodens, before"

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
