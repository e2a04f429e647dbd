package config

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// RPZ is `rpz ZONE { file PATH; reload DURATION; transfer from ADDRESS…; namespaces NAMESPACES…; audit }`: a response policy
// zone (draft-vixie-dnsop-dns-rpz), whose rules say which names clients can't resolve.
type RPZ struct {
	// Zone is the name of the response policy zone. No query is answered from it.
	Zone wire.Name
	// File is the zone file's path, "" for none; Reload is the time between two checks of it, 0 is never.
	File   string
	Reload time.Duration
	// From are the primary servers, in the order in which they are asked; nil: the zone is in File.
	From []netip.AddrPort
	// Namespaces limits the rules to the pods of these namespaces; nil: they are for all clients.
	Namespaces []string
	// Audit says that the rules deny nothing: what they would deny is counted.
	Audit bool
	// Next is the next zone of the same block, whose rules are for names that this one has no rule for.
	Next *RPZ
}

const (
	rpzUsage = "rpz ZONE { file PATH | transfer from ADDRESS… }"
	// maxRPZ bounds the response policy zones of a block, each of which each query is compared with.
	maxRPZ = 16
	// maxRPZNamespaces bounds the namespaces of one.
	maxRPZNamespaces = 1000
)

func (z *RPZ) parse(p *parser, s statement) {
	z.Reload = time.Minute
	if !p.count(s, rpzUsage) {
		return
	}
	before := len(p.errs)
	if zones := p.zones(s.args()); len(zones) > 0 {
		z.Zone = zones[0]
	}
	var primaries Secondary
	p.body(s,
		opt("file PATH", func(args []token) { z.File = p.filePath(s.name(), args[0]) }),
		opt("reload DURATION", p.toDuration(&z.Reload, 0, longest)),
		opt(transferFromUsage, func(args []token) { primaries.transferFrom(p, args) }),
		opt("namespaces NAMESPACES…", func(args []token) { z.Namespaces = append(z.Namespaces, texts(args)...) }),
		flag("audit", &z.Audit),
	)
	if z.From = primaries.From; len(p.errs) == before {
		z.check(p, s)
	}
}

// check reports options that don't go together.
func (z *RPZ) check(p *parser, s statement) {
	switch {
	case z.Zone == wire.Root:
		p.errorf(s.name(), "the root can't be a response policy zone; write the zone's name, such as rpz.example")
	case z.File == "" && len(z.From) == 0:
		p.errorf(s.name(), "nothing says where the rules come from; write in its block: file PATH, or %s", transferFromUsage)
	case z.File != "" && len(z.From) > 0:
		p.errorf(s.name(), "the rules come from a file or from primary servers, not from both; leave out file or transfer")
	case len(z.Namespaces) > maxRPZNamespaces:
		p.errorf(s.name(), "it has more than %d namespaces; leave out namespaces, or write the zone for the others into another block", maxRPZNamespaces)
	}
	for _, ns := range z.Namespaces[:min(len(z.Namespaces), maxRPZNamespaces)] {
		if strings.ContainsAny(ns, "/.*,") || ns != strings.ToLower(ns) {
			p.errorf(s.name(), "%q is not the name of a namespace; write one or more names, such as `namespaces web ci`", ns)
		}
	}
}

func (z *RPZ) next() **RPZ { return &z.Next }

// join appends a further directive to the chain.
func (z *RPZ) join(p *parser, s statement, next directive) {
	more := next.(*RPZ)
	if more.Zone != "" && slices.ContainsFunc(z.All(), func(first *RPZ) bool { return first.Zone == more.Zone }) {
		p.errorf(s.name(), "the response policy zone %s is in the block twice; keep one", more.Zone)
		return
	}
	extend(p, s, z, more, maxRPZ, "response policy zones; join some of their files")
}

// All returns the zones of a block in order; none if z is nil.
func (z *RPZ) All() []*RPZ { return slices.Collect(chain(z)) }
