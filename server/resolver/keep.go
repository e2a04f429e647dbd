package resolver

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Keeper has the addresses of the names of `keep` asked for when it starts, and again before they expire, whether clients ask for
// them or not. The cache serves what has expired meanwhile. [Keeper.Run] uses the zones; the other methods may be called at any time.
type Keeper struct {
	questions []keptQuestion
	zones     []*Zone // of the block, by listening address and name; set before Run
	// expired is the number of names whose addresses could not be refreshed in time.
	expired atomic.Int64
}

// keptQuestion is a question for the addresses of one family.
type keptQuestion struct {
	query wire.Query
	asked time.Duration // when the last attempt began, by package clock; 0: there was none
}

// NewKeeper makes a Keeper of names, which are in lower case and wire form.
func NewKeeper(names []wire.Name) *Keeper {
	k := new(Keeper)
	for _, name := range names {
		for _, qtype := range []uint16{wire.TypeA, wire.TypeAAAA} {
			var q keptQuestion
			if q.query.Parse(wire.AppendQuery(nil, 0, []byte(name), qtype, nil, wire.MinUDP)) == wire.Serve {
				k.questions = append(k.questions, q)
			}
		}
	}
	return k
}

// Add gives k a zone of its block. It is called before Run.
func (k *Keeper) Add(z *Zone) { k.zones = append(k.zones, z) }

// Names returns the number of names, and how many of them have addresses that could not be refreshed before they expired: that are
// served expired, or are missing.
func (k *Keeper) Names() (all, expired int) { return len(k.questions) / 2, int(k.expired.Load()) }

const (
	// keepInterval is the time between two looks at the cache.
	keepInterval = time.Second
	// keepRetry is the time from one attempt to get an answer to the next. One takes up to five seconds.
	keepRetry = 10 * time.Second
	// keepPart is the part of the TTL that is left when an answer is refreshed: of the least TTL, 5 s, more than keepInterval.
	keepPart = 4
)

// Run keeps the names until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	tick := time.NewTicker(keepInterval)
	defer tick.Stop()
	for {
		k.look(clock.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// look has refreshed what is about to expire at now, and counts what has.
func (k *Keeper) look(now time.Duration) {
	expired := make(map[string]struct{})
	for i := range k.questions {
		q := &k.questions[i]
		z := k.zoneOf(&q.query)
		if z == nil {
			continue
		}
		info, found := z.Cache.Inspect(&q.query, now)
		fresh := found && info.TTL > 0 && info.Rcode != wire.ServFail
		if !fresh && q.asked != 0 { // the first attempt may be under way
			expired[string(q.query.Name())] = struct{}{}
		}
		if q.isDue(&info, fresh, now) {
			q.asked = now
			z.refresh(&q.query, UDP)
		}
	}
	k.expired.Store(int64(len(expired)))
}

// isDue reports whether q is to be asked at now. info is about its answer, which has not expired if it is fresh.
func (q *keptQuestion) isDue(info *cache.EntryInfo, fresh bool, now time.Duration) bool {
	answered := fresh && info.Age < now-q.asked
	if q.asked != 0 && !answered && now-q.asked < keepRetry {
		return false
	}
	return !fresh || info.TTL*keepPart <= info.TTL+info.Age
}

// zoneOf returns the longest zone that has q's name, of any address; nil if there is none.
func (k *Keeper) zoneOf(q *wire.Query) (found *Zone) {
	for _, z := range k.zones {
		if wire.Under(q.Name(), z.Name) && (found == nil || len(z.Name) > len(found.Name)) {
			found = z
		}
	}
	return found
}
