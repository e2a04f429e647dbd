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
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

// explainFlags are the flags and arguments of `nodens explain`.
type explainFlags struct {
	socket      adminSocket
	name, qtype string
	from        string
	server      string
	ndots       string // "" for the pod's own
	tcp, dnssec bool
	ask         bool
}

// defaultNdots is the option ndots in the resolv.conf of pods.
const defaultNdots = 5

func newExplainCommand() *cobra.Command {
	f := new(explainFlags)
	cmd := &cobra.Command{
		Use:   "explain NAME [TYPE]",
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
		Args:    cli.Args(1, 2, "a name, and perhaps a record type"),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.from, "from", "", "`client`: NAMESPACE/NAME of a pod of this node, its name alone, or an address; without it the node itself")
	f.register(flags)
	f.socket.register(flags)
	output := cli.AddTableOutput(flags)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.setArgs(args)
		return runExplain(cmd.Context(), f, output, cmd.OutOrStdout())
	}
	return cmd
}

// register adds the flags that say how the client asks.
func (f *explainFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.server, "server", "", "`address` of the listener that is asked; without it the first one for plain DNS in the Corefile")
	flags.StringVar(&f.ndots, "ndots", "", "`number` of dots from which on the client asks for NAME as it is first; without it the option in the pod's dnsConfig, or 5")
	flags.BoolVar(&f.tcp, "tcp", false, "the query comes over TCP")
	flags.BoolVar(&f.dnssec, "dnssec", false, "the query asks for DNSSEC records (DO bit)")
	flags.BoolVar(&f.ask, "ask", false, "then really ask: upstreams are asked, and the query is counted and logged as the client's")
}

// setArgs reads the arguments: a name, and perhaps a type.
func (f *explainFlags) setArgs(args []string) {
	f.name, f.qtype = args[0], "A"
	if len(args) > 1 {
		f.qtype = args[1]
	}
}

func runExplain(ctx context.Context, f *explainFlags, output *cli.Output, stdout io.Writer) error {
	query := url.Values{"name": {f.name}, "type": {f.qtype}, "from": {f.from}, "server": {f.server}, "ndots": {f.ndots}, "dnssec": {strconv.FormatBool(f.dnssec)}}
	if f.tcp {
		query.Set("protocol", "tcp")
	}
	method := http.MethodGet
	if f.ask {
		method = http.MethodPost
	}
	var e report.Explanation
	if err := f.socket.ask(ctx, method, "/explain", query, &e); err != nil {
		return err
	}
	return output.Print(stdout, e, func(w io.Writer) error { return printExplanation(w, &e, output.Wide()) })
}

// printExplanation writes who asks, the queries if there are several, and the details of the last query, or
// of all with wide.
func printExplanation(out io.Writer, e *report.Explanation, wide bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	printClient(w, e)
	if len(e.Questions) > 1 {
		fmt.Fprintln(w, "\nQUERY\tNAME\tANSWERED BY\tREPLY\tCOST")
		for i := range e.Questions {
			q := &e.Questions[i]
			number := strconv.Itoa(i + 1)
			if q.Conditional {
				number += "?"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", number, q.Name, askedSource(q), askedResult(q), costText(q))
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

// askedSource and askedResult return who answers the query, and the result. If the query was asked, they describe the real reply.
func askedSource(q *report.ExplainedQuestion) string {
	if q.Asked != nil {
		return q.Asked.AnsweredBy()
	}
	return q.AnsweredBy()
}

func askedResult(q *report.ExplainedQuestion) string {
	if q.Asked != nil {
		return q.Asked.Result()
	}
	return q.Result()
}

// costText says what the query costs.
func costText(q *report.ExplainedQuestion) string {
	if q.Asked != nil {
		return "took " + tookText(q.Asked.Seconds)
	}
	return q.Cost(milliseconds)
}

// printQuestion writes the steps of one query, and the reply.
func printQuestion(out io.Writer, q *report.ExplainedQuestion) error {
	fmt.Fprintf(out, "\n%s %s\n\n", q.Name, q.Type)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
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
	if q.MoreSteps > 0 {
		fmt.Fprintf(w, "and %d more steps\n", q.MoreSteps)
	}
	fmt.Fprintln(w)
	line := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
	line("answered by", "%s", q.AnsweredBy())
	line("reply", "%s", q.ResultTTL())
	printReply(line, &q.ExplainedReply)
	if q.Forward != nil {
		printForward(line, q.Forward)
	}
	if q.Asked != nil {
		printAsked(line, q.Asked)
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

// printAsked writes what became of the query.
func printAsked(line func(name, format string, args ...any), a *report.AskedQuestion) {
	line("asked", "%s, by %s in %s", a.ResultTTL(), a.AnsweredBy(), tookText(a.Seconds))
	printReply(line, &a.ExplainedReply)
}

// tookText returns a time with two or three digits.
func tookText(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
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
