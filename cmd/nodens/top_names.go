package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"

	"github.com/nodens-dns/nodens/internal/report"
)

// nameTopics say in the line above the table which queries are counted, by --topic.
var nameTopics = map[string]string{
	"queries": "queries",
	"client":  "queries",
	"waste":   "NXDOMAIN for names that only a search path makes",
	"failing": "queries with SERVFAIL",
	"slow":    "slow queries",
}

// nameTable is the table by name.
type nameTable struct{ *report.Names }

func (t nameTable) reply() any { return t.Names }

// askNames asks the agent for the names.
func askNames(ctx context.Context, f *topFlags) (topTable, error) {
	n := new(report.Names)
	if err := f.socket.ask(ctx, http.MethodGet, "/names", url.Values{"topic": {f.topic}, "window": {f.window}}, n); err != nil {
		return nil, err
	}
	return nameTable{n}, nil
}

func (t nameTable) print(out io.Writer, f *topFlags, wide bool) error {
	n := t.Names
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "node %s: %d %s in the last %.0f s", cmp.Or(n.Node, "unknown"), n.Queries, nameTopics[n.Topic], n.WindowSeconds)
	if n.KernelSample > 0 {
		fmt.Fprintf(w, "; of the answers from the kernel, 1 in %d is sampled", n.KernelSample)
	}
	if n.Floor > 0 {
		fmt.Fprintf(w, "; names without a row: at most %d each", n.Floor)
	}
	f.printRows(w, n.Names, n.More, n.Topic, wide)
	return w.Flush()
}

// printRows writes the names, or with --by domain the domains that are their parents.
func (f *topFlags) printRows(w io.Writer, names []report.Name, more int, topic string, wide bool) {
	if f.by == "domain" {
		fmt.Fprint(w, "\n\nQUERIES\tNAMES\tDOMAIN\n")
		list := byDomain(names)
		rows := shown(f, list)
		for _, r := range rows {
			fmt.Fprintf(w, "≥%d\t%d\t%s\n", r.queries, r.names, r.domain)
		}
		printMore(w, len(list)-len(rows))
		return
	}
	fmt.Fprintf(w, "\n\n%s\n", strings.Join(nameColumns(topic, wide), "\t"))
	rows := shown(f, names)
	for i := range rows {
		fmt.Fprintln(w, strings.Join(nameRow(&rows[i], topic, wide), "\t"))
	}
	printMore(w, len(names)-len(rows)+more)
}

// nameColumns returns the names of the columns.
func nameColumns(topic string, wide bool) []string {
	columns := []string{"QPS", "SHARE", "QUERIES", "ERROR", "NAME"}
	switch topic {
	case "client":
		if columns = append([]string{"POD"}, columns...); wide {
			columns = append(columns, "ADDRESS")
		}
	case "failing", "slow":
		columns = append([]string{"CAUSE"}, columns...)
	}
	return columns
}

// nameRow returns the columns of one name.
func nameRow(n *report.Name, topic string, wide bool) (row []string) {
	name := n.Name
	switch {
	case n.Client != nil:
		row = append(row, nameClient(n.Client))
	case n.Cause != "":
		row = append(row, n.Cause)
	case topic == "waste":
		name = "*." + strings.TrimPrefix(name, ".")
	}
	bound := fmt.Sprintf("≤%d", n.Error)
	if n.Deviation > 0 {
		bound += fmt.Sprintf(" ±%d", n.Deviation)
	}
	row = append(row, fmt.Sprintf("%.1f", n.QueriesPerSecond), percent(n.Share), fmt.Sprint(n.Queries), bound, name)
	if wide && n.Client != nil {
		row = append(row, cmp.Or(n.Client.Address, "-"))
	}
	return row
}

// nameClient returns NAMESPACE/NAME, (host), (other), or the address of no known pod.
func nameClient(c *report.NameClient) string {
	row := report.Client{Kind: c.Kind, Namespace: c.Namespace, Pod: c.Pod}
	if c.Address != "" {
		row.Addresses = []string{c.Address}
	}
	return row.Label("pod")
}
