package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodens-dns/nodens/cmd/nodens/kubectl"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

// explainFlags are the flags and arguments of `nodens explain`.
type explainFlags struct {
	socket      adminSocket
	cluster     *kubectl.Cluster // nil for the agent of this node
	node        string           // of cluster; "" for the pod's own
	name, qtype string
	from        string
	server      string
	ndots       string // "" for the pod's own
	tcp, dnssec bool
	ask         bool
}

func newExplainCommand() *cobra.Command {
	f := new(explainFlags)
	cmd := &cobra.Command{
		Short: "Show how the agent on this node would answer a query, and why",
		Long: `Show how the agent on this node would answer a query, and why: the server block that takes it,
what each step decides, which step makes the reply, what is cached, which upstreams would be asked,
and which copies of the answer the kernel has. The agent runs its own query path without leaving
anything behind: it asks no upstream, counts nothing and changes no cache. With --ask it then asks
the query, and shows the reply. TYPE is A by default.

With a pod in --from, and unless NAME ends with a dot, it shows the queries that the pod's resolver
sends, which tries the search domains of a pod with dnsPolicy ClusterFirst. It asks the agent
through its admin socket.`,
		Example: "  nodens explain example.org AAAA\n  nodens explain web --from shop/client-7d4f-x2\n  nodens explain db.shop.svc.cluster.local. --from 10.244.1.7 -o json",
	}
	cmd.Flags().StringVar(&f.from, "from", "", "`client`: NAMESPACE/NAME of a pod of this node, its name alone, or an address; without it the node itself")
	return f.command(cmd, f.socket.register, f.askNode)
}

func newPluginExplainCommand() *cobra.Command {
	f := new(explainFlags)
	cmd := &cobra.Command{
		Short: "Show how the agent on a pod's node would answer a query, and why",
		Long: `Show how the agent on a pod's node would answer a query of the pod, and why, as nodens explain does
on the node. TYPE is A by default. Unless NAME ends with a dot, it shows the queries that the pod's
resolver sends. The command looks up the node of the pod, so it needs the right to get pods in the
pod's namespace; --node makes this unnecessary.`,
		Example: "  kubectl nodens explain www.example.com --from shop/web-7d4f-x2\n  kubectl nodens explain example.org. AAAA --node node-1",
	}
	cmd.Flags().StringVar(&f.from, "from", "", "`client`: NAMESPACE/NAME of a pod; with --node also an address, and without it the node itself")
	cmd.Flags().StringVar(&f.node, "node", "", "`node` whose agent is asked; without it the pod's own")
	return f.command(cmd, func(flags *pflag.FlagSet) { f.cluster = addCluster(flags) }, f.askCluster)
}

// command returns cmd with the arguments and flags f, and those of addAgents, which say which agent ask asks.
func (f *explainFlags) command(cmd *cobra.Command, addAgents func(*pflag.FlagSet), ask func(context.Context) (*report.Explanation, error)) *cobra.Command {
	cmd.Use, cmd.Args = "explain NAME [TYPE]", cli.Args(1, 2, "a name, and perhaps a record type")
	flags := cmd.Flags()
	flags.StringVar(&f.server, "server", "", "`address` of the listener that is asked; without it the first one for plain DNS in the Corefile")
	flags.StringVar(&f.ndots, "ndots", "", "`number` of dots from which on the client asks for NAME as it is first; without it the option in the pod's dnsConfig, or 5")
	flags.BoolVar(&f.tcp, "tcp", false, "the query comes over TCP")
	flags.BoolVar(&f.dnssec, "dnssec", false, "the query asks for DNSSEC records (DO bit)")
	flags.BoolVar(&f.ask, "ask", false, "then really ask: upstreams are asked, and the query is counted and logged as the client's")
	addAgents(flags)
	output := cli.AddTableOutput(flags)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.name, f.qtype = args[0], "A"
		if len(args) > 1 {
			f.qtype = args[1]
		}
		e, err := ask(cmd.Context())
		if err != nil {
			return err
		}
		return output.Print(cmd.OutOrStdout(), e, func(w io.Writer) error { return printExplanation(w, e, output.Wide()) })
	}
	return cmd
}

// askNode asks the agent of this node.
func (f *explainFlags) askNode(ctx context.Context) (*report.Explanation, error) {
	query := url.Values{"name": {f.name}, "type": {f.qtype}, "from": {f.from}, "server": {f.server}, "ndots": {f.ndots}, "dnssec": {strconv.FormatBool(f.dnssec)}}
	if f.tcp {
		query.Set("protocol", "tcp")
	}
	method := http.MethodGet
	if f.ask {
		method = http.MethodPost
	}
	e := new(report.Explanation)
	return e, f.socket.ask(ctx, method, "/explain", query, e)
}

// askCluster asks the agent on a node of the cluster: by default the pod's.
func (f *explainFlags) askCluster(ctx context.Context) (e *report.Explanation, err error) {
	node := f.node
	if node == "" {
		namespace, pod, ok := strings.Cut(f.from, "/")
		if !ok {
			return nil, cli.Usagef("no pod is given; give --from NAMESPACE/NAME, or --node")
		}
		if node, err = f.cluster.NodeOf(ctx, namespace, pod); err != nil {
			return nil, err
		}
	}
	args := []string{"explain"}
	for _, flag := range [][2]string{{"--from", f.from}, {"--server", f.server}, {"--ndots", f.ndots}} {
		if flag[1] != "" {
			args = append(args, flag[0], flag[1])
		}
	}
	args = append(args, "--tcp="+strconv.FormatBool(f.tcp), "--dnssec="+strconv.FormatBool(f.dnssec), "--ask="+strconv.FormatBool(f.ask), "-o", "json", "--", f.name, f.qtype)
	asked, err := kubectl.Ask(ctx, f.cluster, &kubectl.Question[report.Explanation]{
		Node: node, Args: args,
		Serves: func(_, _ *report.Explanation) int { return 0 },
		Each:   func(_ string, reply *report.Explanation) { e = reply },
	})
	return e, cmp.Or(err, errUnanswered(&asked))
}

// printExplanation writes who asks, the queries if there are several, and the details of the last query, or
// of all with wide.
func printExplanation(out io.Writer, e *report.Explanation, wide bool) error {
	w := newAligner(out)
	printClient(w, e)
	if len(e.Questions) > 1 {
		fmt.Fprintln(w, "\nQUERY\tNAME\tANSWERED BY\tREPLY\tCOST")
		for i := range e.Questions {
			q := &e.Questions[i]
			number := strconv.Itoa(i + 1)
			if q.Conditional {
				number += "?"
			}
			by, result, cost := q.AnsweredBy(), q.Result(), q.Cost(milliseconds)
			if q.Asked != nil { // the real reply
				by, result, cost = q.Asked.AnsweredBy(), q.Asked.Result(), "took "+tookText(q.Asked.Seconds)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", number, q.Name, by, result, cost)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range e.Questions {
		if wide || i == len(e.Questions)-1 {
			if err := printQuestion(out, &e.Questions[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// printClient writes who asks where.
func printClient(w io.Writer, e *report.Explanation) {
	fmt.Fprintf(w, "listener\t%s\nclient\t%s\n", e.Listener.Text(), e.Client.Text())
	if limited := e.Client.LimitedText(); limited != "" {
		fmt.Fprintf(w, "limited\t%s\n", limited)
	}
	if k := e.Client.Kernel; k != nil {
		fmt.Fprintf(w, "interface\t%s\n", k.Text())
	}
	if search := e.SearchPath(); search != "" {
		fmt.Fprintf(w, "search path\t%s\n", search)
	}
}

// printQuestion writes the steps of one query, and the reply.
func printQuestion(out io.Writer, q *report.ExplainedQuestion) error {
	fmt.Fprintf(out, "\n%s %s\n\n", q.Name, q.Type)
	w := newAligner(out)
	fmt.Fprintln(w, "STEP\tOUTCOME\tWHY")
	for i := range q.Steps {
		s := &q.Steps[i]
		why := s.Reason
		if s.Depth > 0 {
			why = strings.TrimPrefix(why+"; for "+s.Name+" "+s.Type, "; ")
		}
		if s.Cached != nil {
			why += "; " + s.Cached.Times()
		}
		fmt.Fprintf(w, "%s%s\t%s\t%s\n", strings.Repeat("  ", s.Depth), s.Step, s.Outcome, cmp.Or(why, "-"))
	}
	printMore(w, q.MoreSteps, " steps")
	fmt.Fprintln(w)
	line := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
	line("answered by", "%s", q.AnsweredBy())
	line("reply", "%s", q.ResultTTL())
	printReply(line, &q.ExplainedReply)
	if q.Forward != nil {
		printForward(line, q.Forward)
	}
	if a := q.Asked; a != nil {
		line("asked", "%s, by %s in %s", a.ResultTTL(), a.AnsweredBy(), tookText(a.Seconds))
		printReply(line, &a.ExplainedReply)
	}
	for i := range q.Cached {
		line("cached", "%s", q.Cached[i].Text())
	}
	if q.Kernel != nil {
		for _, text := range q.Kernel.Texts() {
			line("kernel", "%s", text)
		}
	}
	return w.Flush()
}

// printReply writes the records of a reply, and why it is an error.
func printReply(line func(name, format string, args ...any), r *report.ExplainedReply) {
	for _, a := range r.Answers {
		line("", "%s", a)
	}
	if r.MoreAnswers > 0 {
		line("", "and %d more records", r.MoreAnswers)
	}
	if r.Error != "" {
		line("error", "%s", r.Error)
	}
}

// tookText returns a time with two or three digits.
func tookText(took float64) string {
	d := seconds(took)
	if d >= time.Millisecond {
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(time.Microsecond).String()
}

// printForward writes the forward directive and its upstreams.
func printForward(line func(name, format string, args ...any), f *report.ExplainedForward) {
	line("forward", "%s", f.Text())
	for i := range f.Upstreams {
		to := &f.Upstreams[i]
		line("upstream", "%s, %s, RTT %s", to.To, to.State(), milliseconds(to.RTTSeconds))
	}
	if len(f.Upstreams) == 0 {
		line("upstream", "none is known")
	}
}
