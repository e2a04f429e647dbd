package harness

import (
	"slices"
)

// BeforeRow is the row of the agent that -before names.
const BeforeRow = "nodens, before"

// WithBefore adds the agent of the plan's other commit to a table of servers, right
// behind this tree's first one.
func (p Plan) WithBefore(list []Server) []Server {
	i := slices.IndexFunc(list, func(s Server) bool { return s.Program == "nodens" })
	if p.Before == "" || i < 0 {
		return list
	}
	s := list[i]
	s.Name, s.commit = BeforeRow, p.Before
	return slices.Insert(slices.Clone(list), i+1, s)
}
