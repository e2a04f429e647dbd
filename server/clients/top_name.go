package clients

import (
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// TopName is the name that a client asks for most.
type TopName struct {
	// Name is in text form with the final dot, "" for none.
	Name string
	// Share is the least share of the client's queries that are for Name. Of the kernel's answers it is an
	// estimate.
	Share float64
}

// topName sums up the names of one row.
type topName struct {
	queries map[string]uint64 // by the name's wire form: at least
	best    string
}

// setTopNames fills in the names that the rows ask for most.
func (t *Table) setTopNames(rows map[rowKey]*Client, by By, w Window, counted time.Duration) {
	r := t.names.top(TopClientNames, t.opts.Clock(), w)
	tops := make(map[rowKey]*topName)
	for _, e := range r.Entries {
		if e.Count == e.Error { // it may have asked for another name each time
			continue
		}
		n, name := t.clientOf(e.Key)
		key := rowKeyOf(n.Kind, n.Pod, n.Addr, by)
		if rows[key] == nil {
			continue
		}
		if tops[key] == nil {
			tops[key] = &topName{queries: make(map[string]uint64)}
		}
		tops[key].add(name, e.Count-e.Error)
	}
	for key, top := range tops {
		c := rows[key]
		c.TopName = TopName{Name: wire.Name(top.best).String(), Share: top.share(c.Window.Queries(), r.Covered, counted)}
	}
}

// add adds n queries for name.
func (x *topName) add(name string, n uint64) {
	x.queries[name] += n
	if x.best == "" || x.queries[name] > x.queries[x.best] {
		x.best = name
	}
}

// share returns the share of the best name in all queries. The windows of names and of counts have not the
// same length: named and counted.
func (x *topName) share(all uint64, named, counted time.Duration) float64 {
	if all == 0 || named <= 0 || counted <= 0 {
		return 0
	}
	return min(1, float64(x.queries[x.best])/named.Seconds()*counted.Seconds()/float64(all))
}
