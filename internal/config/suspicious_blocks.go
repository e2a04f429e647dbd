package config

import (
	"net/netip"
	"slices"

	"github.com/nodens-dns/nodens/internal/wire"
)

// suspectBlocks looks at the blocks together.
func (p *parser) suspectBlocks(path string, blocks []*Block) {
	if len(p.errs) > 0 {
		return
	}
	p.suspectLocalIPs(path, blocks)
	for i, b := range blocks {
		p.suspectUnreachable(blocks[:i], b)
		p.suspectLoops(blocks, b)
		p.suspectForwardedCluster(blocks, b)
		p.suspectOpenResolver(b)
	}
}

// suspectForwardedCluster reports a block that forwards a part of a cluster zone which another block has, such as
// svc.cluster.local beside `kubernetes cluster.local`.
func (p *parser) suspectForwardedCluster(blocks []*Block, b *Block) {
	if b.Kubernetes != nil || b.Forward == nil {
		return
	}
	for _, z := range b.Zones {
		i := slices.IndexFunc(blocks, func(o *Block) bool {
			return o.Kubernetes != nil && o.Port == b.Port && slices.ContainsFunc(o.Kubernetes.Zones, func(k wire.Name) bool { return !reverse(k) && z != k && z.Under(k) })
		})
		if i >= 0 {
			p.suspect(token{file: b.File, line: b.Line}, "names in %s are forwarded, although the block at %s:%d has `kubernetes`, which does not get them; take the zone out, or add `kubernetes` here", z, blocks[i].File, blocks[i].Line)
		}
	}
}

// suspectOpenResolver reports a block of an agent on a node that forwards for everybody who reaches the node.
func (p *parser) suspectOpenResolver(b *Block) {
	if len(p.opts.LocalIPs) == 0 || p.opts.PodNetwork || b.Forward == nil || b.ACL != nil {
		return
	}
	if slices.ContainsFunc(b.Listen, func(at netip.AddrPort) bool { return at.Addr().IsUnspecified() }) {
		p.suspect(token{file: b.File, line: b.Line}, "it listens on all addresses of the node, so that other hosts can use it as an open resolver; `bind` it to the addresses of --localip, or add `acl`")
	}
}

// suspectLocalIPs reports local addresses at which nothing listens, or at which only some names
// are answered.
func (p *parser) suspectLocalIPs(path string, blocks []*Block) {
	for _, ip := range p.opts.LocalIPs {
		at := netip.AddrPortFrom(ip, p.opts.Port)
		var here []*Block
		for _, b := range blocks {
			if b.Transport == PlainDNS && takesQueries(b, at) {
				here = append(here, b)
			}
		}
		switch {
		case len(here) == 0:
			p.suspect(token{file: path}, "no server block listens on %s, an address of --localip: queries to it are not answered; add it to bind", at)
		case !slices.ContainsFunc(here, func(b *Block) bool { return slices.Contains(b.Zones, wire.Root) }):
			p.suspect(token{file: path}, "no server block on %s serves the root zone: names outside of the zones are REFUSED; add a block for `.`", at)
		}
	}
}

// takesQueries reports whether b listens on an address of this node.
func takesQueries(b *Block, at netip.AddrPort) bool {
	return slices.ContainsFunc(b.Listen, func(l netip.AddrPort) bool {
		return l.Port() == at.Port() && (l.Addr() == at.Addr() || l.Addr().IsUnspecified())
	})
}

// suspectUnreachable reports a block whose queries all go to an earlier block of the same zones,
// one without a condition.
func (p *parser) suspectUnreachable(earlier []*Block, b *Block) {
	for _, zone := range b.Zones {
		first := slices.IndexFunc(earlier, func(o *Block) bool {
			return o.Transport == b.Transport && slices.Contains(o.Zones, zone) && (o.View == nil || len(o.View.When) == 0) &&
				!slices.ContainsFunc(b.Listen, func(at netip.AddrPort) bool { return !slices.Contains(o.Listen, at) })
		})
		if first < 0 {
			continue
		}
		o := earlier[first]
		p.suspect(token{file: b.File, line: b.Line}, "no query for %s reaches this block: the one at %s:%d takes all of them; write this one first", zone, o.File, o.Line)
	}
}

// suspectLoops reports upstreams of b that are addresses of this agent and lead back to b, or at
// which nothing listens.
func (p *parser) suspectLoops(blocks []*Block, b *Block) {
	p.name = "forward"
	defer func() { p.name = "" }()
	for f := b.Forward; f != nil; f = f.Next {
		for _, to := range f.To {
			if !to.Addr.IsValid() || to.Transport != PlainDNS {
				continue
			}
			at := token{text: to.String(), file: b.File, line: b.Line}
			target := blockFor(blocks, to.Addr, narrower(b.Zones, f.From))
			switch {
			case target != nil && leadsTo(blocks, target, b, narrower(b.Zones, f.From), len(blocks)):
				p.suspect(at, "the upstream %s is this agent, in the block at %s:%d, which forwards back to this block: queries loop; name another upstream", to, target.File, target.Line)
			case target == nil && slices.Contains(p.opts.LocalIPs, to.Addr.Addr()) && !slices.ContainsFunc(blocks, func(o *Block) bool { return takesQueries(o, to.Addr) }):
				p.suspect(at, "the upstream %s is an address of --localip at which no server block listens", to)
			}
		}
	}
}

// narrower returns the zone of a forward's queries: from, or the block's zone if that is below.
func narrower(zones []wire.Name, from wire.Name) wire.Name {
	for _, z := range zones {
		if z.Under(from) {
			return z
		}
	}
	return from
}

// blockFor returns the block that answers a query for zone at an address of this agent, nil if
// there is none or if that depends on the query.
func blockFor(blocks []*Block, at netip.AddrPort, zone wire.Name) (found *Block) {
	best := -1
	for _, b := range blocks {
		if b.Transport != PlainDNS || !b.ListensAt(at) {
			continue
		}
		for _, z := range b.Zones {
			if zone.Under(z) && z.Labels() > best {
				best, found = z.Labels(), b
			}
		}
	}
	if found != nil && found.View != nil {
		return nil
	}
	return found
}

// leadsTo reports whether b forwards a query for zone to the block to, directly or by others of
// this agent. It follows depth blocks at most.
func leadsTo(blocks []*Block, b, to *Block, zone wire.Name, depth int) bool {
	if b == to {
		return true
	}
	if depth == 0 {
		return false
	}
	for f := b.Forward; f != nil; f = f.Next {
		if !zone.Under(f.From) {
			continue
		}
		return slices.ContainsFunc(f.To, func(t Target) bool {
			if !t.Addr.IsValid() || t.Transport != PlainDNS {
				return false
			}
			next := blockFor(blocks, t.Addr, zone)
			return next != nil && leadsTo(blocks, next, to, zone, depth-1)
		})
	}
	return false
}
