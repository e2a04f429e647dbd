package config

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/resolvconf"
	"github.com/nodens-dns/nodens/internal/wire"
)

// hostFlag stands for a file name in errors, and in the blocks that the flag adds.
const hostFlag = "--host-listen"

// hostTTL is the cache time of the default block, as in a stub domain.
const hostTTL = 30 * time.Second

// hostBlock returns the block for the addresses of --host-listen to which no block is bound; nil if there are none.
// It is
//
//	. {
//	    bind ADDRESS…
//	    errors
//	    cache 30
//	    loop
//	    forward . SERVERS-OF-THE-NODE
//	}
//
// A forwarder on the node, such as dnsmasq, may take its servers from /etc/resolv.conf and find the agent there,
// hence loop.
func (p *parser) hostBlock(blocks []*Block) []*Block {
	var free []netip.Addr
	for _, a := range p.opts.HostListen {
		bound := func(b *Block) bool { return bindsTo(b, a) && b.Transport == PlainDNS && b.Port == p.opts.Port }
		if !slices.ContainsFunc(blocks, bound) {
			free = append(free, a)
		}
	}
	if len(free) == 0 || len(blocks) == 0 { // without any block the file is not a Corefile
		return nil
	}
	at := token{text: hostFlag, file: hostFlag, line: 1}
	b := &Block{Zones: []wire.Name{wire.Root}, Port: p.opts.Port, File: at.file, Line: at.line, Errors: &Errors{}, Loop: &Switch{}, Bind: &Bind{Addrs: free}}
	cache := defaultCache()
	cache.Zones = b.Zones
	cache.Success.MaxTTL, cache.Denial.MaxTTL = hostTTL, hostTTL
	forward := defaultForward()
	b.Cache, b.Forward = &cache, &forward
	p.block, p.firsts = b, map[string]token{"forward": at}
	for _, server := range p.hostServers(at) {
		forward.add(Target{Addr: server})
	}
	p.setListen()
	return []*Block{b}
}

// hostServers returns the node's servers. Without any it records an error at w.
func (p *parser) hostServers(w token) (servers []netip.AddrPort) {
	if p.opts.HostServers == nil {
		return []netip.AddrPort{UnknownNameserver}
	}
	list, err := p.opts.HostServers()
	if err != nil {
		p.errorf(w, "the name servers of the node can't be read: %v; see --host-root, or write a server block with `bind %v` and `forward`", err, p.opts.HostListen[0])
		return nil
	}
	if list = p.withoutAgent(list); len(list) == 0 {
		p.errorf(w, "the node has no name server but the agent; give it one, or write a server block with `bind %v` and `forward`", p.opts.HostListen[0])
	}
	for _, a := range list[:min(len(list), maxUpstreams)] {
		servers = append(servers, netip.AddrPortFrom(a, plainPort))
	}
	p.texts = append(p.texts, file{path: hostFlag, text: []byte(strings.Join(allTexts(servers), " "))})
	return servers
}

// withoutAgent removes what would lead queries back to the agent: its own addresses, and systemd-resolved's, which
// asks the agent.
func (p *parser) withoutAgent(list []netip.Addr) []netip.Addr {
	return resolvconf.Host{Addrs: slices.Concat(p.opts.HostListen, p.opts.LocalIPs)}.Others(list)
}

// isNodes reports whether a path stands for the node's servers, and not for a file of the agent's container: that is a
// copy from the start of the container, which may name the agent.
func (p *parser) isNodes(path string) bool {
	return path == "/etc/resolv.conf" && len(p.opts.HostListen) > 0 && p.opts.HostServers != nil
}

// fileServers returns the servers of the resolv.conf file that w names. With --host-listen the agent may be in that
// file, too: if no other server is left, the node's servers are used.
func (p *parser) fileServers(w token, list []netip.AddrPort) (servers []netip.AddrPort) {
	if len(p.opts.HostListen) == 0 || len(list) == 0 {
		return list
	}
	for _, s := range list {
		if len(p.withoutAgent([]netip.Addr{s.Addr()})) > 0 {
			servers = append(servers, s)
		}
	}
	if len(servers) == 0 {
		return p.hostServers(w)
	}
	return servers
}

// separateHost reports whether one of two blocks serves only the node's own look-ups, and they share no address. A block
// without bind gets no query to an address that another one is bound to.
func (p *parser) separateHost(a, b *Block) bool {
	only := func(b *Block) bool {
		return b.Bind != nil && !slices.ContainsFunc(b.Bind.Addrs, func(addr netip.Addr) bool { return !slices.Contains(p.opts.HostListen, addr) })
	}
	return (only(a) || only(b)) && !slices.ContainsFunc(a.Listen, func(at netip.AddrPort) bool { return slices.Contains(b.Listen, at) })
}
