package app

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"github.com/nodens-dns/nodens/internal/config"
)

// answersDNS reports whether the agent answers a query over UDP at one of its own addresses
// before ctx ends. It returns true if the agent has no address for plain DNS. The query has an
// unknown EDNS version: every agent answers it (RFC 6891, section 6.1.3), whatever its zones and
// policies are, and without an upstream.
func (a *agent) answersDNS(ctx context.Context) bool {
	addr, ok := probeAddr(a.current.Load())
	return !ok || answersAt(ctx, addr)
}

// answersAt sends the query of [agent.answersDNS] to addr.
func answersAt(ctx context.Context, addr netip.AddrPort) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "udp", addr.String())
	if err != nil {
		return false
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if _, err := conn.Write(versionQuery[:]); err != nil {
		return false
	}
	reply := make([]byte, len(versionQuery))
	n, err := conn.Read(reply)
	return err == nil && n >= 2 && reply[0] == versionQuery[0] && reply[1] == versionQuery[1]
}

// probeAddr returns the lowest address on which g answers plain DNS, as a client on the node
// writes it.
func probeAddr(g *generation) (netip.AddrPort, bool) {
	var list []netip.AddrPort
	for addr, l := range g.listeners {
		if l.Transport == config.PlainDNS {
			list = append(list, addr.AddrPort)
		}
	}
	if len(list) == 0 {
		return netip.AddrPort{}, false
	}
	addr := slices.MinFunc(list, netip.AddrPort.Compare)
	switch addr.Addr() {
	case netip.IPv4Unspecified():
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), addr.Port()), true
	case netip.IPv6Unspecified():
		return netip.AddrPortFrom(netip.IPv6Loopback(), addr.Port()), true
	}
	return addr, true
}

// versionQuery asks for the root's NS records with EDNS version 255.
var versionQuery = [...]byte{
	0x6e, 0x64, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, // ID, flags, numbers of records
	0, 0, 2, 0, 1, // ., NS, IN
	0, 0, 41, 0x04, 0xd0, 0, 255, 0, 0, 0, 0, // ., OPT, 1232 bytes, version 255
}
