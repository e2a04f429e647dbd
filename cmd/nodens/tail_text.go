package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/cmd/nodens/kubectl"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

// tailFormat is a row of the table: time, client, name, type, rcode, source, cache, age, upstream, its time, and
// the time to the reply.
const tailFormat = "%-12s  %-32s  %-44s  %-5s  %-8s  %-10s  %-5s  %-7s  %-21s  %-9s  %s"

// tailPrinter prints the lines of one node, or of several: queries to stdout, those that arrive together at once, and other
// lines to stderr; as JSON all lines to stdout.
type tailPrinter struct {
	stdout, stderr io.Writer
	output         *cli.Output
	nodeWidth      int          // of the column with the node; 0: there is none
	rows           bytes.Buffer // for stdout
}

// head prints the names of the columns.
func (p *tailPrinter) head() error {
	if !p.output.Table() {
		return nil
	}
	row := fmt.Sprintf(tailFormat, "TIME", "CLIENT", "NAME", "TYPE", "RCODE", "SOURCE", "CACHE", "AGE", "UPSTREAM", "UPTIME", "DURATION")
	if p.output.Wide() {
		row += "  ZONE  VIEW  WORKLOAD  PROTOCOL  HEDGE  SEARCH-PATH  POLICY  ERROR"
	}
	p.add("NODE", row)
	return p.flush()
}

// add adds a row of the table, without control characters.
func (p *tailPrinter) add(node, row string) {
	if p.nodeWidth > 0 {
		row = fmt.Sprintf("%-*s  %s", p.nodeWidth, node, row)
	}
	fmt.Fprintln(&p.rows, report.Printable(row))
}

// flush writes the rows to stdout.
func (p *tailPrinter) flush() error {
	_, err := p.rows.WriteTo(p.stdout)
	return err
}

// printEvents prints events, and the number of queries that are missing after them.
func (p *tailPrinter) printEvents(events []kubectl.TailEvent, lost uint64) error {
	for _, e := range events {
		switch {
		case e.Line == nil:
			p.note(e.Node, e.Note)
		case p.output.JSON():
			fmt.Fprintf(&p.rows, "%s\n", report.Printable(string(e.JSON)))
		case e.Line.Query != nil:
			p.add(e.Node, tailRow(e.Line.Query, p.output.Wide()))
		default:
			p.note(cmp.Or(e.Node, "unknown"), tailNote(e.Line))
		}
	}
	switch {
	case lost > 0 && p.output.JSON():
		l := report.TailLine{Header: report.Header{SchemaVersion: report.SchemaVersion}, Lost: &report.TailLost{SlowReader: lost}}
		_ = json.NewEncoder(&p.rows).Encode(&l) // a buffer takes all
	case lost > 0:
		p.note("", fmt.Sprintf("not shown: %d queries that this command was too slow for", lost))
	}
	return p.flush()
}

// note prints to stderr what the user should know, about a node unless that is "". The rows go before it: stdout may be the same
// terminal.
func (p *tailPrinter) note(node, text string) {
	_ = p.flush() // the next flush fails, too
	switch {
	case text == "":
	case node == "":
		fmt.Fprintln(p.stderr, report.Printable(text))
	default:
		fmt.Fprintf(p.stderr, "node %s: %s\n", node, report.Printable(text))
	}
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
	return strings.Join([]string{row, dash(q.Zone), dash(q.View), dash(q.Workload), q.Protocol, hedge, dash(q.SearchPath), dash(q.Policy), dash(q.Error)}, "  ")
}
