package config

import (
	"iter"
	"reflect"
	"slices"
	"sync"
)

// directive is implemented by the pointer to each directive's type. parse sets the defaults
// of a zero value and reads s.
type directive interface {
	parse(p *parser, s statement)
}

// repeatable is implemented by directives that a block may have several times: join adds
// next, which was read from s, to the receiver.
type repeatable interface {
	join(p *parser, s statement, next directive)
}

// chained is implemented by directives that a block may have several times, each with the next one.
type chained[T any] interface {
	*T
	next() **T
}

// chain iterates over first, which may be nil, and the directives after it.
func chain[T any, C chained[T]](first C) iter.Seq[C] {
	return func(yield func(C) bool) {
		for c := first; c != nil && yield(c); {
			c = *c.next()
		}
	}
}

// extend appends added, which was read from s, to the chain that starts with first, if it has less than most
// directives. Else it records an error; what says of what there are too many, and what to do.
func extend[T any, C chained[T]](p *parser, s statement, first, added C, most int, what string) bool {
	list := slices.Collect(chain(first))
	if len(list) >= most {
		p.errorf(s.name(), "a block has more than %d %s", most, what)
		return false
	}
	*list[len(list)-1].next() = added
	return true
}

// field is a line of the table: a directive's name and its field in [Block].
type field struct {
	name  string
	index int
}

// fields returns the table, which is in [Block]'s tags. The caller must not change it.
var fields = sync.OnceValue(func() (list []field) {
	block := reflect.TypeFor[Block]()
	for i := range block.NumField() {
		if name := block.Field(i).Tag.Get("directive"); name != "" {
			list = append(list, field{name: name, index: i})
		}
	}
	return list
})

// agentOnly is implemented by the directives that can keep a block's answers from being copied into the
// kernel, or to a reader's own cache: the answer depends on the client, each query has to be seen, or what is asked
// before the sources of copies can change without a trace.
type agentOnly interface {
	// needsAgent reports whether it is so with the directive's settings.
	needsAgent() bool
}

// NeedsAgent returns the names of b's directives because of which none of its answers are copied, in the order of the
// table. A view on one of b's addresses has the same effect, whichever block has it.
func (b *Block) NeedsAgent() []string {
	var names []string
	v := reflect.ValueOf(b).Elem()
	for _, f := range fields() {
		if d := v.Field(f.index); !d.IsNil() {
			if d, ok := d.Interface().(agentOnly); ok && d.needsAgent() {
				names = append(names, f.name)
			}
		}
	}
	return names
}

// Directives returns the names of all directives in the order of the table. The steps of a query
// have another order, see package resolver.
func Directives() []string {
	var names []string
	for _, s := range fields() {
		names = append(names, s.name)
	}
	return names
}

// Optional returns the directives that a build of the agent may lack: those of zones that it serves with authority, and of
// response policy zones.
func Optional() []string { return []string{"rpz", "file", "auto", "secondary", "transfer", "tsig"} }

// Has reports whether b has the directive called name. A block with grpc has forward, too: both are [Block.Forward].
func (b *Block) Has(name string) bool {
	i := slices.IndexFunc(fields(), func(f field) bool { return f.name == name })
	return i >= 0 && !reflect.ValueOf(b).Elem().Field(fields()[i].index).IsNil()
}

// Directives returns the names of b's directives in the order of the table.
func (b *Block) Directives() []string {
	var names []string
	v := reflect.ValueOf(b).Elem()
	for _, s := range fields() {
		if v.Field(s.index).IsNil() || s.name == "forward" && b.Forward.GRPC {
			continue
		}
		names = append(names, s.name)
	}
	return names
}

// directives reads a block's directives into p.block.
func (p *parser) directives(list []statement) {
	table := fields()
	for _, s := range list {
		if len(p.errs) > 1000 { // not a Corefile; no error would show them all
			break
		}
		name := s.name()
		i := slices.IndexFunc(table, func(s field) bool { return s.name == name.text })
		if i < 0 {
			p.name = ""
			p.unknownDirective(name)
			continue
		}
		p.name = name.text
		if slices.Contains(p.opts.Lacks, name.text) {
			p.errorf(name, "this build of nodens lacks the directive %q; %s, or take a build that has it", name.text, serveElsewhere)
			continue
		}
		p.directive(table[i], s)
		if p.opts.Written {
			p.block.Written = append(p.block.Written, s.written())
		}
	}
	p.name = ""
}

// directive reads s into its field.
func (p *parser) directive(at field, s statement) {
	field := reflect.ValueOf(p.block).Elem().Field(at.index)
	fresh := reflect.New(field.Type().Elem())
	value := fresh.Interface().(directive)
	first, twice := p.firsts[at.name]
	value.parse(p, s)
	if !twice {
		p.firsts[at.name] = s.name()
		field.Set(fresh)
		return
	}
	if r, ok := field.Interface().(repeatable); ok {
		r.join(p, s, value)
		return
	}
	if reflect.DeepEqual(fresh.Interface(), field.Interface()) {
		p.suspect(s.name(), "%q is in the block twice with the same settings, first at %s:%d; keep one", at.name, first.file, first.line)
		return
	}
	p.errorf(s.name(), "%q is in the block twice, first at %s:%d; keep one", at.name, first.file, first.line)
}

// unknownDirective reports a directive that is not in the table.
func (p *parser) unknownDirective(w token) {
	remedy := Remedy(w.text)
	if w.text == "proxy" {
		p.errorf(w, "proxy is a directive of CoreDNS before 1.5; write `forward` with the same zone and servers").Nearest = "forward"
		return
	}
	if remedy == "" {
		p.unknown(w, "directive", Directives())
		return
	}
	f := p.errorf(w, "CoreDNS has the directive %q, this version of nodens doesn't: %s", w.text, remedy)
	f.Allowed = slices.Sorted(slices.Values(Directives()))
}

// Remedy returns what to do instead of a directive that CoreDNS has and this version doesn't. It
// returns "" for a directive that is accepted, and for one that CoreDNS doesn't have either.
func Remedy(directive string) string {
	if i := slices.IndexFunc(refused, func(r refusal) bool { return r.name == directive }); i >= 0 {
		return refused[i].remedy
	}
	return ""
}

// ServedElsewhere reports whether the remedy for a refused directive is to forward its zone to a
// CoreDNS that has it.
func ServedElsewhere(directive string) bool { return Remedy(directive) == serveElsewhere }

// refusal is a directive of CoreDNS that this version doesn't have, and what to do instead.
type refusal struct{ name, remedy string }

// Remedies that several directives share.
const (
	serveElsewhere = "forward the zone to a CoreDNS that has it"
)

// refused are CoreDNS's directives that this version doesn't have, for an error that is better
// than "unknown".
var refused = []refusal{
	{"azure", serveElsewhere},
	{"clouddns", serveElsewhere},
	{"dnssec", serveElsewhere},
	{"dynupdate", serveElsewhere},
	{"erratic", "take it out; it is for tests of clients"},
	{"etcd", serveElsewhere},
	{"geoip", "take it out; a view selects clients by their addresses"},
	{"nomad", serveElsewhere},
	{"on", "take it out; run the command outside the agent"},
	{"proxyproto", "take it out; let clients reach the agent without a proxy"},
	{"route53", serveElsewhere},
	{"sign", serveElsewhere},
	{"siit", "forward the names that need it to CoreDNS"},
}
