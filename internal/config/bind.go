package config

import (
	"net/netip"
	"slices"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Bind is `bind ADDRESS|INTERFACE… { except ADDRESS|INTERFACE… }`: where the block
// listens. Without it the block listens on every address of --localip, or on all
// addresses if there is none. A block may have several; their addresses add up.
type Bind struct {
	// Addrs has no duplicates and is never empty. Interfaces are replaced by the addresses
	// they had when the Config was made, and exceptions are removed. "::" is all addresses of
	// both families, and so is 0.0.0.0, as in CoreDNS and package net: it is replaced by "::", unless
	// another block has a zone of this one at "::".
	Addrs []netip.Addr
}

func (b *Bind) parse(p *parser, s statement) {
	if !p.count(s, "bind ADDRESS|INTERFACE…") {
		return
	}
	var except []netip.Addr
	p.body(s, opt("except ADDRESS|INTERFACE…", func(args []token) { except = append(except, p.addresses(args)...) }))
	p.suspectBind(s.args())
	faults := len(p.errs)
	for _, addr := range p.addresses(s.args()) {
		if !slices.Contains(except, addr) {
			b.add(addr)
		}
	}
	if len(b.Addrs) == 0 && len(p.errs) == faults {
		p.errorf(s.name(), "no address is left to listen on; take one out of except, or give the interface an address")
	}
}

// join adds the addresses of a further bind.
func (b *Bind) join(_ *parser, _ statement, next directive) {
	for _, addr := range next.(*Bind).Addrs {
		b.add(addr)
	}
}

func (b *Bind) add(addr netip.Addr) {
	if !slices.Contains(b.Addrs, addr) {
		b.Addrs = append(b.Addrs, addr)
	}
}

// addresses reads IP addresses and names of interfaces.
func (p *parser) addresses(words []token) []netip.Addr {
	var list []netip.Addr
	for _, w := range words {
		if addr, err := netip.ParseAddr(w.text); err == nil {
			list = append(list, addr.Unmap())
			continue
		}
		addrs, err := p.opts.Interface(w.text)
		if err != nil {
			p.errorf(w, "%q is neither an IP address nor an interface of this machine: %v", w.text, err)
			continue
		}
		if len(addrs) == 0 {
			p.errorf(w, "the interface %q has no address", w.text)
		}
		list = append(list, addrs...)
	}
	return list
}

// joinFamilies replaces 0.0.0.0 by "::", see [Bind]. One of two blocks for a zone, one at each of the two, would get no
// query; there 0.0.0.0 stays the IPv4 addresses, whose socket the kernel prefers.
func joinFamilies(blocks []*Block) {
	var changed []*Block
	for _, b := range blocks {
		if bindsTo(b, netip.IPv4Unspecified()) && !slices.ContainsFunc(blocks, func(o *Block) bool { return isOtherFamily(b, o) }) {
			changed = append(changed, b)
		}
	}
	for _, b := range changed {
		was := b.Bind.Addrs
		b.Bind, b.Listen = new(Bind), nil
		for _, addr := range was {
			if addr == netip.IPv4Unspecified() {
				addr = netip.IPv6Unspecified() // whose socket has both families
			}
			b.Bind.add(addr)
		}
		for _, addr := range b.Bind.Addrs {
			b.Listen = append(b.Listen, netip.AddrPortFrom(addr, b.Port))
		}
	}
}

// bindsTo reports whether b has addr in `bind`.
func bindsTo(b *Block, addr netip.Addr) bool {
	return b.Bind != nil && slices.Contains(b.Bind.Addrs, addr)
}

// isOtherFamily reports whether o is b's zone at the IPv6 addresses.
func isOtherFamily(b, o *Block) bool {
	return bindsTo(o, netip.IPv6Unspecified()) && !bindsTo(o, netip.IPv4Unspecified()) && o.Port == b.Port && o.ViewName() == b.ViewName() &&
		slices.ContainsFunc(b.Zones, func(z wire.Name) bool { return slices.Contains(o.Zones, z) })
}
