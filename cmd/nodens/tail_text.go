package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

// tailFormat is a row of the table: time, client, name, type, rcode, source, cache, age, upstream, its time, and
// the time to the reply.
const tailFormat = "%-12s  %-32s  %-44s  %-5s  %-8s  %-10s  %-5s  %-7s  %-21s  %-9s  %s"

// tailPrinter prints the lines of one node, or of several.
type tailPrinter struct {
	stdout, stderr io.Writer
	output         *cli.Output
	// nodeWidth is the width of the column with the node; 0: there is none.
	nodeWidth int
}

// head prints the names of the columns.
func (p *tailPrinter) head() error {
	if !p.output.Table() {
		return nil
	}
	row := fmt.Sprintf(tailFormat, "TIME", "CLIENT", "NAME", "TYPE", "RCODE", "SOURCE", "CACHE", "AGE", "UPSTREAM", "UPTIME", "DURATION")
	if p.output.Wide() {
		row += "  ZONE  VIEW  WORKLOAD  PROTOCOL  HEDGE  SEARCH-PATH  ERROR"
	}
	return p.row("NODE", row)
}

// row prints a row of the table, without control characters.
func (p *tailPrinter) row(node, row string) error {
	if p.nodeWidth > 0 {
		row = fmt.Sprintf("%-*s  %s", p.nodeWidth, node, row)
	}
	_, err := fmt.Fprintln(p.stdout, report.Printable(row))
	return err
}

// print prints a line of a node, whose JSON is text: queries to stdout, other lines to stderr, and as JSON all to
// stdout.
func (p *tailPrinter) print(node string, l *report.TailLine, text []byte) error {
	if p.output.JSON() {
		_, err := fmt.Fprintf(p.stdout, "%s\n", report.Printable(string(text)))
		return err
	}
	if l.Query != nil {
		return p.row(node, tailRow(l.Query, p.output.Wide()))
	}
	if note := tailNote(l); note != "" {
		p.note(node, note)
	}
	return nil
}

// note prints to stderr what the user should know about a node.
func (p *tailPrinter) note(node, text string) {
	fmt.Fprintf(p.stderr, "node %s: %s\n", cmp.Or(node, "unknown"), report.Printable(text))
}

// tailNote returns what a line without a query says; "" if it says nothing.
func tailNote(l *report.TailLine) string {
	switch {
	case l.Selected != nil && l.Selected.AllClients:
		return "queries of all clients"
	case l.Selected != nil && len(l.Selected.Addresses) == 0:
		return "no such client now; waiting for one"
	case l.Selected != nil:
		return "queries from " + strings.Join(l.Selected.Addresses, ", ")
	case l.Lost != nil:
		return fmt.Sprintf("not shown: %d queries beyond 1000 a second, %d that this command was too slow for", l.Lost.Limit, l.Lost.SlowReader)
	}
	return ""
}

// tailRow returns the row of a query.
func tailRow(q *report.TailQuery, wide bool) string {
	client := q.Client
	if q.Pod != "" {
		client = q.Namespace + "/" + q.Pod
	}
	age, exchange := "-", "-"
	if q.CacheAgeSeconds != nil {
		age = seconds(*q.CacheAgeSeconds).Round(time.Second).String()
	}
	if q.UpstreamSeconds > 0 {
		exchange = seconds(q.UpstreamSeconds).Round(10 * time.Microsecond).String()
	}
	dash := func(text string) string { return cmp.Or(text, "-") }
	row := fmt.Sprintf(tailFormat, q.Time.Format("15:04:05.000"), client, q.Name, q.Type, dash(q.Rcode), dash(q.Source), dash(q.Cache), age,
		dash(q.Upstream), exchange, seconds(q.DurationSeconds).Round(time.Microsecond))
	if !wide {
		return row
	}
	hedge := "-"
	switch {
	case q.HedgeWon:
		hedge = "won"
	case q.Hedged:
		hedge = "lost"
	}
	return strings.Join([]string{row, dash(q.Zone), dash(q.View), dash(q.Workload), q.Protocol, hedge, dash(q.SearchPath), dash(q.Error)}, "  ")
}
