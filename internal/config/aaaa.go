package config

import "github.com/nodens-dns/nodens/internal/wire"

// AAAA is `aaaa auto { except ZONES… }`: pods without an IPv6 address get no IPv6 addresses.
type AAAA struct {
	// Except are the zones whose names keep their IPv6 addresses.
	Except []wire.Name
}

const aaaaUsage = "aaaa auto { except ZONES… }"

func (a *AAAA) parse(p *parser, s statement) {
	if p.count(s, aaaaUsage) {
		choice(p, s.args()[0], "mode", map[string]bool{"auto": true})
	}
	p.body(s, opt("except ZONES…", p.toZones(&a.Except)))
}

// checkAAAA reports an aaaa directive that has no effect, or whose effect another one would undo.
func (p *parser) checkAAAA(blocks []*Block) {
	defer func() { p.name = "" }()
	p.name = "aaaa"
	for _, b := range blocks {
		at := token{text: "auto", file: b.File, line: b.Line}
		switch {
		case b.AAAA == nil:
		case Cluster(blocks, b) == nil:
			p.errorf(at, "the pods' addresses are those that a kubernetes directive sees, and no block has one; add it, such as `kubernetes cluster.local`, or take aaaa out")
		case b.DNS64 != nil:
			p.errorf(at, "aaaa keeps IPv6 addresses from pods without one, and dns64 makes some for names without any; take one of them out of the block, or give it a block of its own")
		}
	}
}
