package main

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/cmd/nodens/kubectl"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

// draftUsage describes --draft.
const draftUsage = "show what the DNSPolicy in `file` would deny; - for the standard input"

// newPolicyCommand returns `nodens policy`.
func newPolicyCommand() *cobra.Command {
	s, draft := new(adminSocket), ""
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Show which DNSPolicies bind the pods of this node",
		Long: `Show which DNSPolicies bind the pods of this node, and how many queries each policy has denied, or
would have denied in audit mode. It asks the agent through its admin socket. "nodens explain" says
what the policies of a pod decide about a name.

With --draft, show which names the policy in a file would deny if it were in the cluster. Only names
that the agent has in memory are looked at: the most frequent ones of the last half hour to hour.
Nothing changes.

Exit codes: 0 done; 1 no agent answers; 2 a flag or an argument is not valid.`,
		Example: "  nodens policy\n  nodens policy --draft payment.yaml\n  nodens policy -o json",
		Args:    cli.NoArgs,
	}
	s.register(cmd.Flags())
	cmd.Flags().StringVar(&draft, "draft", "", draftUsage)
	output := cli.AddTableOutput(cmd.Flags())
	cmd.RunE = interruptible(func(cmd *cobra.Command, _ []string) error {
		if draft == "" {
			return show(cmd, s, output, "/policies", nil, printPolicies)
		}
		text, err := readDraft(draft, cmd.InOrStdin())
		if err != nil {
			return err
		}
		reply := new(report.DraftPolicy)
		if err := s.post(cmd.Context(), "/policies/draft", text, reply); err != nil {
			return err
		}
		return output.Print(cmd.OutOrStdout(), reply, func(w io.Writer) error { return printDraft(w, &reply.Draft) })
	})
	return cmd
}

// newPluginPolicyCommand returns `kubectl nodens policy`.
func newPluginPolicyCommand() *cobra.Command {
	draft := ""
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Show which DNSPolicies bind which pods of a cluster",
		Long: `Show which DNSPolicies bind which pods of a cluster, and how many queries each policy has denied on
the node of the pod, or would have denied in audit mode.

With --draft, show which names the policy in a file would deny if it were in the cluster. Only names
that the agents have in memory are looked at: the most frequent ones of each node in the last half
hour to hour. Nothing changes.`,
		Example: "  kubectl nodens policy\n  kubectl nodens policy --draft payment.yaml",
		Args:    cli.NoArgs,
	}
	cluster := addCluster(cmd.Flags())
	cmd.Flags().StringVar(&draft, "draft", "", draftUsage)
	output := cli.AddTableOutput(cmd.Flags())
	cmd.RunE = interruptible(func(cmd *cobra.Command, _ []string) error {
		if draft == "" {
			c, err := kubectl.Policies(cmd.Context(), cluster)
			if err != nil {
				return err
			}
			return cmp.Or(printCluster(cmd.OutOrStdout(), output, c, &c.Cluster, func(w io.Writer) error { return printClusterPolicies(w, c) }), errUnanswered(&c.Cluster))
		}
		text, err := readDraft(draft, cmd.InOrStdin())
		if err != nil {
			return err
		}
		c, err := kubectl.DraftPolicy(cmd.Context(), cluster, text)
		if err != nil {
			return err
		}
		return cmp.Or(printCluster(cmd.OutOrStdout(), output, c, &c.Cluster, func(w io.Writer) error { return printDraft(w, &c.Draft) }), errUnanswered(&c.Cluster))
	})
	return cmd
}

// readDraft reads a draft of a policy.
func readDraft(path string, stdin io.Reader) ([]byte, error) {
	from, err := openInput(path, stdin)
	if err != nil {
		return nil, fmt.Errorf("--draft: %w", err)
	}
	defer from.Close()
	text, err := io.ReadAll(io.LimitReader(from, report.MaxDraft+1))
	if err == nil && len(text) > report.MaxDraft {
		err = fmt.Errorf("%s has more than %d MiB", path, report.MaxDraft>>20)
	}
	if err != nil {
		return nil, fmt.Errorf("--draft: %w", err)
	}
	return text, nil
}

// policyRow is a policy of an address.
type policyRow struct {
	node string
	pod  *report.PolicyPod
	*report.BoundPolicy
}

// policyColumns returns the columns of the table, with the node for a cluster.
func policyColumns(cluster bool) []column[policyRow] {
	return append(when(cluster, column[policyRow]{"NODE", func(r *policyRow) string { return r.node }}), []column[policyRow]{
		{"NAMESPACE", func(r *policyRow) string { return cmp.Or(r.pod.Namespace, "-") }},
		{"POD", func(r *policyRow) string { return cmp.Or(r.pod.Pod, "-") }},
		{"ADDRESS", func(r *policyRow) string { return r.pod.Address }},
		{"POLICY", func(r *policyRow) string { return r.Name }},
		{"MODE", func(r *policyRow) string { return r.Mode }},
		{"DEFAULT", func(r *policyRow) string { return r.Default }},
		{"NAMES", func(r *policyRow) string { return fmt.Sprint(r.Names) }},
		{"DENIED", func(r *policyRow) string { return fmt.Sprint(r.Denied) }},
	}...)
}

// policyRows returns a row for each policy of the pod.
func policyRows(rows []policyRow, node string, pod *report.PolicyPod) []policyRow {
	for i := range pod.Policies {
		rows = append(rows, policyRow{node, pod, &pod.Policies[i]})
	}
	return rows
}

// printPolicies prints p as a table.
func printPolicies(w io.Writer, p *report.Policies, _ bool) error {
	switch {
	case p.Unknown == "off":
		fmt.Fprintln(w, "The agent watches no DNSPolicies; it has to run with --dns-policies=open or closed.")
		return nil
	case !p.Known:
		fmt.Fprintf(w, "The agent does not know all policies and pods yet. Clients that it does not know: %s.\n", map[string]string{"open": "are bound by no policy", "closed": "get no answers"}[p.Unknown])
	}
	if len(p.Pods) == 0 {
		fmt.Fprintln(w, "No policy binds a pod of this node.")
		return nil
	}
	var rows []policyRow
	for i := range p.Pods {
		rows = policyRows(rows, "", &p.Pods[i])
	}
	return printTable(w, policyColumns(false), rows, p.More, " addresses")
}

// printClusterPolicies prints the policies of a cluster as a table.
func printClusterPolicies(w io.Writer, c *report.ClusterPolicies) error {
	if len(c.Pods) == 0 {
		fmt.Fprintf(w, "No policy binds a pod of %s.\n", nodesText(c.Nodes))
		return nil
	}
	var rows []policyRow
	for i := range c.Pods {
		rows = policyRows(rows, c.Pods[i].Node, &c.Pods[i].PolicyPod)
	}
	return printTable(w, policyColumns(true), rows, c.More, " addresses")
}

// draftColumns are the columns of the names that a draft would deny.
var draftColumns = []column[report.DraftDenial]{
	{"POD", func(n *report.DraftDenial) string { return n.Namespace + "/" + n.Pod }},
	{"QUERIES", func(n *report.DraftDenial) string { return fmt.Sprint(n.Queries) }},
	{"NAME", func(n *report.DraftDenial) string { return n.Name }},
	{"POLICY", func(n *report.DraftDenial) string { return n.Policy }},
	{"NOW", func(n *report.DraftDenial) string {
		return map[bool]string{true: "denied", false: "allowed"}[n.DeniedNow]
	}},
}

// printDraft prints what a draft would deny, and which names that is about.
func printDraft(w io.Writer, d *report.Draft) error {
	if d.Addresses == 0 {
		fmt.Fprintln(w, "The policy would bind no pod that an agent knows: see its namespace and its podSelector.")
		return nil
	}
	fmt.Fprintf(w, "%d addresses of pods: %d of %d queries of the last %s would be denied", d.Addresses, d.Denied, d.Queries, seconds(d.WindowSeconds).Round(time.Second))
	if d.KernelSample > 0 {
		fmt.Fprintf(w, "; of the answers from the kernel, 1 in %d is sampled", d.KernelSample)
	}
	if d.Floor > 0 {
		fmt.Fprintf(w, "; names that are not counted have at most %d queries each", d.Floor)
	}
	fmt.Fprintln(w)
	if len(d.Names) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return printTable(w, draftColumns, d.Names, d.More, " names")
}
