package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// column is a column of a table whose rows are of type R.
type column[R any] struct {
	name string
	cell func(*R) string
}

// when returns the columns if a table has them.
func when[R any](has bool, columns ...column[R]) []column[R] {
	if !has {
		return nil
	}
	return columns
}

// cells returns the names of the columns, and then the cells of each row.
func cells[R any](columns []column[R], rows []R) [][]string {
	table := make([][]string, 1+len(rows))
	for _, c := range columns {
		table[0] = append(table[0], c.name)
		for i := range rows {
			table[1+i] = append(table[1+i], c.cell(&rows[i]))
		}
	}
	return table
}

// newAligner returns a writer to out that aligns columns when it is flushed.
func newAligner(out io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(out, 0, 0, 2, ' ', 0) }

// writeCells writes a table to w, which aligns it.
func writeCells(w io.Writer, table [][]string) {
	for _, row := range table {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
}

// printTable writes the rows, and how many others there are; what names them.
func printTable[R any](out io.Writer, columns []column[R], rows []R, more int, what string) error {
	w := newAligner(out)
	writeCells(w, cells(columns, rows))
	printMore(w, more, what)
	return w.Flush()
}

// printMore writes how many rows are not shown.
func printMore(w io.Writer, more int, what string) {
	if more > 0 {
		fmt.Fprintf(w, "and %d more%s\n", more, what)
	}
}

// firstRows returns the first rows, or all if most is 0.
func firstRows[R any](rows []R, most int) []R {
	if most <= 0 {
		return rows
	}
	return rows[:min(most, len(rows))]
}

// tenths returns a rate.
func tenths(n float64) string { return fmt.Sprintf("%.1f", n) }

// percent returns share, which is from 0 to 1, as a percentage.
func percent(share float64) string {
	if share > 0 && share < 0.001 {
		return "<0.1%"
	}
	return fmt.Sprintf("%.1f%%", 100*share)
}

// latency returns the upper bound of a latency, "-" without one.
func latency(bound float64) string {
	if bound == 0 {
		return "-"
	}
	return "≤" + seconds(bound).Round(time.Microsecond).String()
}

// milliseconds returns a time, "-" if it is not known.
func milliseconds(seconds float64) string {
	if seconds == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1fms", 1000*seconds)
}

// seconds returns a number of seconds as a duration.
func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// firstZones returns the first zones of a list, and how many others there are.
func firstZones(zones []string) string {
	const few = 3
	text := strings.Join(firstRows(zones, few), ",")
	if len(zones) > few {
		text += fmt.Sprintf(",+%d", len(zones)-few)
	}
	return text
}
