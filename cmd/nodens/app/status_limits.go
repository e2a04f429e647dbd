package app

import (
	"cmp"
	"slices"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/server"
)

// bytesUnit is the unit of limits that are not numbers of things.
const bytesUnit = "bytes"

// limitList are limits with their use. Of a limit that there is for each of many, it has the one with the
// highest use, so that its length is bounded.
type limitList []report.Limit

// add adds a limit; a bound of 0 is none. of is "" if there is only one such limit.
func (l *limitList) add(name, of string, used, bound int) { l.put(name, of, "", used, bound) }

// addBytes is add for a number of bytes.
func (l *limitList) addBytes(name string, used, bound int) { l.put(name, "", bytesUnit, used, bound) }

func (l *limitList) put(name, of, unit string, used, bound int) {
	if bound <= 0 {
		return
	}
	x := report.Limit{Name: name, Of: of, Used: int64(used), Bound: int64(bound), Unit: unit, Share: float64(used) / float64(bound)}
	i := slices.IndexFunc(*l, func(o report.Limit) bool { return o.Name == name })
	switch {
	case i < 0:
		*l = append(*l, x)
	case x.Share > (*l)[i].Share || x.Share == (*l)[i].Share && x.Of < (*l)[i].Of:
		(*l)[i] = x
	}
}

// addServer adds one of package server's limits.
func (l *limitList) addServer(name string, u server.Usage) {
	of := ""
	if u.Addr.IsValid() {
		of = u.Addr.String()
	}
	l.add(name, of, u.Used, u.Limit)
}

// limits returns how much of the agent's limits is in use, the highest share first.
func (a *agent) limits(g *generation) []report.Limit {
	var l limitList
	u := a.server.Usage()
	l.addServer("waiting queries", u.Waiting)
	l.addServer("TCP connections", u.Conns)
	l.addServer("HTTPS requests", u.Requests)
	l.addBytes("unsent replies", u.Unsent.Used, u.Unsent.Limit)
	l.addBytes("cache", a.builder.store.Bytes(), a.builder.store.Budget())
	l.add("old configurations", "", len(a.draining), cap(a.draining))
	if t := a.builder.clients.counted(); t != nil {
		u := t.Usage()
		l.add("client addresses", "", u.Addresses, u.MaxAddresses)
		l.add("namespaces with series", "", u.Namespaces, u.MaxNamespaces)
		l.add("workloads with series", "", u.Workloads, u.MaxWorkloads)
	}
	if a.kernelPath.available() {
		answers, limit := a.kernelPath.program.Usage()
		l.add("answers in the kernel", "", answers, limit)
	}
	a.http.EachUsage(l.add)
	addUsage(g, &l)
	slices.SortStableFunc(l, func(a, b report.Limit) int { return cmp.Compare(b.Share, a.Share) })
	return l
}

// addUsage adds the limits of g's views and upstreams.
func addUsage(g *generation, l *limitList) {
	for _, v := range g.views {
		st := v.Stats()
		l.add("watched namespaces", "", st.Sources, st.MaxSources)
	}
	for f := range g.forwards() {
		st := f.pool.Stats()
		l.add("queries of a forward", f.block.Zones[0].String(), st.InFlight, st.MaxConcurrent)
	}
	for to, sum := range g.servers() {
		l.add("queries to an upstream", to.String(), sum.InFlight, sum.MaxInFlight)
	}
}
