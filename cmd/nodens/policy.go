package main

import (
	"cmp"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

// newPolicyCommand returns `nodens policy`.
func newPolicyCommand() *cobra.Command {
	s := new(adminSocket)
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Show which DNSPolicies bind the pods of this node",
		Long: `Show which DNSPolicies bind the pods of this node, and how many queries each policy has denied, or
would have denied in audit mode. It asks the agent through its admin socket. "nodens explain" says
what the policies of a pod decide about a name.

Exit codes: 0 done; 1 no agent answers; 2 a flag or an argument is not valid.`,
		Example: "  nodens policy\n  nodens policy -o json",
		Args:    cli.NoArgs,
	}
	s.register(cmd.Flags())
	output := cli.AddTableOutput(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return show(cmd, s, output, "/policies", nil, printPolicies)
	}
	return cmd
}

// policyRow is a policy of an address.
type policyRow struct {
	pod *report.PolicyPod
	*report.BoundPolicy
}

// policyColumns are the columns of the table.
var policyColumns = []column[policyRow]{
	{"NAMESPACE", func(r *policyRow) string { return cmp.Or(r.pod.Namespace, "-") }},
	{"POD", func(r *policyRow) string { return cmp.Or(r.pod.Pod, "-") }},
	{"ADDRESS", func(r *policyRow) string { return r.pod.Address }},
	{"POLICY", func(r *policyRow) string { return r.Name }},
	{"MODE", func(r *policyRow) string { return r.Mode }},
	{"DEFAULT", func(r *policyRow) string { return r.Default }},
	{"NAMES", func(r *policyRow) string { return fmt.Sprint(r.Names) }},
	{"DENIED", func(r *policyRow) string { return fmt.Sprint(r.Denied) }},
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
		for j := range p.Pods[i].Policies {
			rows = append(rows, policyRow{&p.Pods[i], &p.Pods[i].Policies[j]})
		}
	}
	return printTable(w, policyColumns, rows, p.More, " addresses")
}
