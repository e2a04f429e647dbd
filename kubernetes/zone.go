package kubernetes

import (
	"context"
	"net/netip"
	"slices"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Outcome is the result of [Zone.Answer].
type Outcome uint8

const (
	// NotMine: the name is in no zone of the directive, or it does not exist and
	// `fallthrough` applies. The reply is empty; the next step answers.
	NotMine Outcome = iota
	// Answered: the reply is complete. It may be negative.
	Answered
	// NotSynced: the name is not in view, but the view is not synced. The reply is empty,
	// since a name error would be cached for a service that exists.
	NotSynced
	// Alias: the reply holds CNAMEs that lead out of the zone. The caller appends the records
	// of the target; if the target does not resolve, the reply stays as it is, NOERROR.
	Alias
	// Refused: a zone transfer. The reply is a bare REFUSED.
	Refused
	// Incomplete: the answer depends on objects that are not, or not yet, in view. The reply
	// is empty. The cluster's own DNS knows the answer; callers that can't ask it use
	// [Zone.Await].
	Incomplete
	// OverBudget: the answer takes more steps than are left (see [Budget]). The reply is
	// empty. A caller that may take longer asks again with a nil Budget.
	OverBudget
)

// versionTTL is the TTL of dns-version, as in CoreDNS.
const versionTTL = 28800

// soaTTL is the largest TTL of an SOA record itself; its MINIMUM is the TTL of negative
// answers.
const soaTTL = 300

// Zone answers the names of one `kubernetes` directive. It is immutable, but for the large answers that it keeps, and
// safe for concurrent use.
type Zone struct {
	view                 *View
	origins              []origin // longest first
	primary              *origin  // the zone of PTR targets; nil if no zone has Services
	ttl                  uint32
	pods                 config.PodMode
	ignoreEmpty          bool
	namespaces           map[string]struct{} // labels in wire form; nil is all
	needsNamespaceObject bool                // only namespaces whose objects are in view have names
	fallthroughTo        *config.Fallthrough
	ordered              bool // near endpoints come first
	large                largeAnswers
}

const (
	arpa4 = "\x07in-addr\x04arpa\x00"
	arpa6 = "\x03ip6\x04arpa\x00"
)

// NewZone returns the zones of cfg, answered from v. It uses cfg's zones, `namespaces`,
// `multicluster`, `ttl`, `pods`, `ignore`, `fallthrough`, `zonal` and `topology`. If no
// zone has names of Services, no address has a PTR record.
func NewZone(v *View, cfg *config.Kubernetes) *Zone {
	z := &Zone{
		view: v, ttl: cfg.TTL, pods: cfg.Pods,
		ignoreEmpty: cfg.IgnoreEmptyService, fallthroughTo: cfg.Fallthrough,
		needsNamespaceObject: cfg.NamespaceLabels != "", ordered: cfg.Topology != config.TopologyOff,
	}
	for _, name := range cfg.Zones {
		o := newOrigin(v, name, cfg.Multicluster)
		o.zonal = cfg.Zonal && !o.imports
		z.origins = append(z.origins, o)
	}
	var primary wire.Name
	for _, o := range z.origins {
		if !o.lacksServices() {
			primary = o.name
			break
		}
	}
	slices.SortStableFunc(z.origins, func(a, b origin) int { return len(b.name) - len(a.name) })
	for i := range z.origins {
		if z.origins[i].name == primary {
			z.primary = &z.origins[i]
		}
	}
	if len(cfg.Namespaces) > 0 {
		z.namespaces = map[string]struct{}{}
	}
	for _, ns := range cfg.Namespaces {
		if key, ok := namespaceKey(ns); ok {
			z.namespaces[key] = struct{}{}
		}
	}
	return z
}

// View returns the view that z answers from.
func (z *Zone) View() *View { return z.view }

// Answer writes the answer to q, which must be of class IN, into r, which must have been
// started for q and be empty. It takes no more steps than b has, and stops when r can hold
// no more. It does not block. With [Alias] it also returns the name outside of the zone
// that the caller must resolve; otherwise that is "". Address and negative answers do not
// allocate.
func (z *Zone) Answer(q *wire.Query, r *wire.Reply, b *Budget) (Outcome, wire.Name) {
	name := q.Name()
	o := z.origin(name)
	if o == nil {
		return NotMine, ""
	}
	if q.Type == wire.TypeAXFR || q.Type == wire.TypeIXFR {
		r.Fail(wire.Refused)
		return Refused, ""
	}
	m := z.lookup(name, o, b)
	switch {
	case b.exhausted():
		return OverBudget, ""
	case m.node == notFound:
		return z.nameError(name, o, r), ""
	case m.node == incomplete:
		return Incomplete, ""
	}
	w := answerWriter{zone: z, origin: o, reply: r, ttl: z.ttl, budget: b}
	r.SetAuthoritative()
	target, end := w.write(&m, q.Type)
	if outcome := z.outcomeOf(end, o, b); outcome != Answered {
		r.Reset()
		return outcome, ""
	}
	if target != "" {
		return Alias, target
	}
	if r.Count(wire.Answer) == 0 {
		w.writeSOA(wire.Authority)
	}
	return Answered, ""
}

// NoData makes r, the answer to q, a denial: the name has no records of this type (RFC 2308, 2.2). It leaves r as it is if the
// name is in none of z's zones, or their data are not loaded yet.
func (z *Zone) NoData(q *wire.Query, r *wire.Reply) {
	if o := z.origin(q.Name()); o != nil && z.view.syncedFor(o) {
		r.Reset()
		r.SetAuthoritative()
		w := answerWriter{zone: z, origin: o, reply: r, ttl: z.ttl}
		w.writeSOA(wire.Authority)
	}
}

// AnswerLarge is [Zone.Answer] without a budget, for an answer that is [OverBudget] with one. The answer is kept, and is
// copied as long as nothing changes that it is made of. One that is cut for UDP has others of the records each time; where near
// endpoints come first, the addresses of a group are in another order each time. Such answers are not kept.
func (z *Zone) AnswerLarge(q *wire.Query, r *wire.Reply) (Outcome, wire.Name) {
	epochs := z.epochsOf(q)
	if epochs == nil || z.ordered && isAddressType(q.Type) {
		return z.Answer(q, r, nil)
	}
	if z.large.get(q, r) {
		z.Touch(q)
		return Answered, ""
	}
	before := epochs.Any()
	outcome, target := z.Answer(q, r, nil)
	if outcome != Answered || !isWhole(r) {
		return outcome, target
	}
	if mark, ok := z.Mark(q, r, nil); ok && mark.Serial == 0 && epochs.Any() == before {
		z.large.put(q, r, epochs.Watch(mark))
	}
	return outcome, target
}

// epochsOf returns the epochs of the objects that the answer to q is made of; nil for none.
func (z *Zone) epochsOf(q *wire.Query) *epoch.Table {
	o := z.origin(q.Name())
	if o == nil {
		return nil
	}
	return z.view.indexFor(o.imports).epochs
}

// outcomeOf returns the outcome of an answer in o that ends at the node end, with the budget b.
func (z *Zone) outcomeOf(end nodeType, o *origin, b *Budget) Outcome {
	switch {
	case b.exhausted():
		return OverBudget
	case end == incomplete:
		return Incomplete
	case end == notFound && !z.view.syncedFor(o):
		return NotSynced
	}
	return Answered
}

// Await waits until the view holds the data for the answer to q, which was [Incomplete]. It
// is for callers without another server to ask. For a name that depends on the whole
// cluster, such as an endpoint's reverse name, the view watches the whole cluster for as
// long as such names are queried. Await returns the error of ctx.
func (z *Zone) Await(ctx context.Context, q *wire.Query) error {
	return z.view.await(ctx, q, func(q *wire.Query, r *wire.Reply, b *Budget) (Outcome, wire.Name) {
		outcome, target := z.Answer(q, r, b)
		if outcome == Incomplete {
			z.view.requestWholeCluster(z.lookup(q.Name(), z.origin(q.Name()), b))
		}
		return outcome, target
	})
}

// Origins returns the zones of the directive, the longest first.
func (z *Zone) Origins() []wire.Name {
	names := make([]wire.Name, len(z.origins))
	for i := range z.origins {
		names[i] = z.origins[i].name
	}
	return names
}

// nameError answers for a name that does not exist.
func (z *Zone) nameError(name []byte, o *origin, r *wire.Reply) Outcome {
	if z.fallsThrough(name) {
		return NotMine
	}
	if !z.view.syncedFor(o) {
		return NotSynced
	}
	w := answerWriter{zone: z, origin: o, reply: r, ttl: z.ttl}
	w.writeNXDomain()
	return Answered
}

// fallsThrough reports whether `fallthrough` applies to name errors for name.
func (z *Zone) fallsThrough(name []byte) bool {
	if z.fallthroughTo == nil {
		return false
	}
	for _, zone := range z.fallthroughTo.Zones {
		if wire.Under(name, zone) {
			return true
		}
	}
	return len(z.fallthroughTo.Zones) == 0
}

// origin returns the longest zone that contains name, nil if none does.
func (z *Zone) origin(name []byte) *origin {
	for i := range z.origins {
		if wire.Under(name, z.origins[i].name) {
			return &z.origins[i]
		}
	}
	return nil
}

// Ordered reports whether the addresses of endpoints are ordered by distance, and at random
// within a distance. The caller must not shuffle such answers.
func (z *Zone) Ordered() bool { return z.ordered }

// Rotatable reports whether the order of the addresses in the answer that [Zone.Answer] has
// just given to q is random, so that a copy may be sent in another order. It is false in
// doubt, and if b does not suffice.
func (z *Zone) Rotatable(q *wire.Query, b *Budget) bool {
	o := z.origin(q.Name())
	if o == nil || !isAddressType(q.Type) {
		return false
	}
	m := z.lookup(q.Name(), o, b)
	if b.exhausted() || m.node != serviceName || m.svc.kind != headless {
		return false
	}
	list, cut := m.svc.addrs(q.Type, b)
	n := len(list) / addrSize(q.Type)
	return !b.exhausted() && n <= wire.MaxAddrs && cut.uniform(n)
}

// ClientNamespace returns the namespace, as a label in wire form, of the pod of this node
// whose address is client. ok is false if there is no such pod, or if it is not certain
// which one it is. The result must not be changed. It is safe for concurrent use and does
// not allocate.
//
// An address may be reused as soon as its pod is gone, possibly before the API server
// reports either pod. A new pod is seen before it starts, without an address. As long as a
// pod of this node has no address in view, any client could be that pod; and an address
// that two pods claim belongs to neither.
func (z *Zone) ClientNamespace(client netip.Addr) (namespace []byte, ok bool) {
	v := z.view
	at := addrKey(client.As16())
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.index.pendingPods > 0 {
		return nil, false
	}
	p := v.index.onlyPodAt(at)
	if p == nil || !p.onNode || p.hostNetwork || p.terminating || !z.exposesLocked(p.ns) {
		return nil, false
	}
	return p.label, true
}

// ClientMark returns the mark of all results of [Zone.ClientNamespace]: while it matches, these are what they
// were, if it was read before them. Its index is 0 without [Options.Epochs].
func (z *Zone) ClientMark() epoch.Mark { return z.view.clientMark() }

// Mark returns the epoch mark of r, the answer that [Zone.Answer] has just given to q: when
// it no longer matches, a copy of r is invalid. An answer made from one Service, or denied
// because that Service does not exist, depends on the Service's group; other answers depend
// on every change that queries can see. Negative answers carry the zone's serial.
//
// The caller reads [epoch.Table.Any] before Answer and discards the copy unless it is
// unchanged after Mark. ok is false without [Options.Epochs], if r is not an answer of this
// zone, for an alias that leads out of it, and if b does not suffice. Mark does not block and does not change r.
func (z *Zone) Mark(q *wire.Query, r *wire.Reply, b *Budget) (mark epoch.Mark, ok bool) {
	name := q.Name()
	o := z.origin(name)
	if o == nil {
		return epoch.Mark{}, false
	}
	m := z.lookup(name, o, b)
	switch {
	case m.node == notFound && z.fallsThrough(name):
		return epoch.Mark{}, false
	case m.node == notFound:
		m.key = o.absentServiceKey(name)
	case m.isAlias() && isAddressType(q.Type):
		end := z.followAliases(m, o, b)
		if z.leaves(end, o) {
			return epoch.Mark{}, false
		}
		m = match{node: end.node} // it depends on more than one Service
	}
	if b.exhausted() {
		return epoch.Mark{}, false
	}
	return z.epochMark(&m, o, q, r)
}

// leaves reports whether aliases that lead to end go on outside of o, or may do so in the next steps.
func (z *Zone) leaves(end match, o *origin) bool {
	return end.isAlias() && !end.svc.target.Under(o.name) || end.node == notFound && z.fallthroughTo != nil
}

// Touch records that q was answered from a copy: the data behind the answer stays in use.
// It does not block.
func (z *Zone) Touch(q *wire.Query) {
	if o := z.origin(q.Name()); o != nil {
		var b Budget
		b.Refill()
		m := z.lookup(q.Name(), o, &b) // which records the use
		if isAddressType(q.Type) {
			z.followAliases(m, o, &b)
		}
	}
}

// epochMark returns the mark of r, the answer to q made from m.
func (z *Zone) epochMark(m *match, o *origin, q *wire.Query, r *wire.Reply) (epoch.Mark, bool) {
	x := z.view.indexFor(o.imports)
	positive := r.Rcode() == wire.NoError && r.Count(wire.Answer) > 0
	switch {
	case x.epochs == nil, m.node == incomplete, q.Type == wire.TypeAXFR, q.Type == wire.TypeIXFR, !positive && !z.view.syncedFor(o):
		return epoch.Mark{}, false
	case m.key == nil, z.needsNamespaceObject && (o.imports || !positive): // the Namespace may be in the other index, or be created
		return x.epochs.MarkAny(), true
	}
	mark := x.epochs.Mark(x.serviceGroup(m.key))
	if !positive {
		if mark.Serial = o.serial.shared.Index; mark.Serial == 0 {
			return x.epochs.MarkAny(), true
		}
	}
	return mark, true
}

// origin is one zone of a directive.
type origin struct {
	name    wire.Name
	svc     wire.Name // what services are below: "svc.<zone>"
	reverse bool
	imports bool // a multicluster zone
	// server and mailbox are the labels, in wire form, in front of the zone in the SOA's
	// MNAME and RNAME.
	server, mailbox string
	serial          *zoneSerial
	zonal           bool // has names by topology zone
}

// newOrigin returns the zone called name, a multicluster zone if it is among imports.
func newOrigin(v *View, name wire.Name, imports []wire.Name) origin {
	o := origin{
		name: name, svc: "\x03svc" + name,
		reverse: name.Under(arpa4) || name.Under(arpa6),
		imports: slices.Contains(imports, name),
		server:  "\x02ns\x03dns", mailbox: "\x0ahostmaster", serial: &v.serial,
	}
	if o.imports {
		o.serial = &v.importSerial
	}
	return o
}

// lacksServices reports whether o has no names of Services.
func (o *origin) lacksServices() bool { return o.reverse || o.imports }

// hasNamespace reports whether o has names in that namespace (a label in wire form).
func (o *origin) hasNamespace(v *View, ns []byte) bool {
	return v.hasNamespace(ns) || o.imports && v.importsInto(ns)
}

// absentServiceKey returns the key of the Service whose absence is the reason that name
// does not exist in o, or a stand-in for names that are below neither services nor pods and
// never exist. It returns nil if the name's existence depends on more.
func (o *origin) absentServiceKey(name []byte) []byte {
	rel := name[:len(name)-len(o.name)]
	var at [3]int // offsets of the last labels
	n := 0
	for off := 0; off < len(rel); off += 1 + int(rel[off]) {
		at[0], at[1], at[2] = at[1], at[2], off
		n++
	}
	last := string(rel[at[2]:])
	switch {
	case o.lacksServices() || last == "\x03pod" || last == "\x03svc" && n < 3:
		return nil
	case last == "\x03svc":
		return rel[at[0]:at[2]]
	}
	return rel[at[2]:]
}

// SOA returns the SOA record of the zone with this origin. ok is false if z has no such zone, or if it is a
// reverse zone: those are not transferred.
func (z *Zone) SOA(name wire.Name) (soa wire.RR, ok bool) {
	o := z.transferableOrigin(name)
	if o == nil {
		return wire.RR{}, false
	}
	return o.soa(z.ttl, z.view.serialOf(o)), true
}

// transferableOrigin returns the zone that is called name; nil if there is none or it can't be transferred.
func (z *Zone) transferableOrigin(name wire.Name) *origin {
	for i := range z.origins {
		if o := &z.origins[i]; o.name == name && !o.reverse {
			return o
		}
	}
	return nil
}

// Snapshot returns the current version of the zone with this origin, for which [Zone.SOA] returns a record. It requests
// the slices of headless Services that are not in view, and waits for them until ctx ends. The namespaces then count as used, as
// if a query had needed them. It returns an error at once if the view is not synced, if the cluster
// has more than 100,000 Services, or if the slices would exceed the scope that is configured.
func (z *Zone) Snapshot(ctx context.Context, name wire.Name) (*Snapshot, error) {
	return (&Snapshot{zone: z, origin: z.transferableOrigin(name)}).current(ctx)
}
