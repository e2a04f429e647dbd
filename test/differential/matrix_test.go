package differential

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/soak"
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

// rounds is how often the random part asks: the world changes before each round but the first,
// and three rounds change most of it.
func rounds() int { return soak.Choose(2, 3) }

// randomQueries is how many random queries a Corefile gets in a round. A world has about 700 names.
func randomQueries() int { return soak.Choose(120, 700) }

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

// casesPerWorld is how many Corefiles are compared over one world at the same time: writing a world
// costs as much as comparing the answers about it, and each Corefile takes four processes.
const casesPerWorld = 8

// random compares each Corefile of the matrix over a world of the seed, and
// over those of the seeds that have found something.
func (s *site) random(t *testing.T, n uint64) {
	world := func(cases []randomCase, n uint64) {
		t.Run(fmt.Sprintf("seed-%d", n), func(t *testing.T) { s.randomWorld(t, cases, n) })
	}
	for group := range slices.Chunk(randomCases(), casesPerWorld) {
		world(group, n)
	}
	for _, r := range regressionSeeds {
		world(slices.DeleteFunc(randomCases(), func(c randomCase) bool { return c.name != r.corefile }), r.seed)
	}
}

// caseServers are the servers of one Corefile, and the queries for them.
type caseServers struct {
	randomCase
	coredns netip.AddrPort
	agents  []agent
	asker   *asker
}

// randomWorld compares the variants of each Corefile with CoreDNS over a world that
// changes.
func (s *site) randomWorld(t *testing.T, cases []randomCase, n uint64) {
	g := newGenerator(n)
	check.NoError(t, s.write(t.Context(), &g.world))
	t.Cleanup(func() { s.clean(t, &g.world) }) // the servers have ended by then
	all := s.startCases(t, cases)
	for i, c := range all {
		c.asker = newAsker(g, c.nameOptions, n, uint64(i))
	}
	for round := range rounds() {
		if round > 0 {
			for _, c := range all {
				c.asker.keepNames()
			}
			change := g.nextChange()
			check.NoError(t, s.apply(t.Context(), change))
			for _, c := range all {
				c.asker.noteChange(change)
			}
		}
		s.awaitCaseMarks(t, all, &g.world, round)
		facts := collectFacts(s.fixedWorld, &g.world)
		for _, c := range all {
			t.Run(fmt.Sprintf("round-%d/%s", round+1, c.name), func(t *testing.T) {
				r := s.caseRun(t, c)
				r.facts, r.batches = facts, round
				r.compare(append(c.asker.certainQueries(), c.asker.queries(randomQueries(), s.fixedNames)...))
				r.report()
			})
		}
	}
}

// startCases starts CoreDNS with each Corefile, and the agents that are compared with it. Most of a start is waiting,
// so all start at once, but the agents after CoreDNS, which some of them forward to.
func (s *site) startCases(t *testing.T, cases []randomCase) []*caseServers {
	t.Helper()
	var all []*caseServers
	var servers []*server
	await := func() {
		for _, started := range servers {
			started.await(t)
		}
		servers = nil
	}
	for _, c := range cases {
		coredns := s.start(t, "coredns", s.fillMarks(c.text(variant{})), apiserver.Admin)
		servers = append(servers, coredns)
		all = append(all, &caseServers{randomCase: c, coredns: coredns.addr})
	}
	await()
	for _, c := range all {
		s.clusterDNS = c.coredns
		for _, v := range variants(c.randomCase) {
			a, started := s.startAgent(t, agent{name: v.name, behind: v.behind}, s.fillMarks(c.text(v)), c.apiUser())
			servers = append(servers, started)
			c.agents = append(c.agents, a)
		}
	}
	await()
	return all
}

// caseRun is a comparison of the servers of a Corefile.
func (s *site) caseRun(t *testing.T, c *caseServers) *run {
	t.Helper()
	r := s.run(t, false)
	r.coredns, r.agents = c.coredns, c.agents
	r.podsVerified, r.endpointPodNames = c.pods, slices.Contains(c.options, "endpoint_pod_names")
	if c.external {
		r.zones = append(r.zones, externalZone)
	}
	if c.imports {
		r.zones = append(r.zones, importZone)
	}
	return r
}

// awaitCaseMarks waits until all servers have seen the world as it is in that round.
func (s *site) awaitCaseMarks(t *testing.T, all []*caseServers, w *world, round int) {
	t.Helper()
	var watchers []watcher
	for _, c := range all {
		m := c.marks
		m.clusters = c.imports
		// The first round's slices come into view when they are asked for.
		if round > 0 {
			m.namespaces = c.exposedNamespaces(w)
		}
		watchers = append(watchers, watcher{m, c.coredns})
		for _, a := range c.agents {
			watchers = append(watchers, watcher{m, a.addr})
		}
	}
	s.awaitMarks(t, watchers)
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
	for i := range rounds() {
		names = append(names, markNamespace(int(s.marks.Load())+1+i))
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
