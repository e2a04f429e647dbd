package kubernetes

import (
	"context"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// External answers the names of one `k8s_external` directive from a view: below
// each of its zones, <service>.<namespace> is where the Service is reached from
// outside of the cluster. It is immutable and safe for concurrent use.
type External struct {
	// zone has the directive's own zones, TTL and `fallthrough`, and shows the
	// namespaces that the block's `kubernetes` directive does.
	zone     *Zone
	apex     string // the label that the name server's name is under, in wire form
	headless bool
}

// defaultApex is where `apex` says nothing, or what no label can hold.
const defaultApex = "\x03dns"

// NewExternal gives the answers of cfg from v, which must be the view of the same
// block's `kubernetes` directive k. PTR records point into the first of its zones
// that is no reverse zone; if there is none, no address has one.
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

// Answer writes the answer to q, which must be of class IN, into r, which must have
// been started for q and hold nothing yet. It does not block. b and the outcomes are those
// of [Zone.Answer]. With [Alias], the name is what a load balancer goes by that has
// no address of its own; the server resolves it in its own way, wherever it is.
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
	w := writer{zone: e.zone, origin: o, reply: r, ttl: e.zone.ttl, budget: b}
	m := e.find(name, o, b)
	switch {
	case b.spent():
		return OverBudget, ""
	case m.node == elsewhere:
		return Incomplete, ""
	case m.node == missing && e.reserved(name, o):
		w.deny()
		return Answered, ""
	case m.node == missing:
		return e.zone.nameError(name, o, r), ""
	}
	return e.finish(&w, &m, q.Type)
}

// finish writes the answer that m is found for.
func (e *External) finish(w *writer, m *match, qtype uint16) (Outcome, wire.Name) {
	w.reply.SetAuthoritative()
	target := e.write(w, m, qtype)
	switch {
	case w.budget.spent():
		w.reply.Reset()
		return OverBudget, ""
	case target != "":
		return Alias, target
	case w.reply.Count(wire.Answer) == 0:
		w.soa(wire.Authority)
	}
	return Answered, ""
}

// Await waits until the view holds what the answer to q, which was [Incomplete],
// hangs on. The error is that of ctx.
func (e *External) Await(ctx context.Context, q *wire.Query) error {
	return e.zone.view.await(ctx, q, e.Answer)
}

// reserved reports whether name is under the label of the name servers, where no
// object has a name and nothing is passed on.
func (e *External) reserved(name []byte, o *origin) bool {
	return wire.Under(name, wire.Name(e.apex)+o.name)
}

// outsideDepth is the most labels a name has in front of the zone:
// _port._proto.service.namespace.
const outsideDepth = 4

// find looks name, which is in o, up.
func (e *External) find(name []byte, o *origin, b *Budget) match {
	if a, ok := parseReverse(name); ok {
		if e.zone.primary != nil {
			for range (outsiders{e.zone, addressOf(string(a.bytes[:a.size])), b}).each {
				return match{node: reverseIP, addr: a}
			}
		}
		return match{}
	}
	rel := name[:len(name)-len(o.name)]
	var at [outsideDepth + 1]int // where each label starts; the last is the end of rel
	n := 0
	for off := 0; off < len(rel); off += 1 + int(rel[off]) {
		if n == outsideDepth {
			return match{}
		}
		at[n] = off
		n++
	}
	at[n] = len(rel)
	switch {
	case n == 0:
		return match{node: apex}
	case string(rel[at[n-1]:]) == e.apex:
		return findApex(rel[:at[n-1]])
	case o.reverse:
		return match{}
	}
	return e.findService(rel, at[:n+1], b)
}

// findApex looks up a name by the labels in front of the name servers' one.
func findApex(rel []byte) match {
	switch string(rel) {
	case "":
		return match{node: empty}
	case "\x03ns1":
		return match{node: server}
	}
	return match{}
}

// findService looks up a name that is none of the zone's own. at holds where its
// labels start, and its end. A Service has a name if it is reached from outside, or,
// with `headless`, for its endpoints.
func (e *External) findService(rel []byte, at []int, b *Budget) match {
	n := len(at) - 1
	ns := rel[at[n-1]:]
	if !e.zone.exposes(ns) || !e.zone.view.namespace(ns) {
		return match{}
	}
	if n == 1 {
		return match{node: empty}
	}
	m := match{key: rel[at[n-2]:]}
	m.svc = e.zone.view.service(m.key, false)
	switch {
	case m.svc != nil && m.svc.kind != orphan && m.svc.outside():
		return m.outward(rel, at, b)
	case !e.shows(m.svc, n, rel):
		return match{}
	case !e.zone.view.held(m.svc):
		return match{node: elsewhere, svc: m.svc}
	}
	return m.inward(rel, at, b)
}

// shows reports whether the endpoints of svc, which may be nil, can give it a name of
// n labels: a service with a cluster IP has only theirs, which don't start with an
// underscore.
func (e *External) shows(svc *service, n int, rel []byte) bool {
	return e.headless && svc.hasEndpoints() && (svc.kind == headless || n == 3 && rel[1] != '_')
}

// outward is the node of a name of m's service, which is reached from outside. One
// label in front of it, whatever it is, changes nothing: CoreDNS takes it for an
// endpoint and gives the Service, so there may be clients that ask for their
// endpoint and live on that.
func (m match) outward(rel []byte, at []int, b *Budget) match {
	m.node = outward
	if len(at) != 5 {
		return m
	}
	m.port = portMatch{proto: protocol(unscored(rel[at[1]+1 : at[2]])), name: unscored(rel[1:at[1]])}
	if m.port.proto == 0 || len(m.port.name) == 0 || !b.take(m.svc.ports.steps()) || !m.svc.ports.has(m.port) {
		return match{}
	}
	return m
}

// inward is the node of a name of m's service, whose endpoints have names.
func (m match) inward(rel []byte, at []int, b *Budget) match {
	switch len(at) {
	case 5:
		return m.namedPort(rel[1:at[1]], rel[at[1]+1:at[2]], b)
	case 4:
		if e := m.endpoint(rel[1:at[1]], b); m.svc.kind == headless || e.node == member {
			return e
		}
		return match{}
	}
	if !m.svc.ready { // a headless one: others have no such name
		return match{}
	}
	m.node = named
	return m
}

// write writes m's records of qtype, if it has any. target is what an alias leads to.
func (e *External) write(w *writer, m *match, qtype uint16) (target wire.Name) {
	switch m.node {
	case outward:
		return w.outward(m, qtype)
	case server:
		if qtype == wire.TypeA || qtype == wire.TypeAAAA {
			e.writeServer(w, qtype)
		}
	case reverseIP:
		if qtype == wire.TypePTR {
			e.writePointers(w, m.addr)
		}
	case apex:
		e.writeApex(w, qtype)
	default:
		target, _ = w.write(m, qtype)
	}
	return target
}

func (e *External) writeServer(w *writer, qtype uint16) {
	for a := range (serving{e, w.budget}).each {
		if len(a) == addrSize(qtype) {
			w.addr(wire.Answer, wire.AtQuestion, a)
		}
		if w.enoughAddrs() {
			return
		}
	}
}

func (e *External) writePointers(w *writer, a packedAddr) {
	var p pointers
	for key := range (outsiders{e.zone, addressOf(string(a.bytes[:a.size])), w.budget}).each {
		if !w.pointer(&p, "", key) {
			return
		}
	}
}

// writeApex writes the zone's own records of qtype.
func (e *External) writeApex(w *writer, qtype uint16) {
	switch qtype {
	case wire.TypeSOA:
		w.soa(wire.Answer)
	case wire.TypeNS:
		at := w.name(wire.Answer, wire.TypeNS, wire.AtQuestion, wire.Name(w.origin.server)+w.origin.name)
		for a := range (serving{e, w.budget}).each {
			w.addr(wire.Additional, at, a)
			if w.reply.Over() {
				return
			}
		}
	}
}

// serving are the addresses of the zones' name server: those at which the Services that
// select the agent are reached from outside; where none does, the agent's own.
type serving struct {
	external *External
	budget   *Budget
}

// each goes over the addresses, packed and each once, until the budget is spent.
func (l serving) each(yield func(string) bool) {
	seen := make(map[string]struct{}) // one address for TCP and UDP is common
	some := false
	for _, svc := range (selecting{l.external.zone.view, l.budget}).each {
		some = true
		for addr := range l.external.served(svc, l.budget).each {
			if !l.budget.take(seenSteps) {
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

// served are the addresses of a service that selects the agent.
func (e *External) served(s *service, b *Budget) addrLists {
	if e.headless && s.kind == headless {
		v4, _ := s.addrs(wire.TypeA, b)
		v6, _ := s.addrs(wire.TypeAAAA, b)
		return addrLists{v4, v6}
	}
	return addrLists{s.external4, s.external6}
}

// outward writes the records of qtype of a service that is reached from outside: its
// addresses, or an alias where there is only the name of its load balancer. An
// owner of other records can be no alias (RFC 2181, 10.1), so addresses go first.
func (w *writer) outward(m *match, qtype uint16) (target wire.Name) {
	switch qtype {
	case wire.TypeSRV:
		if target = m.svc.balancer(); target != "" {
			w.balanced(m, target)
			return ""
		}
		w.srv(m)
	case wire.TypeA, wire.TypeAAAA, wire.TypeCNAME:
		if target = m.svc.balancer(); target != "" {
			w.name(wire.Answer, wire.TypeCNAME, wire.AtQuestion, target)
			if qtype == wire.TypeCNAME {
				return ""
			}
			return target
		}
		list := m.svc.external4
		if qtype == wire.TypeAAAA {
			list = m.svc.external6
		}
		if n := len(list) / addrSize(qtype); qtype != wire.TypeCNAME && w.budget.take(min(n, w.reply.Room(wire.Answer, qtype))) {
			w.reply.AddAddrs(wire.Answer, wire.AtQuestion, qtype, w.ttl, list)
		}
	}
	return ""
}

// balanced writes the SRV records of a service whose load balancer has only a name.
// What that resolves to is for the client to ask: glue is a courtesy, and this one
// would have to be waited for.
func (w *writer) balanced(m *match, to wire.Name) {
	t := targets{writer: *w, port: m.port, weight: weigh(m.port.count(m.svc.ports, w.budget)), done: make(map[srvTarget]struct{})}
	if !t.read(m.svc.ports) {
		return
	}
	var buf [6 + wire.MaxName]byte
	rdata := append(buf[:6], to...)
	for _, number := range t.numbers {
		if _, ok := t.record(srvTarget{"", number}, rdata); !ok {
			return
		}
	}
}

// outside reports whether s is reached from outside of the cluster.
func (s *service) outside() bool {
	return s.external4 != "" || s.external6 != "" || s.balancer() != ""
}

// balancer is the name of the load balancer in front of s if it has no address.
func (s *service) balancer() wire.Name {
	if s.kind == external || s.external4 != "" || s.external6 != "" {
		return ""
	}
	return s.target
}

// eachOuter goes over the addresses s is reached at from outside, packed.
func (s *service) eachOuter(yield func(string) bool) { addrLists{s.external4, s.external6}.each(yield) }

// addOutside reads where svc is reached from outside of the cluster: its external
// IPs, and what its load balancer goes by, which is an address or a name. Of several
// names the first counts: a name has one alias.
func (s *service) addOutside(svc *corev1.Service, f *faults) {
	for _, ip := range svc.Spec.ExternalIPs {
		s.addOuter(ip, "external IP", f)
	}
	for i := range svc.Status.LoadBalancer.Ingress {
		in := &svc.Status.LoadBalancer.Ingress[i]
		switch {
		case in.IP != "":
			s.addOuter(in.IP, "load balancer's IP", f)
		case in.Hostname != "" && s.target == "":
			s.target = aliasTarget(in.Hostname, f)
		}
	}
}

func (s *service) addOuter(ip, what string, f *faults) {
	a, err := netip.ParseAddr(ip)
	if err != nil || a.Zone() != "" {
		f.add("%s %q is no IP address", what, ip)
		return
	}
	packed := packAddr(a.Unmap())
	for have := range s.eachOuter {
		if have == packed {
			return
		}
	}
	if len(packed) == 4 {
		s.external4 += packed
	} else {
		s.external6 += packed
	}
}

// linkOutside notes that s, of that key, is reached at its external addresses.
func (x *index) linkOutside(key string, s *service) {
	for ip := range s.eachOuter {
		addRef(x.externals, addressOf(ip), key, strings.Compare)
	}
}

// unlinkOutside is the inverse of linkOutside.
func (x *index) unlinkOutside(key string, s *service) {
	for ip := range s.eachOuter {
		dropRef(x.externals, addressOf(ip), key, strings.Compare)
	}
}
