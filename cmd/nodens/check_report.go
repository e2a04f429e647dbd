package main

import (
	"fmt"
	"strings"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// check returns what the agent would do. The error is one in the flags.
func (in *checkInput) check() (*checkedConfig, error) {
	c := &checkedConfig{Source: in.source, Errors: []finding{}, Warnings: []finding{}, Notes: append([]string{}, in.notes...), Blocks: []checkedBlock{}, Differences: []string{}}
	if flags := in.flags.NoEffect; len(flags) > 0 {
		c.Notes = append(c.Notes, "flags without an effect: "+strings.Join(flags, ", "))
	}
	for _, e := range in.faults {
		c.Errors = append(c.Errors, newFinding(in, e))
	}
	if in.cfg == nil {
		return c, nil
	}
	network, err := describeNetwork(&in.flags.Agent)
	if err != nil {
		return nil, err
	}
	c.network = networkUnchanged
	if network != nil {
		n := options.NewNetwork(*network)
		c.network, c.Network = network.String(), &n
	}
	if !in.objects {
		c.Hash = in.cfg.Hash
	}
	c.Warnings = warnings(in)
	for _, b := range in.cfg.Blocks {
		c.Blocks = append(c.Blocks, in.block(b))
	}
	c.Differences = differences(in.cfg)
	if in.flags.KernelPath != options.KernelPathOff {
		c.kernelPath = describeKernelPath(&in.flags.Agent)
	}
	if dir := in.flags.HandoverDir; dir != "" {
		c.handover = "from the previous agent and to the next one, through " + dir + "\nanswers are saved to " + in.flags.CachePath()
	}
	return c, nil
}

// differences returns what cfg does otherwise than CoreDNS, with the lines.
func differences(cfg *config.Config) []string {
	list := []string{}
	for _, d := range cfg.Differences() {
		list = append(list, strings.TrimPrefix(d.At()+": "+d.Text, ": "))
	}
	return list
}

// block returns what b does, in the order in which a query passes through the directives.
func (in *checkInput) block(b *config.Block) checkedBlock {
	c := checkedBlock{Zones: nameList(b.Zones), File: in.show.Replace(b.File), Line: b.Line, Transport: b.Transport.String(), Listen: []string{}}
	if b.File != in.cfg.Path {
		c.imported = c.File + ", "
	}
	c.Listen = append(c.Listen, nameList(b.Listen)...)
	s := steps{show: in.show}
	s.addListener(b)
	s.addPolicies(b)
	s.addSources(b)
	s.addForward(b)
	s.addEndpoints(b)
	for _, name := range b.Directives() {
		if because := config.NoEffect(name); because != "" {
			s.add(name, nil, "accepted, no effect, because %s", because)
		}
	}
	s.addWritten(b)
	if in.flags.KernelPath != options.KernelPathOff {
		s.add("kernel path", nil, "%s", kernelPathStatus(b, in.cfg.Blocks))
	}
	c.Steps = s.list
	return c
}

// steps collects what a block does.
type steps struct {
	show *strings.Replacer
	list []checkedStep
}

// add adds a step. zones are those that it applies to, if it has some; the text need not have
// them.
func (s *steps) add(name string, zones []wire.Name, format string, args ...any) {
	s.list = append(s.list, checkedStep{Name: name, Zones: nameList(zones), Text: s.show.Replace(fmt.Sprintf(format, args...))})
}

func nameList[T fmt.Stringer](names []T) (list []string) {
	for _, n := range names {
		list = append(list, n.String())
	}
	return list
}

func names[T fmt.Stringer](list []T) string { return strings.Join(nameList(list), " ") }

// addZoneFiles adds the zones that the agent has itself, and who may transfer them.
func (s *steps) addZoneFiles(b *config.Block) {
	for f := b.ZoneFile; f != nil; f = f.Next {
		s.add("file", f.Zones, "%s for %s", f.Path, names(f.Zones))
		s.addFallthrough("file", f.Fallthrough)
	}
	if a := b.Auto; a != nil {
		s.add("auto", a.Zones, "files in %s that match %s for %s", a.Directory, a.Pattern, names(a.Zones))
		s.addFallthrough("auto", a.Fallthrough)
	}
	for d := b.Secondary; d != nil; d = d.Next {
		s.add("secondary", d.Zones, "%s from %s", names(d.Zones), names(d.From))
		s.addFallthrough("secondary", d.Fallthrough)
	}
	for t := b.Transfer; t != nil; t = t.Next {
		peers := "every client"
		if !t.Any {
			peers = strings.Join(nameList(t.To), ", ")
		}
		s.add("transfer", t.Zones, "%s to %s", names(t.Zones), peers)
	}
}

// addSources adds the directives that have answers.
func (s *steps) addSources(b *config.Block) {
	if a := b.Autopath; a != nil {
		s.add("autopath", a.Zones, "%s along %s", names(a.Zones), searchPath(a))
	}
	for t := b.Template; t != nil; t = t.Next {
		s.add("template", t.Zones, "%s for %s", wire.TypeName(t.Type), names(t.Zones))
		s.addFallthrough("template", t.Fallthrough)
	}
	if h := b.Hosts; h != nil {
		s.add("hosts", h.Zones, "%s and %d lines in the Corefile, for %s", h.File, len(h.Inline), names(h.Zones))
		s.addFallthrough("hosts", h.Fallthrough)
	}
	if e := b.K8sExternal; e != nil {
		s.add("k8s_external", e.Zones, "%s with name servers below %s", names(e.Zones), e.Apex)
		s.addFallthrough("k8s_external", e.Fallthrough)
	}
	if k := b.Kubernetes; k != nil {
		s.add("kubernetes", k.Zones, "%s from %s", names(k.Zones), clusterSource(k))
		s.add("in view", nil, "%s", clusterScope(k))
		if len(k.Multicluster) > 0 {
			s.add("multicluster", k.Multicluster, "%s", names(k.Multicluster))
		}
		s.addFallthrough("kubernetes", k.Fallthrough)
	}
	s.addZoneFiles(b)
	if c := b.Cache; c != nil {
		s.add("cache", c.Zones, "%d answers up to %s, %d denials up to %s, for %s",
			c.Success.Entries, c.Success.MaxTTL, c.Denial.Entries, c.Denial.MaxTTL, names(c.Zones))
		for _, off := range []struct {
			what  string
			zones []wire.Name
		}{{"answers", c.Success.Disabled}, {"denials", c.Denial.Disabled}} {
			if len(off.zones) > 0 {
				s.add("not cached", off.zones, "%s for %s", off.what, names(off.zones))
			}
		}
	}
}

// addFallthrough adds the zones for which the next source is asked.
func (s *steps) addFallthrough(directive string, f *config.Fallthrough) {
	switch {
	case f == nil:
	case len(f.Zones) == 0:
		s.add("fallthrough", nil, "from %s, for all names", directive)
	default:
		s.add("fallthrough", f.Zones, "from %s, for %s", directive, names(f.Zones))
	}
}

// addForward says what happens to queries that no directive before has answered.
func (s *steps) addForward(b *config.Block) {
	switch {
	case b.Forward != nil:
	case b.Whoami != nil:
		s.add("whoami", nil, "answers all other queries with the client's own address")
	default:
		s.add("forward", nil, "to no upstream; all other queries get SERVFAIL")
	}
	for f := b.Forward; f != nil; f = f.Next {
		text := fmt.Sprintf("%s to %s", f.From, names(f.To))
		if len(f.Except) > 0 {
			text += ", except for " + names(f.Except)
		}
		s.add(f.Name(), []wire.Name{f.From}, "%s", text)
	}
}

// addListener adds the addresses and the transport of b.
func (s *steps) addListener(b *config.Block) {
	via := "udp and tcp"
	if b.Transport != config.PlainDNS {
		via = b.Transport.String()
	}
	for _, a := range b.Listen {
		s.add("listens on", nil, "%s %s", via, a)
	}
	if b.Transport != config.PlainDNS && b.TLS != nil {
		s.add("certificate", nil, "%s", b.TLS.Cert)
	}
}

// addEndpoints adds the addresses of b for HTTP, dnstap and traces, and what it logs.
func (s *steps) addEndpoints(b *config.Block) {
	if b.Health != nil {
		s.add("health", nil, "http %s/health", b.Health.Addr)
	}
	if b.Ready != nil {
		s.add("ready", nil, "http %s/ready", b.Ready.Addr)
	}
	if b.Prometheus != nil {
		s.add("prometheus", nil, "http %s/metrics", b.Prometheus.Addr)
	}
	if b.Pprof != nil {
		s.add("pprof", nil, "http %s%s", b.Pprof.Addr, config.PprofPath)
	}
	for d := range b.Dnstap.All {
		s.add("dnstap", nil, "%s %s://%s", map[bool]string{true: "listening on", false: "to"}[d.Listen], d.Network, d.Address)
	}
	if b.Trace != nil && b.Trace.Endpoint != "" {
		s.add("trace", nil, "to %s", b.Trace.Endpoint)
	}
	for l := b.Log; l != nil; l = l.Next {
		what := describeLog(l)
		if l.Names == nil {
			s.add("log", nil, "%s for all names", what)
			continue
		}
		s.add("log", l.Names, "%s for %s", what, names(l.Names))
	}
}

// describeLog returns which queries l logs, and how.
func describeLog(l *config.Log) string {
	what := "queries"
	if len(l.Classes) > 0 {
		what = strings.Join(l.Classes, ", ")
	}
	var parts []string
	if l.Slow > 0 {
		parts = append(parts, fmt.Sprintf("those that took %s or longer", l.Slow))
	}
	others := "all"
	if l.Sample > 1 {
		others = fmt.Sprintf("one in %d", l.Sample)
	}
	switch {
	case l.Aggregate > 0:
		parts = append(parts, fmt.Sprintf("%s counted every %s", others, l.Aggregate))
	case l.Sample > 0:
		parts = append(parts, others)
	}
	if len(parts) == 0 {
		return what
	}
	return what + " (" + strings.Join(parts, "; ") + ")"
}

// addPolicies adds the directives of b that decide who is answered, and how.
func (s *steps) addPolicies(b *config.Block) {
	if v := b.View; v != nil {
		s.add("view", nil, "%s takes %s", v.Name, conditions(v))
	}
	if a := b.ACL; a != nil {
		for _, r := range a.Rules {
			s.add("acl", r.Zones, "%s by %d policies", names(r.Zones), len(r.Policies))
		}
	}
	if t := b.TSIG; t != nil {
		s.add("tsig", t.Zones, "%s with %d keys", names(t.Zones), len(t.Keys))
	}
	if d := b.DNS64; d != nil {
		s.add("dns64", nil, "IPv4 addresses behind %s", d.Prefix)
	}
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
		return fmt.Sprintf("all services; endpoints of the Services in use on this node, each until %s after its last use; endpoints of all namespaces when those of %d or more are in use",
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

// conditions returns which queries v takes.
func conditions(v *config.View) string {
	if len(v.When) == 0 {
		return "every query"
	}
	return "a query if " + strings.Join(nameList(v.When), ", and ")
}
