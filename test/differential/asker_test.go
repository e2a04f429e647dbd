package differential

import (
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// asker makes random queries about a world that changes. The same seed and sequence make
// the same queries.
type asker struct {
	dice
	nameOptions
	world *generator
	// formerNames are the names that objects of earlier rounds could own, changedNames
	// those of the objects that the last round made, changed or deleted.
	formerNames, changedNames []string
}

func newAsker(g *generator, d nameOptions, seed, sequence uint64) *asker {
	return &asker{dice: newDice(seed, 1+sequence), nameOptions: d, world: g}
}

// allOwners are the names that objects of the world could own.
func (a *asker) allOwners() []string {
	return append(a.world.owners(), a.owners(&a.world.world)...)
}

// keepNames keeps the names of the world, which is about to change.
func (a *asker) keepNames() { a.formerNames = append(a.formerNames, a.allOwners()...) }

// noteChange has later queries be mostly about the change.
func (a *asker) noteChange(c *change) { a.changedNames = c.owners(a.nameOptions) }

// queries are n random questions about the world and about the other names: a
// name that an object could own or did own, mostly one that the last round had
// to do with, or one put together from the same words, sometimes changed a
// little.
func (a *asker) queries(n int, others []string) []query {
	owners := a.allOwners()
	out := make([]query, n)
	for i := range out {
		q := a.randomQuery()
		for !validName(q.name) {
			q.name = a.name(owners, others)
			if a.searches {
				a.useSearchPath(&q)
			}
		}
		q.dropped = unanswered(q)
		out[i] = q
	}
	return out
}

// name is one of the names, or one that is like them.
func (a *asker) name(owners, others []string) string {
	name := a.pick(owners)
	switch n := a.IntN(100); {
	case n < 20:
		name = a.inventName()
	case n < 30:
		name = a.pick(others)
	case n < 45 && len(a.formerNames) > 0:
		name = a.pick(a.formerNames)
	case n < 75 && len(a.changedNames) > 0:
		name = a.pick(a.changedNames)
	}
	if a.percent(20) {
		name = a.alterName(name)
	}
	return name
}

// validName says that it is a name: a change may leave an empty label or make one
// too long, as a slice's lack of a service does.
func validName(name string) bool {
	_, ok := dns.IsDomainName(name)
	return ok && !strings.Contains(name, "..") && (name == "." || !strings.HasPrefix(name, ".")) && name != ""
}

// unanswered says that CoreDNS may have no answer to the query.
func unanswered(q query) bool { return q.qtype == dns.TypePTR && importPool.has(q.name) }

// certainQueries are queries that are asked in each round, whatever the seed: those
// that show a difference that is meant and that few random ones would.
func (a *asker) certainQueries() []query {
	var names []string
	if a.external {
		for _, name := range []string{"edge-named.plain", "edge-both.plain", "edge-twice.plain", "end.edge-alias.plain", "_set-0.set.headless"} {
			names = append(names, name+"."+externalZone)
		}
	}
	if a.imports {
		names = append(names, "portless.plain.svc."+importZone)
	}
	var qs []query
	for _, name := range names {
		for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeCNAME, dns.TypeSRV} {
			qs = append(qs, query{name: name, qtype: kind})
		}
	}
	for _, from := range clients {
		p := a.world.clientPods[from]
		if !a.searches || p == nil {
			continue
		}
		domain := p.Namespace + ".svc." + zone
		for _, kind := range []uint16{dns.TypeA, dns.TypeHTTPS, dns.TypeMX} {
			for _, name := range []string{"", "host.ext.test.", "servfail.ext.test.", "missing.ext.test."} {
				qs = append(qs, query{name: name + domain, qtype: kind, from: from})
			}
		}
	}
	return qs
}

// randomQuery is a query without its name.
func (a *asker) randomQuery() query {
	q := query{qtype: allTypes[a.IntN(len(allTypes))], tcp: a.percent(5), norec: a.percent(5), cd: a.percent(5), ad: a.percent(5)}
	if a.percent(60) {
		q.qtype = allTypes[a.IntN(4)]
	}
	if a.percent(30) {
		q.ednsSize = ednsSize
		q.do = a.percent(50)
	}
	return q
}

// inventName puts a name together.
func (a *asker) inventName() string {
	labels := []string{a.pick([]string{"svc", "svc", "svc", "pod"}), strings.TrimSuffix(zone, ".")}
	switch {
	case a.imports && a.percent(40):
		labels[1] = strings.TrimSuffix(importZone, ".")
	case a.external && a.percent(40):
		labels = []string{strings.TrimSuffix(externalZone, ".")}
	}
	labels = append([]string{a.pick(randomNamespaces)}, labels...)
	short := len(labels)
	for range a.IntN(4) {
		labels = append([]string{a.pick(randomLabels)}, labels...)
	}
	if a.percent(30) && len(labels) == short+1 {
		labels = append([]string{"_" + a.pick(randomPorts), a.pick([]string{"_tcp", "_udp", "_sctp", "_TCP", "tcp"})}, labels...)
	}
	return strings.Join(slices.DeleteFunc(labels, func(l string) bool { return l == "" }), ".") + "."
}

// alterName drops, adds or upper-cases a label.
func (a *asker) alterName(name string) string {
	labels := strings.Split(strings.TrimSuffix(name, "."), ".")
	i := a.IntN(len(labels))
	switch a.IntN(4) {
	case 0:
		labels = slices.Delete(labels, i, i+1)
	case 1:
		labels = slices.Insert(labels, i, a.pick(randomLabels))
	case 2:
		labels[i] = "_" + labels[i]
	default:
		labels[i] = strings.ToUpper(labels[i])
	}
	return strings.Join(labels, ".") + "."
}

// useSearchPath makes the query one that a client sends on its search path: from a
// pod or a stranger, for a name that is short of some of its labels, below the
// domain of a namespace, mostly the pod's own.
func (a *asker) useSearchPath(q *query) {
	from := a.pick(append([]string{unknownClientAddr}, clients...))
	q.from = from
	if a.percent(30) || importPool.has(q.name) {
		return
	}
	ns := a.world.namespaces[a.IntN(len(a.world.namespaces))].Name
	if p := a.world.clientPods[from]; p != nil && a.percent(80) {
		ns = p.Namespace
	}
	name := a.pick([]string{"host.ext.test.", "missing.ext.test.", "alias2.ext.test.", "neg.test.", "servfail.ext.test.", q.name})
	for _, suffix := range []string{ns + ".svc." + zone, "svc." + zone, zone} {
		if a.percent(60) {
			name = strings.TrimSuffix(name, suffix)
		}
	}
	q.name = name + ns + ".svc." + zone
}
