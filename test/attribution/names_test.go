package attribution

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/rig/testbed"
	"github.com/nodens-dns/nodens/test/soak"
)

const (
	// nameClients is the number of clients that ask for names.
	nameClients = 20
	// distinct is the number of names in each topic, more than the 256 that the agent's tables have.
	distinct = 600
	// hotName is a name that all clients often ask for.
	hotName = "hot." + testbed.Zone + "."
)

// nameCounts are how often each name of a topic was asked for.
type nameCounts map[string]uint64

func (c nameCounts) sum() (n uint64) {
	for _, count := range c {
		n += count
	}
	return n
}

// askedNames has the names of each topic.
type askedNames struct {
	mu     sync.Mutex
	topics map[string]nameCounts
}

func (a *askedNames) add(topic, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.topics[topic] == nil {
		a.topics[topic] = make(nameCounts)
	}
	a.topics[topic][name]++
}

// TestNames: the numbers of the names that are asked for, fail, or are search waste are within the bounds that
// the report itself gives, for each name with a row and for each without. If only a part of the queries is
// counted, they are right but for what chance explains.
func TestNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		kernel  bool
		queries int           // of each client
		pause   time.Duration // of each client after a query
		sampled bool
	}{
		// At most 800 queries a second: all are counted.
		{name: "all", queries: soak.Choose(100, 1000), pause: 25 * time.Millisecond},
		{name: "sampled", queries: soak.Choose(1500, 20_000), sampled: true},
		{name: "kernel", kernel: true, queries: soak.Choose(1500, 20_000), sampled: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			skipUnusable(t, c.kernel)
			n := newNode(t, c.kernel)
			asked := &askedNames{topics: make(map[string]nameCounts)}
			n.askNames(asked, c.queries, c.pause)
			for _, topic := range []string{"queries", "failing", "waste"} {
				n.checkTopic(topic, asked.topics[topic], c.sampled && topic != "failing")
			}
		})
	}
}

// askNames lets clients ask for names, some more often than others.
func (n *node) askNames(asked *askedNames, queries int, pause time.Duration) {
	n.t.Helper()
	f := &podFactory{next: podNet4.Addr().Next().Next()}
	var wg sync.WaitGroup
	for i := range nameClients {
		p := f.pod(f.addrs()[:1])
		n.start(p)
		random := rand.New(rand.NewPCG(uint64(i), 1))
		s, err := openSession(p.ns, p.addrs[0], random, nil)
		n.must(err)
		n.t.Cleanup(s.close)
		wg.Go(func() {
			zipf := rand.NewZipf(random, 1.1, 1, distinct-1)
			for range queries {
				if err := s.askName(zipf, asked); err != nil {
					n.t.Error(err)
					return
				}
				time.Sleep(pause)
			}
		})
	}
	wg.Wait()
	if n.t.Failed() {
		n.t.FailNow()
	}
}

// askName asks for a name, and adds it to the topics that it belongs to.
func (s *session) askName(zipf *rand.Zipf, asked *askedNames) error {
	number, parent := zipf.Uint64(), ""
	name, rcode, topic := hotName, dns.RcodeSuccess, ""
	switch s.random.IntN(5) {
	case 0:
		name = fmt.Sprintf("name-%d.%s.", number, testbed.Zone)
	case 1:
		name, rcode, topic = fmt.Sprintf("name-%d.fail.test.", number), dns.RcodeServerFailure, "failing"
	case 2:
		parent = fmt.Sprintf("site-%d.example.ns-0.svc.cluster.local.", number)
		name, rcode, topic = "www."+parent, dns.RcodeNameError, "waste"
	}
	got, err := s.exchange(name, false)
	if err != nil || got != rcode {
		return fmt.Errorf("the reply for %s is %s: %w", name, dns.RcodeToString[got], err)
	}
	asked.add("queries", name)
	switch topic {
	case "failing":
		asked.add(topic, name)
	case "waste":
		asked.add(topic, parent)
	}
	return nil
}

// checkTopic compares the report about a topic with what was asked.
func (n *node) checkTopic(topic string, asked nameCounts, sampled bool) {
	n.t.Helper()
	r := n.names(topic)
	// of returns how much an estimate of count queries may differ.
	of := func(count uint64) float64 {
		if !sampled {
			return 0
		}
		return deviations * math.Sqrt(maxWeight*float64(count+maxWeight))
	}
	if total := asked.sum(); math.Abs(float64(r.Queries)-float64(total)) > of(total) {
		n.t.Errorf("%s: %d queries, want %d ± %.0f", topic, r.Queries, total, of(total))
	}
	rows := make(map[string]report.Name)
	for _, row := range r.Names {
		rows[row.Name] = row
		count, known := asked[row.Name]
		least, most := float64(row.Queries)-float64(row.Error), float64(row.Queries)
		if !known || float64(count) < least-of(count) || float64(count) > most+of(count) {
			n.t.Errorf("%s: %s: %d queries with an error of %d, want %d ± %.0f", topic, row.Name, row.Queries, row.Error, count, of(count))
		}
	}
	missing := 0
	for name, count := range asked {
		if _, ok := rows[name]; !ok && r.More == 0 {
			missing++
			if float64(count) > float64(r.Floor)+of(count) {
				n.t.Errorf("%s: %s has no row, but was asked for %d times, more than %d ± %.0f", topic, name, count, r.Floor, of(count))
			}
		}
	}
	top := r.Names[0]
	n.t.Logf("%s: %d names, %d rows, at most %d queries of the %d others; %d of %d queries; %s: %d, error ≤%d, asked for %d times",
		topic, len(asked), len(rows), r.Floor, missing, r.Queries, asked.sum(), top.Name, top.Queries, top.Error, asked[top.Name])
}

const (
	// maxWeight is the most queries that a sample stands for here: 64 in the kernel, and at the socket 64 at up to
	// 64,000 queries a second.
	maxWeight = 64
	// deviations is how many standard deviations an estimate may differ. By chance, it differs by more
	// once in a billion.
	deviations = 6
)
