package resolver

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// maxAggregated bounds what an Aggregate keeps: the others are counted together.
const maxAggregated = 500

// Aggregate counts queries by the client's workload, the name and the rcode, and logs a line for each of
// these after an interval. The zero value is not ready: Logger and Interval must be set. It is safe for
// concurrent use.
type Aggregate struct {
	Logger   *slog.Logger
	Interval time.Duration

	mu     sync.Mutex
	counts map[aggregateKey]uint64
	// others are the queries of an interval beyond the bound.
	others  uint64
	timer   *time.Timer // nil: nothing is counted
	stopped bool
}

// aggregateKey is what queries are counted by.
type aggregateKey struct {
	namespace, workload string
	name                wire.Name
	rcode               string // "" without a reply
}

// add counts r. answered says that there is a reply.
func (a *Aggregate) add(r *Request, answered bool) {
	namespace, pod := r.owner()
	key := aggregateKey{namespace: namespace, workload: workloadName(pod.Workload), name: wire.Name(r.Query.Name())}
	if answered {
		key.rcode = r.reply.Rcode().String()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		return
	}
	if a.timer == nil {
		a.counts = make(map[aggregateKey]uint64)
		a.timer = time.AfterFunc(a.Interval, a.write)
	}
	if n := a.counts[key]; n == 0 && len(a.counts) >= maxAggregated {
		a.others++
		return
	}
	a.counts[key]++
}

// Stop logs the queries counted so far. Later ones are not counted.
func (a *Aggregate) Stop() {
	a.mu.Lock()
	a.stopped = true
	pending := a.timer != nil && a.timer.Stop()
	a.mu.Unlock()
	if pending {
		a.write()
	}
}

// write logs what is counted, the most frequent first, and begins anew.
func (a *Aggregate) write() {
	a.mu.Lock()
	counts, others := a.counts, a.others
	a.counts, a.others, a.timer = nil, 0, nil
	a.mu.Unlock()
	keys := make([]aggregateKey, 0, len(counts))
	for key := range counts {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(x, y aggregateKey) int {
		return cmp.Or(cmp.Compare(counts[y], counts[x]), cmp.Compare(x.namespace, y.namespace), cmp.Compare(x.workload, y.workload),
			cmp.Compare(x.name, y.name), cmp.Compare(x.rcode, y.rcode))
	})
	for _, key := range keys {
		a.line(&key, key.name.String(), counts[key])
	}
	if others > 0 {
		a.line(new(aggregateKey), otherNames, others)
	}
}

// otherNames stands for the names beyond the bound.
const otherNames = "(other)"

// line logs n queries.
func (a *Aggregate) line(key *aggregateKey, name string, n uint64) {
	a.Logger.LogAttrs(context.Background(), slog.LevelInfo, "queries", slog.String("namespace", key.namespace), slog.String("workload", key.workload),
		slog.String("qname", name), slog.String("rcode", key.rcode), slog.Uint64("queries", n), slog.Duration("interval", a.Interval))
}
