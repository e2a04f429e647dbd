package page

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// shownRows is the number of rows that a table shows unless all are asked for.
const shownRows = 10

// tableIDs are the IDs of the tables that can be sorted.
var tableIDs = []string{"clients", "names", "client", "waste", "failing", "slow", "advice", "upstreams"}

// table is a table as the template shows it.
type table struct {
	ID, Caption, Note string
	Wide              bool // it needs the width of the page
	Rows              [][]cell
	// Empty is the text in place of the rows if there are none. More is the number of rows that are
	// not shown, and MoreHref the link that shows them.
	Empty    string
	More     int
	MoreHref string

	width int // number of columns
	heads func() []header
}

// Columns returns the heads of the columns. Events do not need them.
func (t table) Columns() []header { return t.heads() }

// header is the head of a column. AriaSort is ascending, descending or none.
type header struct {
	Title, Help, Href, AriaSort string
	Number                      bool
}

// cell is one cell. Bar is the length of a bar in it, from 0 to 100.
type cell struct {
	Text, Href, Class string
	Number, HasBar    bool
	Bar               int
}

// column describes a column of a table with rows of type T.
type column[T any] struct {
	key, title, help string
	text             func(*T) cell
	// value is the value by which the column is sorted, the highest first; nil: it is sorted by text, the lowest first.
	value func(*T) float64
}

// tableOf describes a table with rows of type T.
type tableOf[T any] struct {
	id, caption, empty string
	columns            []column[T]
	// order is the key of the column that the table is sorted by by default.
	order string
	// search returns the texts of a row that are searched.
	search func(*T) []string
}

// limit returns the number of rows that the table needs of a report, whose rows are in the table's own order.
func (t tableOf[T]) limit(p parameters) int {
	if order := p.sort[t.id]; p.All || p.Search != "" || order != "" && order != t.order {
		return math.MaxInt
	}
	return shownRows
}

// build returns the table of rows. more is the number of rows that the report leaves out.
func (t tableOf[T]) build(rows []T, more int, p parameters) table {
	out := table{ID: t.id, Caption: t.caption, Empty: t.empty, width: len(t.columns)}
	found := t.find(rows, p.Search)
	if p.Search != "" {
		more = 0
		if len(found) == 0 {
			out.Empty = "Nothing matches the search."
		}
	}
	key, reverse := t.sort(found, p.sort[t.id])
	out.heads = func() (list []header) {
		for _, c := range t.columns {
			list = append(list, t.header(c, key, reverse, p))
		}
		return list
	}
	if hidden := len(found) - shownRows; !p.All && hidden > 0 {
		more += hidden
		found = found[:shownRows]
	}
	if !p.All && more > 0 {
		out.MoreHref = p.link(t.id, func(p *parameters) { p.All = true })
	}
	out.More = more
	for _, row := range found {
		cells := make([]cell, len(t.columns))
		for i, c := range t.columns {
			cells[i] = c.text(row)
			cells[i].Number = c.value != nil
		}
		out.Rows = append(out.Rows, cells)
	}
	return out
}

// find returns the rows that contain the search in one of their texts.
func (t tableOf[T]) find(rows []T, search string) []*T {
	search = strings.ToLower(search)
	contains := func(text string) bool { return strings.Contains(strings.ToLower(text), search) }
	found := make([]*T, 0, len(rows))
	for i := range rows {
		if search == "" || slices.ContainsFunc(t.search(&rows[i]), contains) {
			found = append(found, &rows[i])
		}
	}
	return found
}

// sort sorts rows by order, or by the table's own order if there is no such column. It returns the column's
// key, and whether its direction is reversed.
func (t tableOf[T]) sort(rows []*T, order string) (key string, reverse bool) {
	key, reverse = strings.CutPrefix(order, "-")
	i := slices.IndexFunc(t.columns, func(c column[T]) bool { return c.key == key })
	if i < 0 {
		key, reverse = t.order, false
		i = slices.IndexFunc(t.columns, func(c column[T]) bool { return c.key == key })
	}
	if i < 0 {
		return "", false
	}
	c := &t.columns[i]
	slices.SortStableFunc(rows, func(a, b *T) int {
		if reverse {
			return c.compare(b, a)
		}
		return c.compare(a, b)
	})
	return key, reverse
}

// compare compares two rows in the column's own direction.
func (c *column[T]) compare(a, b *T) int {
	if c.value != nil {
		return cmp.Compare(c.value(b), c.value(a))
	}
	return strings.Compare(c.text(a).Text, c.text(b).Text)
}

// header returns the head of a column, in a table that is sorted by key. Its link sorts by the column, or
// reverses it.
func (t tableOf[T]) header(c column[T], key string, reverse bool, p parameters) header {
	h := header{Title: c.title, Help: c.help, Number: c.value != nil, AriaSort: "none"}
	next := c.key
	if c.key == key {
		h.AriaSort = "ascending"
		if (c.value != nil) != reverse {
			h.AriaSort = "descending"
		}
		if !reverse {
			next = "-" + c.key
		}
	}
	h.Href = p.link(t.id, func(p *parameters) { p.sort[t.id] = next })
	return h
}
