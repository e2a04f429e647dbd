package resolver

import (
	"context"
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/upstream"
)

// What the tests outside of the package need of its inside.

const (
	VettedUDP  = vettedUDP
	LoopProbes = loopProbes
	LoopLooks  = loopLooks
)

// NetSet is the set of the nets of an ACL rule.
type NetSet = netSet

func NewNetSet(list []netip.Prefix) NetSet    { return newNetSet(list) }
func (s netSet) Has(addr netip.Addr) bool     { return s.has(addr) }
func (a *ACL) Policies(rule int) int          { return len(a.rules[rule].policies) }
func (r *Request) Zone() *Zone                { return r.zone }
func (r *Request) Reply() *wire.Reply         { return &r.reply }
func (r *Request) Budget() *kubernetes.Budget { return &r.ownBudget }
func (r *Request) Bufsize() int               { return r.bufsize() }
func (z *Zone) ServedHere(r *Request) bool    { return z.servedHere(r) }
func (rt *Routes) Match(r *Request) *Zone     { return rt.match(r) }

// Judge reports whether a allows a query.
func (a *ACL) Judge(name []byte, qtype uint16, client netip.Addr) (isAllowed bool) {
	verdict, _ := a.judge(name, qtype, client, nil)
	return verdict == allowed
}

// Verdict returns a's verdict on a query as a number.
func (a *ACL) Verdict(name []byte, qtype uint16, client netip.Addr) int {
	verdict, _ := a.judge(name, qtype, client, nil)
	return int(verdict)
}

// ClassOf returns the class of a client; ok is false if rt has no classes.
func (rt *Routes) ClassOf(client netip.Addr) (class uint64, ok bool) {
	if rt.aclClasses == nil {
		return 0, false
	}
	return rt.aclClasses.of(client), true
}

// VetCost vets r's reply as z would, and returns how many records stay that may be left out, and how often the
// client was checked against the rules of a zone.
func (rt *Routes) VetCost(z *Zone, r *Request) (stay, decided int) {
	r.zone = z
	v := rt.vetting(r)
	return v.stay, v.decided
}

// Look looks at the cache once, at now.
func (k *Keeper) Look(now time.Duration) { k.look(now) }

// SearchPath is one path of an Autopath.
type SearchPath struct {
	Zone, First wire.Name
	Rest        []wire.Name
}

func (s *Autopath) Paths() (list []SearchPath) {
	for _, p := range s.paths {
		list = append(list, SearchPath{p.zone, p.first, p.rest})
	}
	return list
}

// NewTestAutopath makes an Autopath for clients in one namespace.
func NewTestAutopath(namespace []byte, p SearchPath) *Autopath {
	return &Autopath{
		clientNamespace: func(netip.Addr) ([]byte, bool) { return namespace, true },
		clientMark:      func() epoch.Mark { return epoch.Mark{} },
		paths:           []searchPath{{zone: p.Zone, first: p.First, rest: p.Rest}},
	}
}

// Rehearse makes l ask ask in place of upstreams at servers.
func (l *Loop) Rehearse(servers []netip.Addr, ask func(ctx context.Context, q *wire.Query) (wire.Response, error)) {
	l.servers, l.ask = func() []netip.Addr { return servers }, ask
}

func (l *Loop) Observe(q *wire.Query, client netip.Addr) bool { return l.observe(q, client) }
func (l *Loop) SetInterval(d time.Duration)                   { l.interval = d }
func (l *Loop) Refused() uint64                               { return l.refused.Load() }
func (l *Loop) AddRefused()                                   { l.refused.Add(1) }
func (l *Loop) Options() LoopOptions                          { return l.opts }

// Pool is the pool that r was forwarded to, nil for none.
func (r *Request) Pool() *upstream.Pool { return r.pool }

// Source is the name of the step that made r's reply.
func (r *Request) Source() string { return sourceNames[r.source] }

// LimitReason is why a query that failed with err is counted as limited; shed says that it had no place.
func LimitReason(shed bool, err error) (clients.Reason, bool) {
	r := new(Request)
	r.shed, r.err = shed, err
	return r.limitedBy()
}
