package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/config"
)

func newCheckCommand() *cobra.Command {
	f := newAgentFlags()
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Print what the agent would do with a Corefile",
		Long: `Print what the agent would do with its Corefile and flags, and change nothing. The agent's
other flags are accepted and ignored, so that the arguments of a DaemonSet can be given.`,
		Example: "  nodens check --conf Corefile --localip 169.254.20.10",
		Args:    cli.NoArgs,
		RunE:    f.runE(runCheck),
	}
	f.registerOnly(cmd.Flags(), "conf", "basecorefile", "kubednscm", "upstreamsvc", "localip", "setupinterface",
		"interfacename", "setupiptables", "netfilter", "external-interfaces", "health-port", "dns.port", "handover-dir",
		"kernel-path", "kernel-path-order", "prometheus-listen-address")
	return cmd
}

// runCheck prints what the agent would do with its Corefile and flags. It changes nothing.
func runCheck(_ context.Context, f *agentFlags, stdout, _ io.Writer) error {
	if f.given["conf"] && !f.given["basecorefile"] {
		f.BaseConf = "" // without a fallback: a missing --conf is an error
	}
	cfg, err := f.LoadConfig()
	if err != nil {
		return err
	}
	network, err := describeNetwork(&f.Agent)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s: %d server blocks, hash %.12s\n", cfg.Path, len(cfg.Blocks), cfg.Hash)
	for _, text := range cfg.Warnings {
		fmt.Fprintf(stdout, "warning: %s\n", text)
	}
	for _, b := range cfg.Blocks {
		fmt.Fprintln(stdout)
		describeBlock(stdout, b)
		if f.FastPath != options.FastPathOff {
			fmt.Fprintf(stdout, "  kernel path    %s\n", fastPathStatus(b, cfg.Blocks))
		}
	}
	fmt.Fprintf(stdout, "\nnetwork:\n%s", indent(network))
	if f.FastPath != options.FastPathOff {
		fmt.Fprintf(stdout, "\nkernel path:\n%s", indent(describeFastPath(&f.Agent)))
	}
	if dir := f.HandoverDir; dir != "" {
		fmt.Fprintf(stdout, "\nhandover:\n%s", indent("from the previous agent and to the next one, through "+dir+"\nanswers are saved to "+f.CachePath()))
	}
	return nil
}

// describeBlock prints where b listens and what happens to a query, in the order in which
// a query passes through the directives.
func describeBlock(w io.Writer, b *config.Block) {
	for _, z := range b.Zones {
		fmt.Fprintf(w, "zone %s (line %d)\n", z, b.Line)
	}
	describeListener(w, b)
	describePolicies(w, b)
	if a := b.Autopath; a != nil {
		fmt.Fprintf(w, "  autopath       %s along %s\n", names(a.Zones), searchPath(a))
	}
	if b.Hosts != nil {
		fmt.Fprintf(w, "  hosts          %s and %d lines in the Corefile\n", b.Hosts.File, len(b.Hosts.Inline))
	}
	if e := b.K8sExternal; e != nil {
		fmt.Fprintf(w, "  k8s_external   %s with name servers below %s\n", names(e.Zones), e.Apex)
	}
	if k := b.Kubernetes; k != nil {
		fmt.Fprintf(w, "  kubernetes     %s from %s\n", names(k.Zones), clusterSource(k))
		fmt.Fprintf(w, "  in view        %s\n", clusterScope(k))
	}
	if c := b.Cache; c != nil {
		fmt.Fprintf(w, "  cache          %d answers up to %s, %d denials up to %s\n",
			c.Success.Entries, c.Success.MaxTTL, c.Denial.Entries, c.Denial.MaxTTL)
	}
	describeForward(w, b)
	describeEndpoints(w, b)
}

// describeForward says what happens to what nothing before has.
func describeForward(w io.Writer, b *config.Block) {
	switch {
	case b.Forward != nil:
	case b.Whoami != nil:
		fmt.Fprintln(w, "  whoami         answers all other queries with the client's own address")
	default:
		fmt.Fprintln(w, "  forward        to no upstream; all other queries get SERVFAIL")
	}
	for f := b.Forward; f != nil; f = f.Next {
		fmt.Fprintf(w, "  forward        %s to %s\n", f.From, names(f.To))
	}
}

// describeListener prints the addresses and the transport of b.
func describeListener(w io.Writer, b *config.Block) {
	via := "udp and tcp"
	if b.Transport != config.PlainDNS {
		via = b.Transport.String()
	}
	for _, a := range b.Listen {
		fmt.Fprintf(w, "  listens on     %s %s\n", via, a)
	}
	if b.Transport != config.PlainDNS {
		fmt.Fprintf(w, "  certificate    %s\n", b.TLS.Cert)
	}
}

// describeEndpoints prints the HTTP and dnstap addresses of b.
func describeEndpoints(w io.Writer, b *config.Block) {
	if b.Health != nil {
		fmt.Fprintf(w, "  health         http %s/health\n", b.Health.Addr)
	}
	if b.Ready != nil {
		fmt.Fprintf(w, "  ready          http %s/ready\n", b.Ready.Addr)
	}
	if b.Prometheus != nil {
		fmt.Fprintf(w, "  prometheus     http %s/metrics\n", b.Prometheus.Addr)
	}
	if b.Pprof != nil {
		fmt.Fprintf(w, "  pprof          http %s%s\n", b.Pprof.Addr, config.PprofPath)
	}
	for d := range b.Dnstap.All {
		fmt.Fprintf(w, "  dnstap         to %s://%s\n", d.Network, d.Address)
	}
}

func names[T fmt.Stringer](list []T) string {
	out := make([]string, len(list))
	for i, n := range list {
		out[i] = n.String()
	}
	return strings.Join(out, " ")
}

func clusterSource(k *config.Kubernetes) string {
	switch {
	case len(k.Manifests) > 0:
		return "the manifests in " + strings.Join(k.Manifests, ", ")
	case k.Kubeconfig != "":
		return "the API server in " + k.Kubeconfig
	case k.Endpoint != "":
		return "the API server " + k.Endpoint
	default:
		return "the API server of the pod's own cluster"
	}
}

// clusterScope returns which Services and endpoints are watched.
func clusterScope(k *config.Kubernetes) string {
	switch {
	case k.NoEndpoints:
		return "services and namespaces, no endpoints"
	case len(k.Manifests) > 0:
		return "everything in the manifests"
	case k.Scope == config.ScopeNode:
		return fmt.Sprintf("all services; endpoints of the namespaces in use on this node, each until %s after its last use; endpoints of all namespaces when %d or more are in use",
			k.ScopeIdle, k.ScopeMax+1)
	case k.AllEndpoints:
		return "all services and all endpoints"
	default:
		return "all services and the endpoints of headless ones"
	}
}

func searchPath(a *config.Autopath) string {
	if !a.Kubernetes {
		return names(a.Search)
	}
	return strings.TrimSpace("the pod's own search path " + names(a.Search))
}

func indent(s string) string {
	return "  " + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n  ") + "\n"
}

// describePolicies prints the directives of b that decide who is answered, and how.
func describePolicies(w io.Writer, b *config.Block) {
	if v := b.View; v != nil {
		fmt.Fprintf(w, "  view           %s takes %s\n", v.Name, conditions(v))
	}
	if a := b.ACL; a != nil {
		for _, r := range a.Rules {
			fmt.Fprintf(w, "  acl            %s by %d policies\n", names(r.Zones), len(r.Policies))
		}
	}
	if d := b.DNS64; d != nil {
		fmt.Fprintf(w, "  dns64          IPv4 addresses behind %s\n", d.Prefix)
	}
}

// conditions returns which queries v takes.
func conditions(v *config.View) string {
	list := make([]string, len(v.When))
	for i, e := range v.When {
		list[i] = e.String()
	}
	if len(list) == 0 {
		return "every query"
	}
	return "a query if " + strings.Join(list, ", and ")
}
