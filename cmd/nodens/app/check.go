package app

import (
	"fmt"
	"io"
	"strings"

	"github.com/nodens-dns/nodens/internal/config"
)

// check says what the agent would do, and touches nothing.
func check(opts *options, w io.Writer) error {
	if opts.given["conf"] && !opts.given["basecorefile"] {
		opts.baseConf = "" // the file that was named is the one to check
	}
	cfg, err := opts.loadConfig()
	if err != nil {
		return err
	}
	plan, err := opts.plan()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s: %d server blocks, sha512 %.16s…\n", cfg.Path, len(cfg.Blocks), cfg.Hash)
	for _, text := range cfg.Warnings {
		fmt.Fprintf(w, "warning: %s\n", text)
	}
	for _, b := range cfg.Blocks {
		fmt.Fprintln(w)
		describe(w, b)
		if opts.kernelPath != kernelOff {
			fmt.Fprintf(w, "  kernel path    %s\n", copies(b, cfg.Blocks))
		}
	}
	fmt.Fprintf(w, "\nnetwork:\n%s", indent(plan))
	if opts.kernelPath != kernelOff {
		fmt.Fprintf(w, "\nkernel path:\n%s", indent(opts.describeKernelPath()))
	}
	if opts.handoverDir != "" {
		fmt.Fprintf(w, "\nhand-over:\n%s", indent("to the next agent, and from the one before, through "+opts.handoverDir+"\nanswers are saved to "+opts.cachePath()))
	}
	return nil
}

// describe says where b listens and what happens to a query, in the order of the
// path.
func describe(w io.Writer, b *config.Block) {
	for _, z := range b.Zones {
		fmt.Fprintf(w, "zone %s (line %d)\n", z, b.Line)
	}
	describeDoor(w, b)
	describeGuards(w, b)
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
	describeRest(w, b)
	describeEndpoints(w, b)
}

// describeRest says what happens to what nothing before has.
func describeRest(w io.Writer, b *config.Block) {
	switch {
	case b.Forward != nil:
	case b.Whoami != nil:
		fmt.Fprintln(w, "  whoami         what is not answered above is, with the client's own address")
	default:
		fmt.Fprintln(w, "  forward        nothing; what is not answered above is SERVFAIL")
	}
	for f := b.Forward; f != nil; f = f.Next {
		fmt.Fprintf(w, "  forward        %s to %s\n", f.From, names(f.To))
	}
}

// describeDoor says how clients come to b.
func describeDoor(w io.Writer, b *config.Block) {
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

// describeEndpoints says which HTTP addresses b has.
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
		fmt.Fprintf(w, "  pprof          http %s%s\n", b.Pprof.Addr, profiles)
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

// clusterScope says whose endpoints are watched.
func clusterScope(k *config.Kubernetes) string {
	switch {
	case k.NoEndpoints:
		return "services and namespaces, no endpoints"
	case len(k.Manifests) > 0:
		return "all that is in the manifests"
	case k.Scope == config.ScopeNode:
		return fmt.Sprintf("all services; endpoints of the namespaces that this node uses, each for %s after its last use; of all from %d namespaces on",
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
