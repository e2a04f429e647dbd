package differential

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/miekg/dns"
)

// agent is a server that is compared with CoreDNS.
type agent struct {
	name string
	addr netip.AddrPort
	// behind says that it forwards what CoreDNS answers itself. It asks in
	// lower case, and gives the query's letters to the query's name.
	behind bool
	// admin explains its answers; nil: they are not explained.
	admin *adminSocket
	// pod is the namespace that it is asked from, the test's own where it is empty.
	// From a pod each query is asked once more: the kernel may answer it.
	pod string
}

// run compares the servers of one Corefile with CoreDNS.
type run struct {
	t       *testing.T
	table   []*knownDifference
	caches  bool
	started time.Time
	coredns netip.AddrPort
	agents  []agent

	// These are for comparison.
	facts                          objectFacts
	zones                          []string
	podsVerified, endpointPodNames bool

	// knownAnswers are the answers that known differences have asked for: views by the query's text.
	knownAnswers sync.Map

	mu        sync.Mutex // holds what follows
	id        uint16
	asked     int
	different map[string]*differenceGroup
	// forecasts are what the explanations of the queries since the last check say, by agent.
	forecasts map[*adminSocket][]forecast
	// batches is how many batches of queries were begun.
	batches int
	// explanations were compared; certain of them name the rcode.
	explanations, certain int
}

// differenceGroup is differences that look the same in outline.
type differenceGroup struct {
	outline string
	count   int
	first   string
}

// compare asks all servers each of the queries. Where there are caches one
// query is under way at a time, so that they fill in the same order; only
// those that may stay without an answer are asked side by side.
func (r *run) compare(qs []query) {
	// The world may have changed since the last time.
	r.knownAnswers.Clear()
	var aside, inOrder []query
	for _, q := range qs {
		if q.dropped || !r.caches {
			aside = append(aside, q)
		} else {
			inOrder = append(inOrder, q)
		}
	}
	for batch := range slices.Chunk(inOrder, explainedBatch()) {
		r.startExplaining(batch)
		for _, q := range batch {
			if err := r.compareQuery(q); err != nil {
				r.t.Fatal(err)
			}
		}
		r.checkExplained()
	}
	for batch := range slices.Chunk(aside, explainedBatch()) {
		r.startExplaining(batch)
		if err := forEachParallel(batch, r.compareQuery); err != nil {
			r.t.Fatal(err)
		}
		r.checkExplained()
	}
}

// compareQuery asks all servers one query, and again where the second answer comes
// from a cache, or the kernel, or the third from the kernel.
func (r *run) compareQuery(q query) error {
	times := 1
	if r.caches {
		times++
	}
	if r.agents[0].pod != "" {
		times++
	}
	for _, round := range []string{"first", "second", "third"}[:times] {
		want, _, err := ask(r.coredns, q, r.nextID())
		if err != nil {
			return err
		}
		for _, a := range r.agents {
			expected := r.explain(a, q)
			q.namespace = a.pod
			got, size, err := ask(a.addr, q, r.nextID())
			q.namespace = ""
			r.explained(a, q, expected, got)
			if err != nil {
				return err
			}
			if size > q.maxSize() {
				r.t.Errorf("%s: %s is %d bytes long", a.name, q, size)
			}
			r.compareViews(a, round+" answer to "+q.String(), q, want, got)
		}
	}
	return nil
}

func (r *run) nextID() uint16 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.id++
	return r.id
}

// compareViews compares two answers and keeps what differs.
func (r *run) compareViews(a agent, what string, q query, want, got view) {
	if r.caches {
		want, got = want.lowerCase(q.name, true), got.lowerCase(q.name, false)
	}
	same := r.equal(want, got) || r.isKnown(a, q, want, got)
	if !same && a.behind {
		want, got = want.lowerCase(q.name, true), got.lowerCase(q.name, false)
		same = r.equal(want, got) || r.isKnown(a, q, want, got)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if same {
		return
	}
	outline := fmt.Sprintf("%s: CoreDNS %s, %s %s", dns.Type(q.qtype), want.outline(), a.name, got.outline())
	g := r.different[outline]
	if g == nil {
		g = &differenceGroup{outline: outline, first: fmt.Sprintf("%s\nCoreDNS:\n%v%s:\n%v", what, want, a.name, got)}
		r.different[outline] = g
	}
	g.count++
}

// isKnown looks the difference up in the table of those that are meant.
func (r *run) isKnown(a agent, q query, want, got view) bool {
	c := r.comparison(q, want)
	c.got = got
	if matchKnown(r.table, c, got, r.equal) {
		return true
	}
	if !a.behind {
		return false
	}
	// The names on a search path may be forwarded too.
	c.agentAnswer = r.askCoreDNS
	return matchKnown(r.table, c, got, r.equal)
}

// comparison is the query with CoreDNS's answer, folded where the run's are.
func (r *run) comparison(q query, want view) comparison {
	return comparison{
		query: q, view: want.clone(), objectFacts: r.facts, zones: r.zones, podsVerified: r.podsVerified, endpointPodNames: r.endpointPodNames, caches: r.caches, ask: r.askCoreDNS,
		agentAnswer: func(q query) view {
			table := clientIndependentDifferences()
			c, _ := applyQueryRewrites(table, r.comparison(q, r.askCoreDNS(q)))
			v, _ := expectedView(table, c)
			return v
		},
	}
}

// askCoreDNS is CoreDNS's answer to a query of a known difference.
func (r *run) askCoreDNS(q query) view {
	if v, ok := r.knownAnswers.Load(q.String()); ok {
		return v.(view)
	}
	silent := q
	silent.dropped = q.dropped || unanswered(q)
	v, _, err := ask(r.coredns, silent, r.nextID())
	if err != nil {
		r.t.Error(err)
	}
	if r.caches {
		v = v.lowerCase(q.name, true)
	}
	r.knownAnswers.Store(q.String(), v)
	return v
}

// equal reports whether an agent's view is CoreDNS's, but for what [view.adoptServer] takes over.
func (r *run) equal(want, got view) bool {
	return gocmp.Equal(r.adoptCacheTTLs(want.adoptServer(got), got), got)
}

// adoptCacheTTLs lets TTLs differ by the time that a cache may have held a record, and
// a second for the rounding, where the Corefile has caches.
func (r *run) adoptCacheTTLs(want, got view) view {
	if !r.caches {
		return want
	}
	return want.adoptTTLs(got, uint32(time.Since(r.started)/time.Second)+1)
}

// report prints the differences, the most frequent ones first.
func (r *run) report() {
	groups := slices.SortedFunc(maps.Values(r.different), func(a, b *differenceGroup) int {
		return cmp.Or(b.count-a.count, strings.Compare(a.outline, b.outline))
	})
	all := 0
	for i, g := range groups {
		all += g.count
		if i < maxReported {
			r.t.Errorf("%d times %s\nfor example %s", g.count, g.outline, g.first)
		}
	}
	r.t.Logf("%d answers compared, %d differ in %d ways", r.asked, all, len(groups))
	r.reportExplained()
}
