package differential

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodens-dns/nodens/test/apiserver"
)

// randomCase is a Corefile that is compared over a random world that changes.
type randomCase struct {
	name string
	// zones are the kubernetes directive's; empty is the block's.
	zones string
	// options are the kubernetes directive's, and directives the block's.
	options, directives []string
	nameOptions
	marks
	// exposed says which namespaces have names; nil is all.
	exposed func(*corev1.Namespace) bool
	// keys are the zones of the block; empty is the root, or the directives'
	// zones where the cluster DNS is behind the block.
	keys string
}

// The random part's size: three rounds change most of the world, and each
// asks about as many names as it has.
const (
	rounds        = 3
	randomQueries = 700
)

// externalLines is the directive of names outside of the cluster.
func externalLines(options ...string) string {
	options = append(options, fmt.Sprintf("ttl %d", externalTTL))
	return "k8s_external " + strings.TrimSuffix(externalZone, ".") + " in-addr.arpa ip6.arpa {\n" + strings.Join(options, "\n") + "\n}"
}

// randomCases are the Corefiles. The options of each are CoreDNS's; the agent's own
// are the variants'.
func randomCases() []randomCase {
	labelled := func(ns *corev1.Namespace) bool { return ns.Labels[selectorLabel] != "" }
	some := []string{"r-a", "r-svc", "plain", "headless"}
	return []randomCase{
		{name: "insecure", options: []string{"pods insecure", "fallthrough in-addr.arpa ip6.arpa", "ttl 30"}},
		{name: "disabled", options: []string{"ttl 0"}},
		{name: "verified", options: []string{"pods verified", "fallthrough"}, marks: marks{pods: true}},
		{name: "pod-names", options: []string{"endpoint_pod_names", "pods insecure"}},
		{
			name: "namespaces", options: []string{"namespaces " + strings.Join(some, " ") + " MARKS", "pods insecure"},
			exposed: func(ns *corev1.Namespace) bool { return slices.Contains(some, ns.Name) },
		},
		{name: "namespace-labels", options: []string{"namespace_labels " + selectorLabel + "=yes", "pods verified"}, marks: marks{pods: true}, exposed: labelled},
		{name: "labels", options: []string{"labels " + selectorLabel + " in (yes)", "pods insecure"}},
		{name: "noendpoints", options: []string{"noendpoints", "pods insecure"}, marks: marks{noEndpoints: true}},
		{name: "empty", options: []string{"ignore empty_service"}},
		{name: "zonal", options: []string{"zonal", "pods insecure"}, nameOptions: nameOptions{zonal: true}},
		{
			name: "multicluster", zones: "cluster.local clusterset.local in-addr.arpa ip6.arpa",
			options: []string{"multicluster clusterset.local", "pods insecure"}, nameOptions: nameOptions{imports: true},
		},
		{
			name: "multicluster-empty", zones: "cluster.local clusterset.local",
			options: []string{"multicluster clusterset.local", "ignore empty_service", "endpoint_pod_names"}, nameOptions: nameOptions{imports: true},
		},
		{
			name: "external", zones: "cluster.local", options: []string{"pods insecure"},
			directives: []string{externalLines("fallthrough in-addr.arpa")}, nameOptions: nameOptions{external: true},
		},
		{
			name: "external-headless", zones: "cluster.local in-addr.arpa ip6.arpa", options: []string{"fallthrough"},
			directives: []string{externalLines("headless", "apex dns")}, nameOptions: nameOptions{external: true},
		},
		{name: "blocks", keys: "cluster.local 10.96.0.0/16 10.240.0.0/20 fd00:240::/30"},
		{
			name: "autopath", options: []string{"pods verified"},
			directives: []string{"autopath @kubernetes"}, nameOptions: nameOptions{searches: true}, marks: marks{pods: true},
		},
	}
}

// variant is a way in which the agent is run.
type variant struct {
	name string
	// behind says that what the view doesn't hold is asked of a cluster DNS.
	behind bool
	// options are the agent's own.
	options []string
}

func variants(c randomCase) []variant {
	if agentProgram() != "nodens" {
		return []variant{{name: agentProgram()}}
	}
	whole := []string{"scope cluster", "endpoints all"}
	if c.noEndpoints {
		whole = whole[:1]
	}
	return []variant{{name: "node"}, {name: "behind", behind: true}, {name: "cluster", options: whole}}
}

// text is the Corefile of the variant.
func (c randomCase) text(v variant) string {
	keys, zones, upstream := ".", c.zones, "UPSTREAM"
	if zones == "" && c.keys == "" {
		zones = "cluster.local in-addr.arpa ip6.arpa"
	}
	if c.keys != "" {
		// What a block of the cluster's zones forwards to counts as its DNS.
		keys, upstream = c.keys, ""
	}
	if v.behind {
		upstream = "CLUSTERDNS"
		if c.keys == "" {
			keys = zones
		}
		if c.external {
			keys += " " + externalZone
			keys = strings.Join(append(strings.Fields(keys), "in-addr.arpa", "ip6.arpa"), " ")
		}
	}
	unique := strings.Fields(keys)
	slices.Sort(unique)
	unique = slices.Compact(unique)
	block := func(keys []string, upstream string, lines ...string) string {
		if upstream != "" {
			lines = append(lines, "forward . "+upstream)
		}
		return strings.Join(keys, ":PORT ") + ":PORT {\nbind 127.0.0.1\nerrors\n" + strings.Join(lines, "\n") + "\n}\n"
	}
	lines := append([]string{"ready 127.0.0.1:READY"}, c.directives...)
	lines = append(lines, "kubernetes "+zones+" {", "kubeconfig KUBECONFIG")
	lines = append(lines, c.options...)
	lines = append(lines, v.options...)
	lines = append(lines, "}")
	text := block(unique, upstream, lines...)
	if keys != "." {
		text += block([]string{"."}, "UPSTREAM")
	}
	return text
}

// regressionSeeds are seeds that have found a fault, with the Corefile that they
// found it in. A change of the generator gives a seed another world, so what
// was found also belongs in the fixed world.
var regressionSeeds = []struct {
	corefile string
	seed     uint64
}{
	{"zonal", 2}, // weights of SRV records next to endpoints without ports
}

// random compares each Corefile of the matrix over a world of the seed, and
// over those of the seeds that have found something.
func (s *site) random(t *testing.T, n uint64) {
	for _, c := range randomCases() {
		t.Run(c.name, func(t *testing.T) { s.randomCase(t, c, n) })
		for _, r := range regressionSeeds {
			if r.corefile == c.name {
				t.Run(c.name+"-again", func(t *testing.T) { s.randomCase(t, c, r.seed) })
			}
		}
	}
}

// randomCase compares the variants of one Corefile with CoreDNS over a world that
// changes.
func (s *site) randomCase(t *testing.T, c randomCase, n uint64) {
	g := newGenerator(n)
	if err := s.write(t.Context(), &g.world); err != nil {
		t.Fatal(err)
	}
	defer s.clean(t, &g.world)
	r := s.run(t, false)
	r.coredns = s.serve(t, "coredns", s.fillMarks(c.text(variant{})), apiserver.Admin)
	s.clusterDNS = r.coredns
	servers := []netip.AddrPort{r.coredns}
	for _, v := range variants(c) {
		a := agent{name: v.name, addr: s.serve(t, agentProgram(), s.fillMarks(c.text(v)), c.apiUser()), behind: v.behind}
		r.agents = append(r.agents, a)
		servers = append(servers, a.addr)
	}
	r.podsVerified, r.endpointPodNames = c.pods, slices.Contains(c.options, "endpoint_pod_names")
	if c.external {
		r.zones = append(r.zones, externalZone)
	}
	if c.imports {
		r.zones = append(r.zones, importZone)
	}
	for round := range rounds {
		if round > 0 {
			if err := s.apply(t.Context(), g.nextChange(c.nameOptions)); err != nil {
				t.Fatal(err)
			}
		}
		m := c.marks
		m.clusters = c.imports
		// The first round's slices come into view when they are asked for.
		if round > 0 {
			m.namespaces = c.exposedNamespaces(&g.world)
		}
		s.awaitMarks(t, m, servers...)
		r.facts = collectFacts(s.fixedWorld, &g.world)
		r.compare(append(g.certainQueries(c.nameOptions), g.queries(c.nameOptions, randomQueries, s.fixedNames)...))
	}
	r.report()
}

// exposedNamespaces are the namespaces of the world whose names the Corefile has.
func (c randomCase) exposedNamespaces(w *world) []string {
	var names []string
	for _, ns := range w.namespaces {
		if c.exposed == nil || c.exposed(ns) {
			names = append(names, ns.Name)
		}
	}
	return names
}

// fillMarks fills in the namespaces that the next marks will have.
func (s *site) fillMarks(text string) string {
	var names []string
	for i := range rounds {
		names = append(names, markNamespace(s.lastMark+1+i))
	}
	return strings.ReplaceAll(text, "MARKS", strings.Join(names, " "))
}

// apiUser reads the API server for the agent. ServiceImports are not in the role
// of the manifest.
func (c randomCase) apiUser() apiserver.User {
	if c.imports {
		return apiserver.Admin
	}
	return apiserver.Agent
}
