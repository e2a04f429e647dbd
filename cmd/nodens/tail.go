package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

// tailFlags are the flags of `nodens tail`.
type tailFlags struct {
	socket                     adminSocket
	pod, namespace, name, code string
	slow                       time.Duration
	all                        bool
}

func newTailCommand() *cobra.Command {
	f := new(tailFlags)
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Show queries of this node as the agent answers them",
		Long: `Show queries of this node as the agent answers them, until Ctrl-C: the pod, the name, the reply,
the step that made it, how the cache was of use and how old the answer is, the upstream and its
time, and the time to the reply. The agent shows at most 1,000 queries a second, and says how many
are missing. Meanwhile it answers all queries of the selected clients itself, without the kernel
path. It asks the agent through its admin socket.`,
		Example: "  nodens tail --pod shop/web-0\n  nodens tail --namespace shop --rcode SERVFAIL\n  nodens tail --all-clients --slow 100ms -o json",
		Args:    cli.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&f.pod, "pod", "", "only queries of this `pod`: NAMESPACE/NAME, NAME, or an address of any client")
	flags.StringVar(&f.namespace, "namespace", "", "only queries of pods in this `namespace`; (host) is the node itself")
	flags.BoolVar(&f.all, "all-clients", false, "queries of all clients; takes all of them off the kernel path")
	flags.StringVar(&f.name, "name", "", "only queries for this `name` and the names below it")
	flags.StringVar(&f.code, "rcode", "", "only replies with this `rcode`, such as NXDOMAIN")
	flags.DurationVar(&f.slow, "slow", 0, "only queries that took this `time` or longer, such as 100ms")
	f.socket.register(flags)
	output := cli.AddLinesOutput(flags)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.pod == "" && f.namespace == "" && !f.all {
			return cli.Usagef("no clients are selected; give --pod or --namespace, or --all-clients, which takes all clients off the kernel path")
		}
		if f.all && (f.pod != "" || f.namespace != "") {
			return cli.Usagef("--all-clients and a selection of clients; give one of them")
		}
		return f.run(cmd.Context(), output, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return cmd
}

// values returns the parameters of the request.
func (f *tailFlags) values() url.Values {
	values := url.Values{}
	for key, value := range map[string]string{"pod": f.pod, "namespace": f.namespace, "name": f.name, "rcode": f.code} {
		if value != "" {
			values.Set(key, value)
		}
	}
	if f.all {
		values.Set("all", "true")
	}
	if f.slow > 0 {
		values.Set("slow", f.slow.String())
	}
	return values
}

// run prints queries until ctx ends or the agent does.
func (f *tailFlags) run(ctx context.Context, output *cli.Output, stdout, stderr io.Writer) error {
	if output.Table() {
		printTailHead(stdout, output.Wide())
	}
	return f.socket.follow(ctx, "/tail", f.values(), func(line []byte) error {
		if output.JSON() {
			_, err := fmt.Fprintf(stdout, "%s\n", line)
			return err
		}
		var l report.TailLine
		if err := json.Unmarshal(line, &l); err != nil {
			return fmt.Errorf("the agent's reply is not valid: %w", err)
		}
		return printTailLine(stdout, stderr, &l, output.Wide())
	})
}

// tailFormat is a row of the table: time, client, name, type, rcode, source, cache, age, upstream, its time, and
// the time to the reply.
const tailFormat = "%-12s  %-32s  %-44s  %-5s  %-8s  %-10s  %-5s  %-7s  %-21s  %-9s  %s"

// printTailHead prints the names of the columns.
func printTailHead(w io.Writer, wide bool) {
	fmt.Fprintf(w, tailFormat, "TIME", "CLIENT", "NAME", "TYPE", "RCODE", "SOURCE", "CACHE", "AGE", "UPSTREAM", "UPTIME", "DURATION")
	if wide {
		fmt.Fprintf(w, "  ZONE  VIEW  WORKLOAD  PROTOCOL  HEDGE  SEARCH-PATH  ERROR")
	}
	fmt.Fprintln(w)
}

// printTailLine prints a query to stdout and other lines to stderr.
func printTailLine(stdout, stderr io.Writer, l *report.TailLine, wide bool) error {
	switch {
	case l.Selected != nil && l.Selected.AllClients:
		fmt.Fprintf(stderr, "node %s: queries of all clients\n", cmp.Or(l.Node, "unknown"))
	case l.Selected != nil && len(l.Selected.Addresses) == 0:
		fmt.Fprintf(stderr, "node %s: no such client now; waiting for one\n", cmp.Or(l.Node, "unknown"))
	case l.Selected != nil:
		fmt.Fprintf(stderr, "node %s: queries from %s\n", cmp.Or(l.Node, "unknown"), strings.Join(l.Selected.Addresses, ", "))
	case l.Lost != nil:
		fmt.Fprintf(stderr, "not shown: %d queries beyond 1000 a second, %d that this command was too slow for\n", l.Lost.Limit, l.Lost.SlowReader)
	case l.Query != nil:
		_, err := fmt.Fprintln(stdout, tailRow(l.Query, wide))
		return err
	}
	return nil
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

// seconds returns a number of seconds as a duration.
func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
