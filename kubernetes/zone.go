package kubernetes

import (
	"context"
	"slices"

	"github.com/nodens-dns/nodens/internal/config"
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

// Zone answers the names of one `kubernetes` directive. It is immutable and safe for
// concurrent use.
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

const (
	arpa4 = "\x07in-addr\x04arpa\x00"
	arpa6 = "\x03ip6\x04arpa\x00"
)

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
	if outcome := z.outcomeOf(end, b); outcome != Answered {
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

// outcomeOf returns the outcome of an answer that ends at the node end, with the budget b.
func (z *Zone) outcomeOf(end nodeType, b *Budget) Outcome {
	switch {
	case b.exhausted():
		return OverBudget
	case end == incomplete:
		return Incomplete
	case end == notFound && !z.view.Synced():
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

// await waits until answer returns something other than [Incomplete] for q, or ctx ends.
func (v *View) await(ctx context.Context, q *wire.Query, answer func(*wire.Query, *wire.Reply, *Budget) (Outcome, wire.Name)) error {
	for {
		more := v.scope.more()
		var r wire.Reply
		r.Start(nil, q)
		if outcome, _ := answer(q, &r, nil); outcome != Incomplete {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// requestWholeCluster makes the view watch all that m, which is incomplete, depends on,
// unless that is a single namespace.
func (v *View) requestWholeCluster(m match) {
	switch {
	case m.node != incomplete || m.svc != nil:
	case m.pod:
		v.scope.allPodsOnce.Do(func() { close(v.scope.allPodsNeeded) })
	default:
		v.scope.reverseUsed.Store(v.scope.tick.Load())
		v.requestReconcile()
	}
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
	if !z.view.Synced() {
		return NotSynced
	}
	w := answerWriter{zone: z, origin: o, reply: r, ttl: z.ttl}
	w.writeNXDomain()
	return Answered
}

// writeNXDomain answers that the name does not exist.
func (w *answerWriter) writeNXDomain() {
	w.reply.SetAuthoritative()
	w.reply.SetRcode(wire.NXDomain)
	w.writeSOA(wire.Authority)
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
