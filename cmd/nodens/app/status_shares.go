package app

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/upstream"
)

const (
	// maxShownLimited bounds the limited clients in the status, maxShownWaiting those with waiting queries.
	maxShownLimited = 16
	maxShownWaiting = 8
)

// fairShares returns which clients are limited, how full the budgets of g's upstreams are, and which clients have
// the most waiting queries.
func (a *agent) fairShares(g *generation) report.FairShares {
	f := report.FairShares{Limited: []report.LimitedClient{}, Waiting: []report.WaitingClient{}, Budgets: a.budgets(g)}
	if t := a.builder.clients.counted(); t != nil {
		a.kernelPath.updateCounters() // before the counters are read
		addLimited(&f, t.Report(clients.Pods, clients.Minute))
	}
	for _, h := range a.server.WaitingClients(maxShownWaiting) {
		f.Waiting = append(f.Waiting, report.WaitingClient{NameClient: a.clientAt(h.Addr), Waiting: h.Places})
	}
	return f
}

// addLimited adds the limited clients of r to f.
func addLimited(f *report.FairShares, r clients.Report) {
	f.Seconds = r.Window.Seconds()
	for i := range r.Clients {
		c := &r.Clients[i]
		if n := c.Window.AllLimited(); n > 0 {
			f.Limited = append(f.Limited, report.LimitedClient{NameClient: identityOf(c), Limited: n, Reasons: limitReasons(&c.Window)})
		}
	}
	slices.SortStableFunc(f.Limited, func(a, b report.LimitedClient) int { return cmp.Compare(b.Limited, a.Limited) })
	f.MoreLimited = max(0, len(f.Limited)-maxShownLimited)
	f.Limited = f.Limited[:len(f.Limited)-f.MoreLimited]
}

// limitedNow returns what has limited the client with an address in the last minute, by reason, and the time that the
// counts are of: 0 if nothing has.
func (a *agent) limitedNow(addr netip.Addr) (reasons map[string]uint64, seconds float64) {
	t := a.builder.clients.counted()
	if t == nil {
		return map[string]uint64{}, 0
	}
	a.kernelPath.updateCounters() // before the counters are read
	kind, pod := t.Owner(addr)
	r := t.Top(clients.Pods, clients.Minute, math.MaxInt) // not Report: it sorts every client's names, which are not needed
	for i := range r.Clients {
		c := &r.Clients[i]
		if c.Kind == kind && c.Pod == pod && c.Window.AllLimited() > 0 && (kind != clients.Unknown || slices.Contains(c.Addrs, addr)) {
			return limitReasons(&c.Window), r.Window.Seconds()
		}
	}
	return map[string]uint64{}, 0
}

// limitReasons returns the numbers of limited queries by reason, without reasons that have none.
func limitReasons(c *clients.Counts) map[string]uint64 {
	reasons := make(map[string]uint64)
	for r, n := range c.Limited {
		if n > 0 {
			reasons[clients.Reason(r).String()] = n
		}
	}
	return reasons
}

// identityOf returns who c is, with the first of its addresses.
func identityOf(c *clients.Client) report.NameClient {
	var addr netip.Addr
	if len(c.Addrs) > 0 {
		addr = slices.MinFunc(c.Addrs, netip.Addr.Compare)
	}
	return newIdentity(c.Kind, &c.Pod, addr)
}

// newIdentity returns who has an address, which may be invalid.
func newIdentity(kind clients.Kind, pod *clients.Pod, addr netip.Addr) report.NameClient {
	c := report.NameClient{
		Kind: clientKinds[kind], Namespace: pod.Namespace, Pod: pod.Name, WorkloadKind: pod.Workload.Kind, Workload: pod.Workload.Name,
	}
	if addr.IsValid() {
		c.Address = addr.String()
	}
	return c
}

// clientAt returns who has an address now.
func (a *agent) clientAt(addr netip.Addr) report.NameClient {
	kind, pod := a.builder.clients.owners().Owner(addr)
	return newIdentity(kind, &pod, addr.Unmap())
}

// budgets returns the budgets of g's upstreams, each address once, the one with the highest use first.
func (a *agent) budgets(g *generation) []report.UpstreamBudget {
	list := []report.UpstreamBudget{}
	for to, sum := range g.servers() {
		if b := a.newBudget(sum.Budget); b != nil {
			list = append(list, report.UpstreamBudget{To: to.String(), Budget: *b})
		}
	}
	slices.SortStableFunc(list, func(a, b report.UpstreamBudget) int {
		return cmp.Or(cmp.Compare(b.UsedShare, a.UsedShare), cmp.Compare(a.To, b.To))
	})
	return list[:min(len(list), maxShownForwards)]
}

// newBudget returns b as replies have it, nil for nil.
func (a *agent) newBudget(b *upstream.BudgetStats) *report.Budget {
	if b == nil {
		return nil
	}
	out := &report.Budget{
		LimitPerSecond: b.Limit, Auto: b.Auto, UsedShare: b.Used, Waiting: b.Waiting,
		Waited: b.Waited, Expired: b.Expired, GivenUp: b.GivenUp, Clients: []report.WaitingClient{},
	}
	for _, c := range b.Clients {
		out.Clients = append(out.Clients, report.WaitingClient{NameClient: a.clientAt(c.Addr), Waiting: c.Waiting})
	}
	return out
}
