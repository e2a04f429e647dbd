package kubernetes

import (
	"context"
	"slices"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Outcome is what [Zone.Answer] came to.
type Outcome uint8

const (
	// NotMine: no zone of the directive holds the name, or it is a name error that
	// `fallthrough` passes on. Nothing is written; the next step answers.
	NotMine Outcome = iota
	// Answered: the reply is whole, a negative one included.
	Answered
	// NotSynced: the name is not in view, but the view is not complete. Nothing is
	// written. A name error would be remembered for a service that exists.
	NotSynced
	// Alias: the reply holds CNAMEs, and the last one's target is outside of the
	// zone. What the target resolves to comes behind them; if it does not resolve
	// the reply stands as it is, NOERROR.
	Alias
	// Refused: a zone transfer. The reply is a bare REFUSED.
	Refused
	// Incomplete: the answer hangs on objects that a view of this scope does not
	// hold, or not yet. Nothing is written. The cluster's own DNS has the answer;
	// where there is none to ask, [Zone.Await] waits until the view has it.
	Incomplete
	// OverBudget: the answer takes more steps than the query has left (see [Budget]). Nothing is
	// written. Who can take longer asks again, without a budget.
	OverBudget
)

// versionTTL is the TTL of dns-version: the answer changes with the program, so
// clients may keep it for the working day that CoreDNS gives it too.
const versionTTL = 28800

// soaTTL is the most a SOA's own TTL is; the MINIMUM says how long a negative
// answer holds.
const soaTTL = 300

// Zone answers the names of one `kubernetes` directive. It is immutable and safe
// for concurrent use.
type Zone struct {
	view                 *View
	origins              []origin // longest first
	primary              *origin  // what PTR records point into; nil if Services have names in none
	ttl                  uint32
	pods                 config.PodMode
	ignoreEmpty          bool
	namespaces           map[string]struct{} // namespaces' labels in wire form; nil is all
	needsNamespaceObject bool                // only namespaces whose own objects are in view have names
	fallthroughTo        *config.Fallthrough
	ordered              bool // the nearest endpoints come first
}

// origin is one zone of a directive.
type origin struct {
	name    wire.Name
	svc     wire.Name // what services are under: "svc.<zone>"
	reverse bool
	imports bool // its names are those of ServiceImports
	// server and mailbox are the labels in front of the zone, in wire form, that are
	// the SOA's name server and mailbox; serial is its serial.
	server, mailbox string
	serial          *zoneSerial
	zonal           bool // names by topology zone
}

const (
	arpa4 = "\x07in-addr\x04arpa\x00"
	arpa6 = "\x03ip6\x04arpa\x00"
)

// newOrigin is the zone name, whose names are those of ServiceImports if it is among
// imports.
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

// lacksServices reports whether Services have no names in o.
func (o *origin) lacksServices() bool { return o.reverse || o.imports }

// NewZone gives the answers of cfg from v. Of cfg it takes the zones and what
// shapes an answer: `namespaces`, `multicluster`, `ttl`, `pods`, `ignore`,
// `fallthrough`, `zonal`, `topology`. Where Services have names in none of the zones
// there is no name for a PTR record to hold, and no address has one.
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

// View is the view z answers from.
func (z *Zone) View() *View { return z.view }

// Answer writes the answer to q, which must be of class IN, into r, which must have
// been started for q and hold nothing yet. It takes no more steps than b has, and none
// that don't make a difference to what r is expected to hold. It does not block. With [Alias] it also
// gives the name outside of the zone that the server resolves in its own way; the
// name is "" with every other outcome. What has no object to make, which is all
// address and negative answers, allocates nothing.
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

// outcomeOf is what keeps an answer that ends at the node end, and has taken what b lacks, from being one; [Answered]
// is nothing.
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

// Await waits until the view holds what the answer to q, which was [Incomplete],
// hangs on: it is for those who have no other server to ask. With a name that only
// the whole cluster's objects can tell, such as an endpoint's reverse name, the view
// follows the whole cluster for as long as such names are asked for. The error is
// that of ctx.
func (z *Zone) Await(ctx context.Context, q *wire.Query) error {
	return z.view.await(ctx, q, func(q *wire.Query, r *wire.Reply, b *Budget) (Outcome, wire.Name) {
		outcome, target := z.Answer(q, r, b)
		if outcome == Incomplete {
			z.view.requestWholeCluster(z.lookup(q.Name(), z.origin(q.Name()), b))
		}
		return outcome, target
	})
}

// await waits until answer gives something other than [Incomplete] for q, or ctx
// ends.
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

// requestWholeCluster has the view follow what m, which is elsewhere, hangs on if that isn't the
// slices of one namespace.
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

// Origins are the zones of the directive, the longest first.
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

// fallsThrough reports whether name errors for name go on to the next directive.
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

// origin is the longest zone that holds name, nil if none does.
func (z *Zone) origin(name []byte) *origin {
	for i := range z.origins {
		if wire.Under(name, z.origins[i].name) {
			return &z.origins[i]
		}
	}
	return nil
}
