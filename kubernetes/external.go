package kubernetes

import (
	"context"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// External answers the names of one `k8s_external` directive from a view: below each of its
// zones, <service>.<namespace> is the address at which a Service is reachable from outside
// of the cluster. It is immutable and safe for concurrent use.
type External struct {
	// zone has the zones, the TTL and the `fallthrough` of the k8s_external directive, and
	// the namespaces of the block's `kubernetes` directive.
	zone     *Zone
	apex     string // the label, in wire form, above the name server's name
	headless bool
}

// defaultApex is used if `apex` is not set or is not a label.
const defaultApex = "\x03dns"

// NewExternal returns the zones of cfg, answered from v, which must be the view of the same
// block's `kubernetes` directive k. PTR records point into the first zone that is not a
// reverse zone; without such a zone there are none.
func NewExternal(v *View, cfg *config.K8sExternal, k *config.Kubernetes) *External {
	shown := *k
	shown.Zones, shown.TTL, shown.Fallthrough = cfg.Zones, cfg.TTL, cfg.Fallthrough
	shown.Multicluster = nil
	e := &External{zone: NewZone(v, &shown), apex: defaultApex, headless: cfg.Headless}
	if apex, ok := namespaceKey(cfg.Apex); ok {
		e.apex = apex
	}
	for i := range e.zone.origins {
		o := &e.zone.origins[i]
		o.svc, o.server, o.mailbox = o.name, "\x03ns1"+e.apex, "\x0ahostmaster"+e.apex
	}
	return e
}

// Answer writes the answer to q, which must be of class IN, into r, which must have been
// started for q and be empty. It does not block. b and the outcomes are as for
// [Zone.Answer]. With [Alias], the name is the host name of a load balancer that has no
// address; the server resolves it.
func (e *External) Answer(q *wire.Query, r *wire.Reply, b *Budget) (Outcome, wire.Name) {
	name := q.Name()
	o := e.zone.origin(name)
	if o == nil {
		return NotMine, ""
	}
	if q.Type == wire.TypeAXFR || q.Type == wire.TypeIXFR {
		r.Fail(wire.Refused)
		return Refused, ""
	}
	w := answerWriter{zone: e.zone, origin: o, reply: r, ttl: e.zone.ttl, budget: b}
	m := e.lookup(name, o, b)
	switch {
	case b.exhausted():
		return OverBudget, ""
	case m.node == incomplete:
		return Incomplete, ""
	case m.node == notFound && wire.Under(name, wire.Name(e.apex)+o.name): // no object has such a name, and `fallthrough` does not apply
		w.writeNXDomain()
		return Answered, ""
	case m.node == notFound:
		return e.zone.nameError(name, o, r), ""
	}
	return e.finish(&w, &m, q.Type)
}

// finish writes the answer for m, which exists.
func (e *External) finish(w *answerWriter, m *match, qtype uint16) (Outcome, wire.Name) {
	w.reply.SetAuthoritative()
	target := e.write(w, m, qtype)
	switch {
	case w.budget.exhausted():
		w.reply.Reset()
		return OverBudget, ""
	case target != "":
		return Alias, target
	case w.reply.Count(wire.Answer) == 0:
		w.writeSOA(wire.Authority)
	}
	return Answered, ""
}

// Await waits until the view holds the data for the answer to q, which was [Incomplete]. It
// returns the error of ctx.
func (e *External) Await(ctx context.Context, q *wire.Query) error {
	return e.zone.view.await(ctx, q, e.Answer)
}

// maxExternalDepth is the largest number of labels in front of the zone:
// _port._proto.service.namespace.
const maxExternalDepth = 4

// lookup finds name, which is in o.
func (e *External) lookup(name []byte, o *origin, b *Budget) match {
	if a, ok := parseReverse(name); ok {
		if e.zone.primary != nil {
			for range (externalServices{e.zone, addrKeyOf(string(a.bytes[:a.size])), b}).each {
				return match{node: reverseName, addr: a}
			}
		}
		return match{}
	}
	rel := name[:len(name)-len(o.name)]
	var at [maxExternalDepth + 1]int // the offset of each label; the last is the end of rel
	n := 0
	for off := 0; off < len(rel); off += 1 + int(rel[off]) {
		if n == maxExternalDepth {
			return match{}
		}
		at[n] = off
		n++
	}
	at[n] = len(rel)
	switch {
	case n == 0:
		return match{node: zoneApex}
	case string(rel[at[n-1]:]) == e.apex:
		return lookupApex(rel[:at[n-1]])
	case o.reverse:
		return match{}
	}
	return e.lookupService(rel, at[:n+1], b)
}

// lookupApex finds a name of the name servers; rel is what precedes their label.
func lookupApex(rel []byte) match {
	switch string(rel) {
	case "":
		return match{node: emptyNonTerminal}
	case "\x03ns1":
		return match{node: nameserverName}
	}
	return match{}
}

// lookupService finds a name below a namespace. at holds the offset of each label in rel,
// and its end. A Service has a name if it is externally reachable or, with `headless`,
// through its endpoints.
func (e *External) lookupService(rel []byte, at []int, b *Budget) match {
	n := len(at) - 1
	ns := rel[at[n-1]:]
	if !e.zone.exposes(ns) || !e.zone.view.hasNamespace(ns) {
		return match{}
	}
	if n == 1 {
		return match{node: emptyNonTerminal}
	}
	m := match{key: rel[at[n-2]:]}
	m.svc = e.zone.view.service(m.key, false)
	switch {
	case m.svc != nil && m.svc.kind != orphan && m.svc.externallyReachable():
		return m.matchExternal(rel, at, b)
	case !e.endpointsNamed(m.svc, n, rel):
		return match{}
	case !e.zone.view.requireSlices(m.svc, b):
		return match{node: incomplete, svc: m.svc}
	}
	return m.matchInternal(rel, at, b)
}

// endpointsNamed reports whether the endpoints of svc, which may be nil, give it a name of
// n labels. Below a service with a cluster IP only endpoints have names; these don't begin
// with an underscore.
func (e *External) endpointsNamed(svc *service, n int, rel []byte) bool {
	return e.headless && svc.hasEndpoints() && (svc.kind == headless || n == 3 && rel[1] != '_')
}

// writeAny is write for the type ANY.
func (e *External) writeAny(w *answerWriter, m *match) (target wire.Name) {
	for _, t := range recordTypes {
		if target = e.write(w, m, t.rtype); w.reply.Count(wire.Answer) > 0 {
			break
		}
	}
	return target
}

// write writes m's records of qtype, if there are any. target is the name that an alias
// points to.
func (e *External) write(w *answerWriter, m *match, qtype uint16) (target wire.Name) {
	if qtype == wire.TypeANY {
		return e.writeAny(w, m)
	}
	switch m.node {
	case externalService:
		return writeExternal(w, m, qtype)
	case nameserverName:
		if qtype == wire.TypeA || qtype == wire.TypeAAAA {
			e.writeNameserverAddrs(w, qtype)
		}
	case reverseName:
		if qtype == wire.TypePTR {
			e.writePTRs(w, m.addr)
		}
	case zoneApex:
		e.writeApex(w, qtype)
	default:
		target, _ = w.write(m, qtype)
	}
	return target
}

func (e *External) writeNameserverAddrs(w *answerWriter, qtype uint16) {
	for a := range (nameserverAddrs{e, w.budget}).each {
		if len(a) == addrSize(qtype) {
			w.writeAddr(wire.Answer, wire.AtQuestion, a)
		}
		if w.enoughAddrs() {
			return
		}
	}
}

func (e *External) writePTRs(w *answerWriter, a packedAddr) {
	var p ptrCompression
	for key := range (externalServices{e.zone, addrKeyOf(string(a.bytes[:a.size])), w.budget}).each {
		if !writePTR(w, &p, "", key) {
			return
		}
	}
}

// writeApex writes the records of the zone apex.
func (e *External) writeApex(w *answerWriter, qtype uint16) {
	switch qtype {
	case wire.TypeSOA:
		w.writeSOA(wire.Answer)
	case wire.TypeNS:
		at := w.writeName(wire.Answer, wire.TypeNS, wire.AtQuestion, wire.Name(w.origin.server)+w.origin.name)
		for a := range (nameserverAddrs{e, w.budget}).each {
			w.writeAddr(wire.Additional, at, a)
			if w.reply.Overflows() {
				return
			}
		}
	}
}

// nameserverAddrs iterates over the addresses of the zone's name server: the external
// addresses of the services that select the agent, or the agent's own if there are none.
type nameserverAddrs struct {
	external *External
	budget   *Budget
}

// each yields each packed address once, until the budget is exhausted.
func (l nameserverAddrs) each(yield func(string) bool) {
	seen := make(map[string]struct{}) // two Services, for TCP and UDP, often share one
	some := false
	for _, svc := range (selectingServices{l.external.zone.view, l.budget}).each {
		some = true
		for addr := range l.external.addrsOf(svc, l.budget).each {
			if !l.budget.spend(dedupSteps) {
				return
			}
			if _, dup := seen[addr]; dup {
				continue
			}
			seen[addr] = struct{}{}
			if !yield(addr) {
				return
			}
		}
	}
	if some {
		return
	}
	for _, a := range l.external.zone.view.addrs {
		if !yield(packAddr(a)) {
			return
		}
	}
}

// addrsOf returns the addresses at which a service that selects the agent is reachable.
func (e *External) addrsOf(s *service, b *Budget) addrSet {
	if e.headless && s.kind == headless {
		v4, _ := s.addrs(wire.TypeA, b)
		v6, _ := s.addrs(wire.TypeAAAA, b)
		return addrSet{v4, v6}
	}
	return addrSet{s.external4, s.external6}
}

// SOA is as [Zone.SOA].
func (e *External) SOA(name wire.Name) (soa wire.RR, ok bool) { return e.zone.SOA(name) }

// Snapshot is as [Zone.Snapshot]. Only with `headless` it needs slices. The snapshot has the NS record with the name server's
// addresses, and the records of each Service that is reachable from outside: its addresses, and SRV records of its name and
// of its named ports, which lead to the addresses and to the load balancer's host name. A load balancer that has only a host
// name is a CNAME, beside which there are no SRV records of the same name (RFC 1034, 3.6.2). With `headless`, a headless Service
// has the addresses of its endpoints, and SRV records of its own name, of its endpoints' names and of its named ports. Endpoints
// behind cluster IPs have no records.
func (e *External) Snapshot(ctx context.Context, name wire.Name) (*Snapshot, error) {
	return (&Snapshot{zone: e.zone, external: e, origin: e.zone.transferableOrigin(name)}).current(ctx)
}

// has reports whether the service with that key has names. Below the label of the name servers no Service has.
func (e *External) has(key string, s *service) bool {
	return namespaceOf(key) != e.apex && (s.externallyReachable() || e.headless && s.kind == headless)
}

// writeExternal writes the records of qtype of an externally reachable service: its
// addresses, or a CNAME if its load balancer has only a host name. Addresses take
// precedence: a CNAME allows no other records (RFC 2181, section 10.1). SRV records lead to
// the addresses and to the host name.
func writeExternal(w *answerWriter, m *match, qtype uint16) (target wire.Name) {
	switch qtype {
	case wire.TypeSRV:
		writeSRV(w, m)
	case wire.TypeA, wire.TypeAAAA, wire.TypeCNAME:
		if target = m.svc.loadBalancerName(); target != "" {
			w.writeName(wire.Answer, wire.TypeCNAME, wire.AtQuestion, target)
			if qtype == wire.TypeCNAME {
				return ""
			}
			return target
		}
		list := m.svc.external4
		if qtype == wire.TypeAAAA {
			list = m.svc.external6
		}
		if n := len(list) / addrSize(qtype); qtype != wire.TypeCNAME && w.budget.spend(min(n, w.reply.AddrCapacity(wire.Answer, qtype))) {
			w.reply.AddAddrs(wire.Answer, wire.AtQuestion, qtype, w.ttl, list)
		}
	}
	return ""
}
