package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

const (
	// reconnectTime is for how long `nodens tail` waits for another agent after one has ended, and
	// reconnectPause the time between two attempts.
	reconnectTime  = 20 * time.Second
	reconnectPause = 200 * time.Millisecond
)

// tailFilter are the flags that select queries.
type tailFilter struct {
	pod, namespace, name, code string
	slow, time                 time.Duration
	all                        bool
}

// register adds the flags, the one that selects pods by their namespace under a name of its own.
func (f *tailFilter) register(flags *pflag.FlagSet, namespace string) {
	flags.StringVar(&f.pod, "pod", "", "only queries of this `pod`: NAMESPACE/NAME, NAME, or an address of any client")
	flags.StringVar(&f.namespace, namespace, "", "only queries of pods in this `namespace`; (host) is the node itself")
	flags.BoolVar(&f.all, "all-clients", false, "queries of all clients; takes all of them off the kernel path")
	flags.StringVar(&f.name, "name", "", "only queries for this `name` and the names below it")
	flags.StringVar(&f.code, "rcode", "", "only replies with this `rcode`, such as NXDOMAIN")
	flags.DurationVar(&f.slow, "slow", 0, "only queries that took this `time` or longer, such as 100ms")
	flags.DurationVar(&f.time, "for", report.TailTime, "`time` after which the command ends, at most 24h")
}

// check returns an error if the flags do not say which clients are watched. namespace is the name given to
// register.
func (f *tailFilter) check(namespace string) error {
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

// tailFlags are the flags of `nodens tail`.
type tailFlags struct {
	tailFilter
	socket       adminSocket
	untilStdin   bool
	stdinTimeout time.Duration
	patience     time.Duration // reconnectTime
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
		Args:    cli.NoArgs,
	}
	flags := cmd.Flags()
	f.register(flags, "namespace")
	flags.BoolVar(&f.untilStdin, "until-stdin-closes", false, "end when standard input does, for kubectl exec -i")
	flags.DurationVar(&f.stdinTimeout, "stdin-timeout", 0, "end also when standard input brings nothing for this `time`; 0 for no limit")
	f.socket.register(flags)
	output := cli.AddLinesOutput(flags)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check("namespace"); err != nil {
			return err
		}
		ctx := cmd.Context()
		if f.untilStdin || f.stdinTimeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = untilStdinEnds(ctx, cmd.InOrStdin(), f.stdinTimeout)
			defer cancel()
		}
		p := &tailPrinter{stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(), output: output}
		return abandon(ctx, time.Second, func() error { return f.run(ctx, p) })
	}
	return cmd
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

// abandon returns what run returns. If ctx ends, it waits for run no longer than patience, because nobody may
// read what run writes.
func abandon(ctx context.Context, patience time.Duration, run func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- run() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(patience):
		return nil
	}
}

// values returns the parameters of a request whose reply may take so long.
func (f *tailFilter) values(limit time.Duration) url.Values {
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

// errTailOver ends a tail whose time is over, errUnread one whose output nobody reads.
var (
	errTailOver = errors.New("the time is over")
	errUnread   = errors.New("nobody reads the output")
)

// run prints queries until ctx ends, the time is over, or no agent answers any more.
func (f *tailFlags) run(ctx context.Context, p *tailPrinter) error {
	if err := p.head(); err != nil {
		return err
	}
	end := time.Now().Add(f.time)
	timed, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	t := &tailReader{flags: f, printer: p, end: end}
	err := t.follow(timed)
	switch {
	case errors.Is(err, errUnread):
		return nil
	case errors.Is(err, errTailOver), err == nil && ctx.Err() == nil:
		fmt.Fprintf(p.stderr, "ended after %s; --for changes this\n", f.time)
		return nil
	}
	return err
}

// tailReader reads queries from one agent after the other.
type tailReader struct {
	flags   *tailFlags
	printer *tailPrinter
	end     time.Time
	read    bool      // a line
	lost    time.Time // when the last agent ended; zero: there is one
}

// follow asks the agent, and another one whenever one has ended.
func (t *tailReader) follow(ctx context.Context) error {
	for first := true; ; first = false {
		limit := t.flags.time
		if !first {
			limit = min(limit, time.Until(t.end).Truncate(time.Second)+time.Second)
		}
		if err := t.agentLost(t.flags.socket.follow(ctx, "/tail", t.flags.values(limit), t.line)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reconnectPause):
		}
	}
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
	if err := t.printer.print(l.Node, &l, text); err != nil {
		return err
	}
	if l.End != nil {
		return errTailOver
	}
	if l.Heartbeat && unread(t.printer.stdout) {
		return errUnread
	}
	return nil
}
