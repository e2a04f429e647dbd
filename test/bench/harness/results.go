package harness

import (
	"fmt"

	"github.com/nodens-dns/nodens/test/bench/figures"
)

// Results are what was measured: for each cell, a value of each round.
type Results[T any] map[Cell][]T

// Spread returns the spread of f over the rounds; false if the cell was not measured.
func (r Results[T]) Spread(at Cell, f func(T) float64) (figures.Spread, bool) {
	return figures.SpreadBy(r[at], f)
}

// Ratio returns the spread of f relative to another cell's value in the same round; false if there is no round of both.
func (r Results[T]) Ratio(of, to Cell, f func(T) float64) (figures.Spread, bool) {
	return figures.SpreadOfRatios(r[of], r[to], f)
}

// Value returns f of a cell as a value of a target.
func (r Results[T]) Value(name string, at Cell, f func(T) float64) TargetValue {
	return TargetValue{Name: name, Find: func() (figures.Spread, bool) { return r.Spread(at, f) }}
}

// WorstValue is Value with the worst round in place of the median.
func (r Results[T]) WorstValue(name string, at Cell, f func(T) float64) TargetValue {
	return TargetValue{Name: name, Find: func() (figures.Spread, bool) {
		s, ok := r.Spread(at, f)
		s.Median = s.Most
		return s, ok
	}}
}

// RatioValue returns f of a cell relative to another one's as a value of a target.
func (r Results[T]) RatioValue(name string, of, to Cell, f func(T) float64) TargetValue {
	return TargetValue{Name: name, Find: func() (figures.Spread, bool) { return r.Ratio(of, to, f) }}
}

// Column is a column of a table with a row for each of some cells.
type Column struct {
	Head string
	Text func(at Cell) string
}

// column returns a column of the spread of f. A cell that was not measured is empty.
func (r Results[T]) column(head string, f func(T) float64, text func(s figures.Spread) string) Column {
	return Column{head, func(at Cell) string {
		s, ok := r.Spread(at, f)
		if !ok {
			return ""
		}
		return text(s)
	}}
}

// Median, Most and Sum return a column with the median of f, with its greatest value, and with its sum over the rounds.
func (r Results[T]) Median(head, format string, f func(T) float64) Column {
	return r.column(head, f, func(s figures.Spread) string { return s.Text(format) })
}

func (r Results[T]) Most(head, format string, f func(T) float64) Column {
	return r.column(head, f, func(s figures.Spread) string { return fmt.Sprintf(format, s.Most) })
}

func (r Results[T]) Sum(head string, f func(T) float64) Column {
	return Column{head, func(at Cell) string {
		sum := 0.0
		for _, v := range r[at] {
			sum += f(v)
		}
		return fmt.Sprintf("%.0f", sum)
	}}
}

// Range returns a column with the least and the greatest value of f, and MedianRange one with the median as well.
func (r Results[T]) Range(format string, f func(T) float64) Column {
	return r.column("least–most", f, func(s figures.Spread) string { return fmt.Sprintf(format+"–"+format, s.Least, s.Most) })
}

func (r Results[T]) MedianRange(head, format string, f func(T) float64) Column {
	return r.column(head, f, func(s figures.Spread) string {
		return fmt.Sprintf("%s ("+format+"–"+format+")", s.Text(format), s.Least, s.Most)
	})
}

// Relative returns f of each cell relative to the cell that to returns for it, in each round of both.
func (r Results[T]) Relative(f func(T) float64, to func(at Cell) Cell) Results[float64] {
	ratios := Results[float64]{}
	for at, list := range r {
		other := r[to(at)]
		for i := range min(len(list), len(other)) {
			ratios[at] = append(ratios[at], f(list[i])/f(other[i]))
		}
	}
	return ratios
}

// Plain is the value of a [Results.Relative].
func Plain(v float64) float64 { return v }

// Beside returns the cell of the server under the same workload.
func Beside(server string) func(at Cell) Cell {
	return func(at Cell) Cell { return Cell{server, at.Workload} }
}

// NodensBeside is Beside for nodens; the cells of others have none.
func NodensBeside(server string) func(at Cell) Cell {
	return func(at Cell) Cell {
		if at.Server != "nodens" {
			return Cell{}
		}
		return Beside(server)(at)
	}
}

// Of returns the column with the texts of other cells.
func (c Column) Of(other func(at Cell) Cell) Column {
	return Column{c.Head, func(at Cell) string { return c.Text(other(at)) }}
}

// Headed returns the column with another head.
func (c Column) Headed(head string) Column { return Column{head, c.Text} }

// Row is a row of a table: a cell, with texts in front.
type Row struct {
	Labels []string
	At     Cell
}

// ServerRows returns a row for each server under a workload.
func ServerRows(servers []Server, workload string) (list []Row) {
	for _, s := range servers {
		list = append(list, Row{[]string{s.Name}, Cell{s.Name, workload}})
	}
	return list
}

// WorkloadRows returns a row for each workload of a server.
func WorkloadRows(server string, workloads ...string) (list []Row) {
	for _, w := range workloads {
		list = append(list, Row{[]string{w}, Cell{server, w}})
	}
	return list
}

// Table returns a table of the rows that were measured, "" without any. The heads are of the texts in front.
func (r Results[T]) Table(heads []string, rows []Row, columns ...Column) string {
	table := [][]string{heads[:len(heads):len(heads)]}
	for _, c := range columns {
		table[0] = append(table[0], c.Head)
	}
	for _, row := range rows {
		if len(r[row.At]) == 0 {
			continue
		}
		line := row.Labels[:len(row.Labels):len(row.Labels)]
		for _, c := range columns {
			line = append(line, c.Text(row.At))
		}
		table = append(table, line)
	}
	return figures.Table(table)
}
