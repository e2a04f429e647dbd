package reply

import (
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Terms say how long, and how, a finished reply may answer the same question again in place of the query path.
type Terms struct {
	// FromCluster and FromCache say what the reply is made from: the view of the cluster, the
	// cache, or both. One that is only from hosts has neither.
	FromCluster, FromCache bool
	// Mark moves when what the reply is made of changes, and so does each of More. Only Mark may have a serial.
	Mark epoch.Mark
	More []epoch.Mark
	// Lifetime is by package clock.
	epoch.Lifetime
	// MaxSize is the largest payload size that the reply's OPT record may advertise.
	MaxSize uint16
	// Shuffled says that addresses are in another order in each reply.
	Shuffled bool
	// Waste says that the reply is NXDOMAIN for a name that only a search path makes.
	Waste bool
}

// Answer is a finished reply to a query.
type Answer struct {
	Terms
	Query *wire.Query // as received
	Reply []byte      // as sent
}

// Tables are the counters that replies depend on: those of the view of the cluster and of the caches. They have no
// indexes in common.
type Tables struct{ Cluster, Cached *epoch.Table }

// Epochs are the counters of all answers at one time.
type Epochs struct{ cluster, cached uint64 }

// Now returns the epochs at the beginning of a query.
func (t *Tables) Now() Epochs {
	return Epochs{cluster: t.Cluster.Any(), cached: t.Cached.Any()}
}

// Moved reports whether the data behind a reply may have changed since then.
func (t *Tables) Moved(of *Terms, since Epochs) bool {
	now := t.Now()
	return of.FromCluster && now.cluster != since.cluster || of.FromCache && now.cached != since.cached
}

// watch returns the watch of a mark of one of the tables.
func (t *Tables) watch(m epoch.Mark) epoch.Watch {
	if t.Cluster.Has(m) {
		return t.Cluster.Watch(m)
	}
	return t.Cached.Watch(m)
}
