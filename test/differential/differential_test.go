package differential

import (
	"context"
	"flag"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/soak"
)

// agentProgram is the program that is compared with CoreDNS. Setting
// NODENS_SUBJECT=coredns compares CoreDNS with itself, which shows what the
// comparison itself makes of two runs of the same program.
func agentProgram() string {
	if s := os.Getenv("NODENS_SUBJECT"); s != "" {
		return s
	}
	return "nodens"
}

// maxReported is how many kinds of difference of one Corefile are printed, each with
// its first query and both answers.
const maxReported = 60

func TestDifferential(t *testing.T) {
	if testing.Short() {
		t.Skip("building an API server and CoreDNS takes minutes: skipped under -short")
	}
	s := newSite(t)
	s.fixedWorld = fixedWorld()
	check.NoError(t, s.write(t.Context(), s.fixedWorld))
	s.deleteSome(t)
	s.fixedNames = append(s.fixedWorld.owners(), oddNames()...)
	n := seed(t)
	t.Run("transfer", s.transfer)
	t.Run("fixed", func(t *testing.T) { s.fixed(t, n) })
	t.Run("random", func(t *testing.T) { s.random(t, n) })
	whole := []string{"", "^TestDifferential$"}                                                            // the second is that of a run that repeats failed tests
	if !t.Failed() && slices.Contains(whole, flag.Lookup("test.run").Value.String()) && n == defaultSeed { // another seed may need fewer
		reportUnused(t, s.table)
	}
}

// fixed compares each of the fixed Corefiles, side by side, by queries about everything in
// the fixed world and random ones about the seed's first world. In the usual form
// the first Corefile gets all queries, and the others share them among each other.
func (s *site) fixed(t *testing.T, n uint64) {
	g := newGenerator(n)
	check.NoError(t, s.write(t.Context(), &g.world))
	t.Cleanup(func() { s.clean(t, &g.world) })
	s.clusterDNS = s.serve(t, "coredns", corefiles[0].text, apiserver.Admin)
	facts := collectFacts(s.fixedWorld, &g.world)
	queries := func(i int) []query {
		fixed := fixedQueries(s.fixedWorld)
		if i > 0 {
			fixed = everyNth(fixed, i-1, soak.Choose(len(corefiles), 1))
		}
		return append(fixed, newAsker(g, nameOptions{}, n, uint64(i)).queries(fixedRandomQueries(), s.fixedNames)...)
	}
	for i, c := range corefiles {
		asked := queries(i)
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := s.run(t, c.caches)
			r.coredns = s.serve(t, "coredns", c.text, apiserver.Admin)
			r.agents = []agent{s.serveAgent(t, agent{name: agentProgram()}, c.text, apiserver.Agent)}
			if !c.caches && agentProgram() == "nodens" {
				whole := strings.Replace(c.text, "pods insecure\n", "pods insecure\nscope cluster\nendpoints all\n", 1)
				r.agents = append(r.agents, s.serveAgent(t, agent{name: "cluster"}, whole, apiserver.Agent))
			}
			r.endpointPodNames = strings.Contains(c.text, "endpoint_pod_names")
			r.facts = facts
			s.awaitMarks(t, []watcher{{server: s.clusterDNS}, {server: r.coredns}, {server: r.agents[0].addr}})
			r.compare(asked)
			r.report()
		})
	}
	asked := queries(len(corefiles))
	t.Run("kernel", func(t *testing.T) {
		t.Parallel()
		s.kernel(t, facts, asked)
	})
}

// everyNth returns every nth of the queries from the one with that index on. n of them
// with the indexes below n have all queries.
func everyNth(qs []query, first, n int) (some []query) {
	for i := first; i < len(qs); i += n {
		some = append(some, qs[i])
	}
	return some
}

// fixedRandomQueries is how many random queries the fixed Corefiles get.
func fixedRandomQueries() int { return soak.Choose(300, 1000) }

// defaultSeed is that of an ordinary run. A seed that nobody has tried finds what
// nobody has decided upon, now and then, and that should not keep an unrelated
// change from landing.
const defaultSeed = 15

// seed returns the seed of the random part and logs it. NODENS_SEED sets it; the
// word "random" is a new one for every run, to look for differences.
func seed(t *testing.T) uint64 {
	t.Helper()
	n := uint64(defaultSeed)
	switch s := os.Getenv("NODENS_SEED"); s {
	case "":
	case "random":
		n = rand.Uint64()
	default:
		var err error
		if n, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("NODENS_SEED is not a number: %v", err)
		}
	}
	t.Logf("NODENS_SEED=%d repeats the random part", n)
	return n
}

// deleteSome makes a service and a namespace with a service, and deletes them
// again.
func (s *site) deleteSome(t *testing.T) {
	t.Helper()
	gone := &world{}
	gone.namespace("deleted")
	gone.service("plain", "deleted", []string{"10.96.3.1"}, port("http", 80, corev1.ProtocolTCP))
	gone.service("deleted", "service", []string{"10.96.3.2"}, port("http", 80, corev1.ProtocolTCP))
	check.NoError(t, s.write(t.Context(), gone))
	check.NoError(t, s.deleteAll(t.Context(), gone))
}

// clean deletes the world when the test is over, or fails.
func (s *site) clean(t *testing.T, w *world) {
	t.Helper()
	if err := s.deleteAll(context.WithoutCancel(t.Context()), w); err != nil {
		t.Error(err)
	}
}
