package clients

import (
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/internal/sketch"
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

// topName adds up the names of one row.
type topName struct {
	queries map[string]uint64 // by the name's wire form: at least
	best    string
}

// setTopNames fills in the names that the clients of a report ask for most. counted is the length of the
// report's window.
func (t *Table) setTopNames(list []Client, by By, names sketch.Report, counted time.Duration) {
	index, tops := make(map[rowKey]int, len(list)), make([]topName, len(list))
	for i := range list {
		c, addr := &list[i], netip.Addr{}
		if c.Kind == Unknown && len(c.Addrs) > 0 {
			addr = c.Addrs[0]
		}
		index[rowKeyOf(c.Kind, c.Pod, addr, by)] = i
	}
	for _, e := range names.Entries {
		if e.Count == e.Error { // it may have asked for another name each time
			continue
		}
		n, name := t.clientOf(e.Key)
		if i, ok := index[rowKeyOf(n.Kind, n.Pod, n.Addr, by)]; ok {
			tops[i].add(name, e.Count-e.Error)
		}
	}
	for i := range tops {
		if top := &tops[i]; top.best != "" {
			list[i].TopName = TopName{Name: wire.Name(top.best).String(), Share: top.share(list[i].Window.Queries(), names.Covered, counted)}
		}
	}
}

// add adds n queries for name.
func (x *topName) add(name string, n uint64) {
	if x.queries == nil {
		x.queries = make(map[string]uint64)
	}
	x.queries[name] += n
	if x.best == "" || x.queries[name] > x.queries[x.best] {
		x.best = name
	}
}

// share returns the share of the most frequent name in all queries. The windows of names and of counts differ in
// length: named and counted.
func (x *topName) share(all uint64, named, counted time.Duration) float64 {
	if all == 0 || named <= 0 || counted <= 0 {
		return 0
	}
	return min(1, float64(x.queries[x.best])/named.Seconds()*counted.Seconds()/float64(all))
}
