package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/cmd/nodens/kubectl"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

// podNamespace is the flag of `kubectl nodens tail` that selects pods by their namespace: --namespace is the one
// of the agents.
const podNamespace = "pod-namespace"

// abandonTime is how long `kubectl nodens tail` may take to end its processes.
const abandonTime = 4 * time.Second

// tailSilence is the time without a line after which `kubectl nodens tail` and the command in the agent's pod take each
// other to be cut off.
const tailSilence = 6 * report.TailHeartbeat

// refreshInterval is how often `kubectl nodens tail` looks for new nodes, and for the node of the pod.
const refreshInterval = 10 * time.Second

// pluginTail are the flags of `kubectl nodens tail`.
type pluginTail struct {
	tailFilter
	nodes []string
}

func newPluginTailCommand() *cobra.Command {
	f := new(pluginTail)
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Show queries of a cluster as the agents answer them",
		Long: `Show queries of a cluster as the agents answer them, with the node of each, until Ctrl-C or the end
of --for. With --pod NAMESPACE/NAME it asks the agent on the pod's node, else the agents of all
nodes, 16 at most; --node names some. Each agent shows at most 1,000 queries a second. Meanwhile
the agents answer all queries of the selected clients themselves, without the kernel path.

A node that cannot be reached is named, and tried again. The commands in the agents' pods end when
this one does, and within 30 seconds if the network is cut.`,
		Example: "  kubectl nodens tail --pod shop/web-0\n  kubectl nodens tail --pod-namespace shop --rcode SERVFAIL\n  kubectl nodens tail --all-clients --slow 100ms --node node-1,node-2 -o json",
		Args:    cli.NoArgs,
	}
	flags := cmd.Flags()
	f.register(flags, podNamespace)
	flags.StringSliceVar(&f.nodes, "node", nil, "only `nodes` of this name; separated by commas, or given again")
	cluster := addCluster(flags)
	output := cli.AddLinesOutput(flags)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(podNamespace); err != nil {
			return err
		}
		p := &tailPrinter{stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(), output: output, nodeWidth: len("NODE")}
		return abandon(cmd.Context(), abandonTime, func() error { return f.run(cmd.Context(), cluster, p) })
	}
	return cmd
}

// args returns the arguments for an agent's node, of a command that ends after so long.
func (f *pluginTail) args(limit time.Duration) []string {
	args := []string{"tail", "-o", "json"}
	values := f.values(limit)
	for _, key := range slices.Sorted(maps.Keys(values)) {
		value := values.Get(key)
		if key == "all" {
			key = "all-clients"
		}
		args = append(args, "--"+key+"="+value)
	}
	return args
}

// target returns the pod on whose node the agent is asked; none for all nodes.
func (f *pluginTail) target() (namespace, pod string, err error) {
	if f.pod == "" || len(f.nodes) > 0 {
		return "", "", nil
	}
	if _, err := netip.ParseAddr(f.pod); err == nil {
		return "", "", nil
	}
	namespace, pod, ok := strings.Cut(f.pod, "/")
	switch {
	case ok:
		return namespace, pod, nil
	case f.namespace != "":
		return f.namespace, f.pod, nil
	}
	return "", "", cli.Usagef("--pod %s has no namespace; give --pod NAMESPACE/%[1]s, or --node", f.pod)
}

// run prints queries until ctx ends, the time is over, or nobody reads them any more.
func (f *pluginTail) run(ctx context.Context, cluster *kubectl.Cluster, p *tailPrinter) error {
	namespace, pod, err := f.target()
	if err != nil {
		return err
	}
	m := &mergedTail{tailPrinter: *p, out: p.stdout}
	m.stdout = &m.rows
	t := &kubectl.Tail{Nodes: f.nodes, Namespace: namespace, Pod: pod, Refresh: refreshInterval, Silence: tailSilence, Time: f.time, Args: f.args, Started: m.start, Print: m.print}
	err = kubectl.Follow(ctx, cluster, t)
	switch {
	case errors.Is(err, errUnread):
		return nil
	case err == nil && ctx.Err() == nil:
		fmt.Fprintf(p.stderr, "ended after %s; --for changes this\n", f.time)
	}
	return err
}

// mergedTail prints lines of several nodes, those that arrive together at once.
type mergedTail struct {
	tailPrinter // to rows
	rows        bytes.Buffer
	out         io.Writer
}

// start prints the names of the columns.
func (m *mergedTail) start(nodes []string) error {
	for _, name := range nodes {
		m.nodeWidth = max(m.nodeWidth, len(name))
	}
	return errors.Join(m.head(), m.flush())
}

// print prints events, and the number of queries that are missing after them.
func (m *mergedTail) print(events []kubectl.TailEvent, lost uint64) error {
	if len(events) == 0 && lost == 0 && unread(m.out) {
		return errUnread
	}
	for _, e := range events {
		if err := m.printEvent(e); err != nil {
			return err
		}
	}
	if err := m.flush(); err != nil || lost == 0 {
		return err
	}
	return m.printLost(lost)
}

// printEvent prints an event, a query to the rows.
func (m *mergedTail) printEvent(e kubectl.TailEvent) error {
	if e.Line == nil || e.Line.Query == nil { // stderr may be the same terminal
		if err := m.flush(); err != nil {
			return err
		}
	}
	switch {
	case e.Line != nil:
		return m.tailPrinter.print(e.Node, e.Line, e.JSON)
	case e.Node == "":
		fmt.Fprintln(m.stderr, report.Printable(e.Note))
	default:
		m.note(e.Node, e.Note)
	}
	return nil
}

// printLost prints how many queries are missing because the output was too slow.
func (m *mergedTail) printLost(n uint64) error {
	if !m.output.JSON() {
		fmt.Fprintf(m.stderr, "not shown: %d queries that this command was too slow for\n", n)
		return nil
	}
	l := report.TailLine{Header: report.Header{SchemaVersion: report.SchemaVersion}, Lost: &report.TailLost{SlowReader: n}}
	return json.NewEncoder(m.out).Encode(&l)
}

// flush writes the rows to the output.
func (m *mergedTail) flush() error {
	_, err := m.rows.WriteTo(m.out)
	return err
}
