package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodens-dns/nodens/cmd/nodens/kubectl"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

const (
	// reconnectTime is for how long `nodens tail` waits for another agent after one has ended, and
	// reconnectPause the time between two attempts.
	reconnectTime  = 20 * time.Second
	reconnectPause = 200 * time.Millisecond
	// tailSilence is the time without a line after which `kubectl nodens tail` and the command in the agent's pod take
	// each other to be cut off.
	tailSilence = 6 * report.TailHeartbeat
	// refreshInterval is how often `kubectl nodens tail` looks for new nodes, and for the node of the pod.
	refreshInterval = 10 * time.Second
)

// errTailOver ends a tail whose time is over, errUnread one whose output nobody reads.
var (
	errTailOver = errors.New("the time is over")
	errUnread   = errors.New("nobody reads the output")
)

// tailFlags are the flags of `nodens tail`.
type tailFlags struct {
	pod, namespace, name, code string
	slow, time                 time.Duration
	all                        bool

	// Of the agent of this node:
	socket       adminSocket
	untilStdin   bool
	stdinTimeout time.Duration
	patience     time.Duration // reconnectTime

	// Of a cluster:
	cluster *kubectl.Cluster
	nodes   []string
}

func newTailCommand() *cobra.Command {
	f := &tailFlags{patience: reconnectTime}
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Show queries of this node as the agent answers them",
		Long: `Show queries of this node as the agent answers them, until Ctrl-C or the end of --for: the pod, the
name, the reply, the step that made it, how the cache was of use and how old the answer is, the
upstream and its time, and the time to the reply. The agent shows at most 1,000 queries a second,
and says how many are missing. Meanwhile it answers all queries of the selected clients itself,
without the kernel path. It asks the agent through its admin socket, and goes on with the new agent
after a hand-over.

Under kubectl exec the command does not notice when kubectl ends. kubectl exec -i with
--until-stdin-closes ends it then. kubectl nodens tail does so by itself.`,
		Example: "  nodens tail --pod shop/web-0\n  nodens tail --namespace shop --rcode SERVFAIL\n  nodens tail --all-clients --slow 100ms -o json",
	}
	return f.command(cmd, "namespace", time.Second, func(flags *pflag.FlagSet) {
		flags.BoolVar(&f.untilStdin, "until-stdin-closes", false, "end when standard input does, for kubectl exec -i")
		flags.DurationVar(&f.stdinTimeout, "stdin-timeout", 0, "end also when standard input brings nothing for this `time`; 0 for no limit")
		f.socket.register(flags)
	})
}

func newPluginTailCommand() *cobra.Command {
	f := new(tailFlags)
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
	}
	// --namespace is the one of the agents. The processes in the pods may take a while to end.
	return f.command(cmd, "pod-namespace", 4*time.Second, func(flags *pflag.FlagSet) {
		flags.StringSliceVar(&f.nodes, "node", nil, "only `nodes` of this name; separated by commas, or given again")
		f.cluster = addCluster(flags)
	})
}

// command returns cmd with the flags f, and those of addAgents, which say which agents are asked. namespace is the name of the
// flag that selects pods by their namespace, patience the time that the command may take to end.
func (f *tailFlags) command(cmd *cobra.Command, namespace string, patience time.Duration, addAgents func(*pflag.FlagSet)) *cobra.Command {
	flags := cmd.Flags()
	flags.StringVar(&f.pod, "pod", "", "only queries of this `pod`: NAMESPACE/NAME, NAME, or an address of any client")
	flags.StringVar(&f.namespace, namespace, "", "only queries of pods in this `namespace`; (host) is the node itself")
	flags.BoolVar(&f.all, "all-clients", false, "queries of all clients; takes all of them off the kernel path")
	flags.StringVar(&f.name, "name", "", "only queries for this `name` and the names below it")
	flags.StringVar(&f.code, "rcode", "", "only replies with this `rcode`, such as NXDOMAIN")
	flags.DurationVar(&f.slow, "slow", 0, "only queries that took this `time` or longer, such as 100ms")
	flags.DurationVar(&f.time, "for", report.TailTime, "`time` after which the command ends, at most 24h")
	addAgents(flags)
	output := cli.AddLinesOutput(flags)
	cmd.Args = cli.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(namespace); err != nil {
			return err
		}
		ctx, p := cmd.Context(), &tailPrinter{stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(), output: output}
		run := f.followNode
		if f.cluster != nil {
			run = f.followCluster
		}
		if f.untilStdin || f.stdinTimeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = untilStdinEnds(ctx, cmd.InOrStdin(), f.stdinTimeout)
			defer cancel()
		}
		err := abandon(ctx, patience, func() error { return f.run(ctx, p, run) })
		if errors.Is(err, errInterrupted) { // nobody may read what the command writes
			return nil
		}
		return err
	}
	return cmd
}

// check returns an error if the flags do not say which clients are watched. namespace is the name given to
// command.
func (f *tailFlags) check(namespace string) error {
	selects := f.pod != "" || f.namespace != ""
	switch {
	case !selects && !f.all:
		return cli.Usagef("no clients are selected; give --pod or --%s, or --all-clients, which takes all clients off the kernel path", namespace)
	case selects && f.all:
		return cli.Usagef("--all-clients and a selection of clients; give one of them")
	case f.time <= 0 || f.time > report.MaxTailTime:
		return cli.Usagef("--for %s; give a time such as 10m, at most %.0fh", f.time, report.MaxTailTime.Hours())
	}
	return nil
}

// untilStdinEnds returns a context that ends when stdin does, or when it brings nothing for a time unless that is
// 0.
func untilStdinEnds(ctx context.Context, stdin io.Reader, silence time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	var timer *time.Timer
	if silence > 0 {
		timer = time.AfterFunc(silence, cancel)
	}
	go func() {
		defer cancel()
		for buf := make([]byte, 512); ; {
			if _, err := stdin.Read(buf); err != nil {
				return
			}
			if timer != nil {
				timer.Reset(silence)
			}
		}
	}()
	return ctx, cancel
}

// run prints queries with follow until ctx ends, the time is over, nobody reads them any more, or no agent answers.
func (f *tailFlags) run(ctx context.Context, p *tailPrinter, follow func(context.Context, *tailPrinter) error) error {
	err := follow(ctx, p)
	switch {
	case errors.Is(err, errUnread):
		return nil
	case errors.Is(err, errTailOver), err == nil && ctx.Err() == nil:
		fmt.Fprintf(p.stderr, "ended after %s; --for changes this\n", f.time)
		return nil
	}
	return err
}

// values returns the parameters of a request whose reply may take so long.
func (f *tailFlags) values(limit time.Duration) url.Values {
	values := url.Values{"for": {limit.String()}}
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

// args returns the arguments for an agent's node, of a command that ends after so long.
func (f *tailFlags) args(limit time.Duration) []string {
	args := []string{"tail", "-o", "json"}
	values := f.values(limit)
	for _, key := range slices.Sorted(maps.Keys(values)) {
		name := key
		if key == "all" {
			name = "all-clients"
		}
		args = append(args, "--"+name+"="+values.Get(key))
	}
	return args
}

// followCluster prints queries of the nodes of the cluster.
func (f *tailFlags) followCluster(ctx context.Context, p *tailPrinter) error {
	namespace, pod, err := f.target()
	if err != nil {
		return err
	}
	return kubectl.Follow(ctx, f.cluster, &kubectl.Tail{
		Nodes: f.nodes, Namespace: namespace, Pod: pod, Refresh: refreshInterval, Silence: tailSilence, Time: f.time, Args: f.args,
		Started: func(nodes []string) error {
			p.nodeWidth = len("NODE")
			for _, name := range nodes {
				p.nodeWidth = max(p.nodeWidth, len(name))
			}
			return p.head()
		},
		Print: func(events []kubectl.TailEvent, lost uint64) error {
			if len(events) == 0 && lost == 0 && unread(p.stdout) {
				return errUnread
			}
			return p.printEvents(events, lost)
		},
	})
}

// target returns the pod on whose node the agent is asked; none for all nodes.
func (f *tailFlags) target() (namespace, pod string, err error) {
	_, notAddress := netip.ParseAddr(f.pod)
	if f.pod == "" || len(f.nodes) > 0 || notAddress == nil {
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

// followNode prints queries of this node: of its agent, and of another one whenever one has ended.
func (f *tailFlags) followNode(ctx context.Context, p *tailPrinter) error {
	if err := p.head(); err != nil {
		return err
	}
	t := &tailReader{flags: f, printer: p}
	end := time.Now().Add(f.time)
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	for limit := f.time; ; limit = min(f.time, time.Until(end).Truncate(time.Second)+time.Second) {
		if err := t.agentLost(f.socket.follow(ctx, "/tail", f.values(limit), t.line)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reconnectPause):
		}
	}
}

// tailReader reads queries from one agent after the other.
type tailReader struct {
	flags   *tailFlags
	printer *tailPrinter
	read    bool      // a line
	lost    time.Time // when the last agent ended; zero: there is one
}

// agentLost returns err, of a request that has ended, unless another agent may answer.
func (t *tailReader) agentLost(err error) error {
	if !t.read || !errors.Is(err, report.ErrEnded) && !errors.Is(err, report.ErrNoAgent) {
		return err
	}
	if t.lost.IsZero() {
		t.lost = time.Now()
		fmt.Fprintln(t.printer.stderr, "the agent has ended, or has handed over to another one; waiting for the next one")
	}
	if time.Since(t.lost) > t.flags.patience {
		return fmt.Errorf("the agent has ended, and no other has answered at %s for %s", t.flags.socket.find(), t.flags.patience)
	}
	return nil
}

// line prints a line of the reply.
func (t *tailReader) line(text []byte) error {
	var l report.TailLine
	if err := report.Unmarshal(text, &l); err != nil {
		return fmt.Errorf("the agent's reply is not valid: %w", err)
	}
	t.read, t.lost = true, time.Time{}
	switch err := t.printer.printEvents([]kubectl.TailEvent{{Node: l.Node, Line: &l, JSON: text}}, 0); {
	case err != nil:
		return err
	case l.End != nil:
		return errTailOver
	case l.Heartbeat && unread(t.printer.stdout):
		return errUnread
	}
	return nil
}
