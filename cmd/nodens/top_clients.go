package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/nodens-dns/nodens/internal/report"
)

// clientOrders are the values of --sort: what is compared, the highest first.
var clientOrders = map[string]func(*report.Client) float64{
	"queries":  func(c *report.Client) float64 { return float64(c.Window.Queries) },
	"nxdomain": func(c *report.Client) float64 { return float64(c.Window.NXDomain) },
	"waste":    func(c *report.Client) float64 { return float64(c.Window.Waste) },
	"servfail": func(c *report.Client) float64 { return float64(c.Window.Servfail) },
	"upstream": func(c *report.Client) float64 { return float64(c.Window.Upstream) },
	"p99":      func(c *report.Client) float64 { return c.P99Seconds },
	"shed":     func(c *report.Client) float64 { return float64(c.Window.Shed) },
	"limited":  func(c *report.Client) float64 { return float64(c.Window.Limited) },
}

// clientTable is the table by pod, workload or namespace.
type clientTable struct{ *report.Clients }

func (t clientTable) reply() any { return t.Clients }

// askClients asks the agent for the clients, and sorts them.
func askClients(ctx context.Context, f *topFlags) (topTable, error) {
	c := new(report.Clients)
	if err := f.socket.ask(ctx, http.MethodGet, "/clients", url.Values{"by": {f.by}, "window": {f.window}}, c); err != nil {
		return nil, err
	}
	order := clientOrders[f.sort]
	slices.SortStableFunc(c.Clients, func(a, b report.Client) int { return cmp.Compare(order(&b), order(&a)) })
	return clientTable{c}, nil
}

func (t clientTable) print(out io.Writer, f *topFlags, wide bool) error {
	c := t.Clients
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "node %s: %.1f queries/s in the last %.0f s, from %d addresses (limit %d)",
		cmp.Or(c.Node, "unknown"), report.PerSecond(c.Total.Queries, c.WindowSeconds), c.WindowSeconds, c.Addresses, c.AddressLimit)
	if c.Refused > 0 {
		fmt.Fprintf(w, "; about %d others are (other)", c.Refused)
	}
	format := newClientFormat(c.By, wide, c.Total.Limited, c.Clients, func(c *report.Client) *report.Client { return c })
	rows := shown(f, c.Clients)
	table := [][]string{format.columns()}
	for i := range rows {
		table = append(table, format.row(&rows[i], report.PerSecond(rows[i].Window.Upstream, c.WindowSeconds)))
	}
	fmt.Fprint(w, "\n\n")
	f.printTable(w, table)
	printMore(w, len(c.Clients)-len(rows)+c.More)
	return w.Flush()
}

// printTable writes the table, of which the first row has the names of the columns, as far as it fits the terminal.
func (f *topFlags) printTable(w io.Writer, table [][]string) {
	gone := f.fit(table)
	for _, row := range table {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if gone > 0 {
		fmt.Fprintf(w, "+%d columns with -o wide\n", gone)
	}
}

// clientFormat says which columns a table of clients has: LIMITED only if a client is limited, NO-TCP only if one gets
// truncated replies and never asks over TCP.
type clientFormat struct {
	by                        string
	wide, limited, unfollowed bool
}

// newClientFormat returns the format of a table with these rows. client returns the client of a row.
func newClientFormat[T any](by string, wide bool, limited uint64, rows []T, client func(*T) *report.Client) clientFormat {
	return clientFormat{by: by, wide: wide, limited: limited > 0, unfollowed: slices.ContainsFunc(rows, func(row T) bool { return client(&row).Unfollowed > 0 })}
}

// columns returns the names of the columns.
func (f clientFormat) columns() []string {
	columns := []string{strings.ToUpper(f.by), "QPS", "SHARE", "HIT", "KERNEL", "NXDOMAIN", "WASTE", "SERVFAIL", "UPSTREAM/s", "P50", "P99", "SHED"}
	if f.limited {
		columns = append(columns, "LIMITED")
	}
	if f.unfollowed {
		columns = append(columns, "NO-TCP")
	}
	columns = append(columns, "TOP-NAME")
	if f.wide {
		columns = append(columns, "SLOW", "QUERIES", "TOTAL", "WORKLOAD", "ADDRESSES")
	}
	return columns
}

// row returns the columns of one client, for which an upstream is asked so often in a second.
func (f clientFormat) row(c *report.Client, upstream float64) []string {
	n := c.Window
	share := func(part uint64) string {
		if n.Queries == 0 {
			return "-"
		}
		return percent(float64(part) / float64(n.Queries))
	}
	row := []string{
		c.Label(f.by), fmt.Sprintf("%.1f", c.QueriesPerSecond), percent(c.Share), share(n.Hits), share(n.Kernel), share(n.NXDomain),
		share(n.Waste), share(n.Servfail), fmt.Sprintf("%.1f", upstream), latency(c.P50Seconds), latency(c.P99Seconds), fmt.Sprint(n.Shed),
	}
	if f.limited {
		row = append(row, fmt.Sprint(n.Limited))
	}
	if f.unfollowed {
		row = append(row, fmt.Sprint(c.Unfollowed))
	}
	row = append(row, topNameText(c.TopName))
	if !f.wide {
		return row
	}
	workload := strings.Trim(c.WorkloadKind+"/"+c.Workload, "/")
	return append(row, fmt.Sprint(n.Slow), fmt.Sprint(n.Queries), fmt.Sprint(c.Total.Queries), cmp.Or(workload, "-"), cmp.Or(strings.Join(c.Addresses, ","), "-"))
}

// topNameText returns the name that a client asks for most, with its share.
func topNameText(n *report.TopName) string {
	if n == nil {
		return "-"
	}
	return n.Name + " " + percent(n.Share)
}
