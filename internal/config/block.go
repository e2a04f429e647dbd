package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/wire"
)

// listenKey is the transport and port on which a block listens: CoreDNS groups blocks by
// these, not by addresses.
type listenKey struct {
	transport Transport
	port      uint16
}

// blocks reads one server block: a Block for each transport and port its keys name.
func (p *parser) blocks(g group) []*Block {
	zones := make(map[listenKey][]wire.Name)
	var doors []listenKey
	for _, w := range g.keys {
		for text := range strings.SplitSeq(w.text, ",") {
			key, err := parseKey(text)
			if err != nil {
				p.errorf(token{text: text, file: w.file, line: w.line}, "%v", err)
			}
			d := listenKey{key.transport, key.transport.defaultPort(p.opts.Port)}
			if key.ported {
				d.port = key.port
			}
			if !slices.Contains(doors, d) {
				doors = append(doors, d)
			}
			p.suspectZone(token{text: text, file: w.file, line: w.line})
			for _, zone := range key.zones {
				if slices.Contains(zones[d], zone) {
					p.suspect(w, "the zone %q is named twice", text)
					continue
				}
				zones[d] = append(zones[d], zone)
			}
		}
	}
	list := make([]*Block, 0, len(doors))
	for _, d := range doors {
		p.block = &Block{Zones: zones[d], Transport: d.transport, Port: d.port, File: g.keys[0].file, Line: g.keys[0].line}
		p.firsts = make(map[string]token)
		p.setRoot(g.directives)
		p.directives(g.directives)
		p.joinGRPC()
		p.checkCluster()
		p.setKeep()
		p.setListen()
		boundHostsTTL(p.block)
		p.checkCertificate()
		p.suspectBlock()
		p.suspectMetadata()
		list = append(list, p.block)
	}
	return list
}

// setupDirectives set up listeners, or the process: in CoreDNS they have no place in the chain of plugins.
var setupDirectives = []string{
	"bind", "debug", "grpc_server", "health", "https", "https3", "multisocket", "pprof", "quic", "ready", "reload", "root", "timeouts", "tls",
}

// OnlySetup reports whether b has no directive that queries reach. They are REFUSED then.
func (b *Block) OnlySetup() bool {
	return !slices.ContainsFunc(b.Directives(), func(name string) bool { return !slices.Contains(setupDirectives, name) })
}

// checkCertificate reports a block that has no certificate for its transport.
func (p *parser) checkCertificate() {
	b := p.block
	if b.Transport == PlainDNS || b.Transport == DNSOverGRPC || b.TLS != nil {
		return
	}
	at := token{text: b.Transport.String() + "://", file: b.File, line: b.Line}
	p.errorf(at, "%s needs a certificate; add `%s` to the block, or write its zones without %s", at.text, certificateUsage, at.text)
}

// checkCluster reports directives that need the block's kubernetes directive if there is
// none.
func (p *parser) checkCluster() {
	defer func() { p.name = "" }()
	if p.block.Kubernetes != nil {
		return
	}
	if a := p.block.Autopath; a != nil && a.Kubernetes {
		p.name = "autopath"
		p.errorf(p.firsts[p.name], "@kubernetes takes the search path from the block's kubernetes directive, and the block has none; add it, or name a resolv.conf file")
	}
	if p.block.K8sExternal != nil {
		p.name = "k8s_external"
		p.errorf(p.firsts[p.name], "the block needs a kubernetes directive, which finds the Services; add one, such as `kubernetes cluster.local`")
	}
}

// setListen sets p.block's addresses and reports upstreams that are one of them.
func (p *parser) setListen() {
	b := p.block
	addrs := p.opts.LocalIPs
	if b.Bind != nil {
		addrs = b.Bind.Addrs
	} else if len(addrs) == 0 {
		addrs = []netip.Addr{netip.IPv6Unspecified()}
	}
	for _, addr := range addrs {
		b.Listen = append(b.Listen, netip.AddrPortFrom(addr, b.Port))
	}
	defer func() { p.name = "" }()
	for f := b.Forward; f != nil; f = f.Next {
		p.name = f.Name()
		for _, to := range f.To {
			if !to.Addr.IsValid() || !listensOn(b.Listen, to.Addr) {
				continue
			}
			from := ""
			if len(f.Files) > 0 {
				from = " (see also " + strings.Join(f.Files, ", ") + ")"
			}
			at := p.firsts[f.Name()]
			at.text = to.String()
			p.errorf(at, "the upstream %s is an address that this block listens on, so queries would loop; name another upstream%s", to, from)
		}
	}
}

// ListensAt reports whether b certainly receives packets to the address to.
func (b *Block) ListensAt(to netip.AddrPort) bool { return listensOn(b.Listen, to) }

// listensOn reports whether packets to the address to certainly arrive at one of listen. For
// a listener on all addresses, only loopback and unspecified addresses are certain.
func listensOn(listen []netip.AddrPort, to netip.AddrPort) bool {
	for _, at := range listen {
		if at.Port() != to.Port() {
			continue
		}
		addr := to.Addr()
		own := addr.IsUnspecified() || addr == netip.IPv6Loopback() || addr == netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if at.Addr() == addr || at.Addr().IsUnspecified() && own {
			return true
		}
	}
	return false
}

// checkBlocks checks the blocks together.
func (p *parser) checkBlocks(path string, blocks []*Block) {
	if len(blocks) == 0 {
		p.errorf(token{file: path}, `no server block; a Corefile has at least one, such as ". { forward . /etc/resolv.conf }"`)
	}
	type claim struct {
		zone wire.Name
		door listenKey
		view string
	}
	claims := make(map[claim][]*Block)
	for _, b := range blocks {
		for _, zone := range b.Zones {
			c := claim{zone, listenKey{b.Transport, b.Port}, b.ViewName()}
			if !slices.ContainsFunc(claims[c], func(first *Block) bool { return p.checkOverlap(first, b, zone) }) {
				claims[c] = append(claims[c], b)
			}
		}
	}
	p.checkSharedSockets(blocks)
	p.checkSaves(blocks)
	p.checkServices(blocks)
	p.checkAAAA(blocks)
}

// checkSharedSockets reports blocks that can't share an address: a port of UDP or TCP has one
// transport and one certificate.
func (p *parser) checkSharedSockets(blocks []*Block) {
	firsts := make(socketBlocks)
	for _, b := range blocks {
		for _, addr := range b.Listen {
			first := firsts.add(b, addr)
			if first == nil {
				continue
			}
			if conflict := first.conflict(b, addr); conflict != "" {
				p.errorf(token{text: addr.String(), file: b.File, line: b.Line}, "the block at %s:%d %s", first.File, first.Line, conflict)
				break // its other addresses have the same error
			}
		}
	}
}

// conflict returns why next can't share addr with b, and what to do; "" if it can.
func (b *Block) conflict(next *Block, addr netip.AddrPort) string {
	const remedy = "; write the same `tls` in both, or bind them to different addresses"
	switch {
	case b.Transport != next.Transport:
		return fmt.Sprintf("already serves %s:// on %s, so this one can't serve %s:// there; give one of them another port", b.Transport, addr, next.Transport)
	case b.Transport == PlainDNS:
		return ""
	case b.TLS == nil || next.TLS == nil:
		if b.Transport == DNSOverGRPC && b.TLS != next.TLS { // for the other transports checkCertificate has an error
			return fmt.Sprintf("listens on %s, too, and only one of the two has a certificate"+remedy, addr)
		}
		return ""
	case *b.TLS != *next.TLS:
		return fmt.Sprintf("listens on %s with another certificate or client_auth"+remedy, addr)
	default:
		return ""
	}
}

// port is a port of an address on one network.
type port struct {
	netip.AddrPort
	network string
}

// socketBlocks are the first blocks that listen on each port.
type socketBlocks map[port]*Block

// add notes that b listens on addr. It returns another block that has one of the ports for it.
func (s socketBlocks) add(b *Block, addr netip.AddrPort) (first *Block) {
	for _, network := range b.Transport.networks() {
		at := port{addr, network}
		if s[at] == nil {
			s[at] = b
		} else {
			first = s[at]
		}
	}
	return first
}

// checkOverlap reports whether first already serves zone on an address of b, with a view of
// the same name, and adds an error then. A block without bind listens everywhere, as in
// CoreDNS.
func (p *parser) checkOverlap(first, b *Block, zone wire.Name) bool {
	if p.separateHost(first, b) {
		return false
	}
	if first.Bind != nil && b.Bind != nil {
		shared := slices.ContainsFunc(b.Bind.Addrs, func(a netip.Addr) bool { return slices.Contains(first.Bind.Addrs, a) })
		if !shared {
			return false
		}
	}
	at := token{text: zone.String(), file: b.File, line: b.Line}
	if b.View != nil {
		p.errorf(at, "the zone %s on port %d already has a view %q, in the block at %s:%d; give this one another name", zone, b.Port, b.View.Name, first.File, first.Line)
		return true
	}
	p.errorf(at, "the zone %s on port %d is already served by the block at %s:%d; merge the two blocks, or bind them to different addresses",
		zone, b.Port, first.File, first.Line)
	return true
}

// Boundaries returns the names whose data comes from another source than the data of the names
// above. The denial of a name above such a boundary does not apply below it.
func (b *Block) Boundaries() []wire.Name {
	bounds := append([]wire.Name(nil), b.Zones...)
	for f := b.Forward; f != nil; f = f.Next {
		bounds = append(append(bounds, f.From), f.Except...)
	}
	if b.Kubernetes != nil {
		bounds = append(append(bounds, b.Kubernetes.Zones...), b.Kubernetes.Multicluster...)
	}
	if b.K8sExternal != nil {
		bounds = append(bounds, b.K8sExternal.Zones...)
	}
	return bounds
}

// QUICLimits returns the limits that b sets for its transport.
func (b *Block) QUICLimits() QUICLimits {
	switch {
	case b.Transport == DNSOverQUIC && b.QUIC != nil:
		return b.QUIC.QUICLimits
	case b.Transport == DNSOverHTTP3 && b.HTTP3 != nil:
		return b.HTTP3.QUICLimits
	}
	return QUICLimits{}
}

// ViewName returns the name of b's view, "" if it has none.
func (b *Block) ViewName() string {
	if b.View == nil {
		return ""
	}
	return b.View.Name
}

// ListensForHost reports whether b listens on one of the addresses for the node's own look-ups.
func (b *Block) ListensForHost(addrs []netip.Addr) bool {
	return slices.ContainsFunc(b.Listen, func(at netip.AddrPort) bool { return slices.Contains(addrs, at.Addr()) })
}
