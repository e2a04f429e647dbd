package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

const (
	// topInterval is the time between two tables on a terminal.
	topInterval = 2 * time.Second
	// defaultTopRows is the number of rows of a table.
	defaultTopRows = 20
	// clearScreen moves the cursor to the upper left corner, and clears what is below.
	clearScreen = "\x1b[H\x1b[J"
)

// topFlags are the flags of `nodens top`.
type topFlags struct {
	socket           adminSocket
	by, window, sort string
	rows             int
}

// topOrders are the values of --sort: what is compared, the highest first.
var topOrders = map[string]func(*report.Client) float64{
	"queries":  func(c *report.Client) float64 { return float64(c.Window.Queries) },
	"nxdomain": func(c *report.Client) float64 { return float64(c.Window.NXDomain) },
	"waste":    func(c *report.Client) float64 { return float64(c.Window.Waste) },
	"servfail": func(c *report.Client) float64 { return float64(c.Window.Servfail) },
	"upstream": func(c *report.Client) float64 { return float64(c.Window.Upstream) },
	"p99":      func(c *report.Client) float64 { return c.P99Seconds },
	"shed":     func(c *report.Client) float64 { return float64(c.Window.Shed) },
}

func newTopCommand() *cobra.Command {
	f := &topFlags{by: "pod", window: "1m", sort: "queries"}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show which pods of this node ask the agent how much",
		Long: `Show which pods, workloads or namespaces of this node ask the agent how much, and what they get: the
share of queries answered without an upstream (HIT) and in the kernel, of NXDOMAIN, of NXDOMAIN for
names that only a search path makes (WASTE), and of SERVFAIL; the queries per second for which an
upstream was asked; and the latency of the last minute. On a terminal the table is shown again
every two seconds, until Ctrl-C. It asks the agent through its admin socket.`,
		Example: "  nodens top\n  nodens top --by workload --sort nxdomain --window 1h\n  nodens top -o json",
		Args:    cli.NoArgs,
	}
	flags := cmd.Flags()
	cli.Enum(flags, "by", f.by, "what a row is", []string{"pod", "workload", "namespace"}, func(text string) { f.by = text })
	cli.Enum(flags, "window", f.window, "time that is counted: half of it to all of it, up to now", []string{"10s", "1m", "1h"}, func(text string) { f.window = text })
	cli.Enum(flags, "sort", f.sort, "what the highest rows have most of", []string{"queries", "nxdomain", "waste", "servfail", "upstream", "p99", "shed"},
		func(text string) { f.sort = text })
	flags.IntVar(&f.rows, "rows", defaultTopRows, "`number` of rows of the table; 0 for all")
	f.socket.register(flags)
	output := cli.AddTableOutput(flags)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return runTop(cmd.Context(), f, output, cmd.OutOrStdout())
	}
	return cmd
}

// runTop prints the clients once, or until ctx ends if stdout is a terminal.
func runTop(ctx context.Context, f *topFlags, output *cli.Output, stdout io.Writer) error {
	refresh := output.Table() && isTerminal(stdout)
	for {
		c, err := f.ask(ctx)
		if err != nil {
			return err
		}
		if refresh {
			fmt.Fprint(stdout, clearScreen)
		}
		if err := output.Print(stdout, c, func(w io.Writer) error { return f.print(w, c, output.Wide()) }); err != nil || !refresh {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(topInterval):
		}
	}
}

// isTerminal reports whether w is a character device.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// ask asks the agent for the clients, and sorts them.
func (f *topFlags) ask(ctx context.Context) (*report.Clients, error) {
	c := new(report.Clients)
	if err := f.socket.ask(ctx, http.MethodGet, "/clients", url.Values{"by": {f.by}, "window": {f.window}}, c); err != nil {
		return nil, err
	}
	order := topOrders[f.sort]
	slices.SortStableFunc(c.Clients, func(a, b report.Client) int { return cmp.Compare(order(&b), order(&a)) })
	return c, nil
}

// print writes a line about the node, and a row for each client.
func (f *topFlags) print(out io.Writer, c *report.Clients, wide bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "node %s: %.1f queries/s in the last %.0f s, from %d addresses (limit %d)",
		cmp.Or(c.Node, "unknown"), report.PerSecond(c.Total.Queries, c.WindowSeconds), c.WindowSeconds, c.Addresses, c.AddressLimit)
	if c.Refused > 0 {
		fmt.Fprintf(w, "; about %d others are (other)", c.Refused)
	}
	columns := []string{strings.ToUpper(c.By), "QPS", "SHARE", "HIT", "KERNEL", "NXDOMAIN", "WASTE", "SERVFAIL", "UPSTREAM/s", "P50", "P99", "SHED"}
	if wide {
		columns = append(columns, "SLOW", "QUERIES", "TOTAL", "WORKLOAD", "ADDRESSES")
	}
	fmt.Fprintf(w, "\n\n%s\n", strings.Join(columns, "\t"))
	rows := c.Clients
	if f.rows > 0 {
		rows = rows[:min(f.rows, len(rows))]
	}
	for i := range rows {
		fmt.Fprintln(w, strings.Join(topRow(&rows[i], c, wide), "\t"))
	}
	if more := len(c.Clients) - len(rows) + c.More; more > 0 {
		fmt.Fprintf(w, "and %d more\n", more)
	}
	return w.Flush()
}

// topRow returns the columns of one client.
func topRow(c *report.Client, all *report.Clients, wide bool) []string {
	n := c.Window
	share := func(part uint64) string {
		if n.Queries == 0 {
			return "-"
		}
		return percent(float64(part) / float64(n.Queries))
	}
	row := []string{
		clientName(c, all.By), fmt.Sprintf("%.1f", c.QueriesPerSecond), percent(c.Share), share(n.Hits), share(n.Kernel), share(n.NXDomain),
		share(n.Waste), share(n.Servfail), fmt.Sprintf("%.1f", report.PerSecond(n.Upstream, all.WindowSeconds)), latency(c.P50Seconds), latency(c.P99Seconds), fmt.Sprint(n.Shed),
	}
	if !wide {
		return row
	}
	workload := strings.Trim(c.WorkloadKind+"/"+c.Workload, "/")
	return append(row, fmt.Sprint(n.Slow), fmt.Sprint(n.Queries), fmt.Sprint(c.Total.Queries), cmp.Or(workload, "-"), cmp.Or(strings.Join(c.Addresses, ","), "-"))
}

// clientName returns the first column: NAMESPACE/NAME, an address, or (host), (unknown) or (other).
func clientName(c *report.Client, by string) string {
	switch {
	case c.Kind == "unknown" && len(c.Addresses) > 0:
		return c.Addresses[0]
	case c.Kind != "pod":
		return "(" + c.Kind + ")"
	case by == "namespace":
		return c.Namespace
	case by == "workload":
		return c.Namespace + "/" + c.Workload
	default:
		return c.Namespace + "/" + c.Pod
	}
}
