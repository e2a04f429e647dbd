package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/internal/wire"
)

// withFallback adds to err, why there is no status, where the node's queries go: what is known of an agent that is gone or
// hangs, and whether queries to addrs, the addresses of its interface, are answered now.
func withFallback(ctx context.Context, err error, addrs []netip.AddrPort) error {
	switch {
	case errors.Is(err, report.ErrNoAgent):
		err = fmt.Errorf("%w; while no agent answers, the cluster DNS serves the node if fail-open was active", err)
	case errors.Is(err, report.ErrHangs):
		err = fmt.Errorf("%w; its sockets are open, so the node's queries still go to it: end its process, and the cluster DNS serves the node if fail-open was active", err)
	default:
		return err
	}
	for _, addr := range addrs {
		if answersQueries(ctx, addr) {
			err = fmt.Errorf("%w; now queries of this node to %s are answered", err, addr.Addr())
		} else {
			err = fmt.Errorf("%w; now queries of this node to %s are not answered: pods that ask there have no DNS", err, addr.Addr())
		}
	}
	return err
}

// interfaceAddrs returns where the agent listens by default: the addresses of its interface, which stay when it dies. There
// are none if it has no interface of the default name.
func interfaceAddrs() (list []netip.AddrPort) {
	const port = 53
	i, err := net.InterfaceByName(options.Default().InterfaceName)
	if err != nil {
		return nil
	}
	addrs, _ := i.Addrs()
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && (prefix.Addr().Is4() || !prefix.Addr().IsLinkLocalUnicast()) {
			list = append(list, netip.AddrPortFrom(prefix.Addr(), port))
		}
	}
	return list
}

// answersQueries reports whether a DNS server replies at addr, with whatever rcode.
func answersQueries(ctx context.Context, addr netip.AddrPort) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "udp", addr.String())
	if err != nil {
		return false
	}
	defer conn.Close()
	name, _ := wire.ParseName("kubernetes.default.svc.cluster.local.")
	query, reply := wire.AppendQuery(nil, uint16(rand.Uint32()), []byte(name), wire.TypeA, nil, wire.SafeUDP), make([]byte, wire.SafeUDP)
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write(query); err != nil {
		return false
	}
	n, err := conn.Read(reply)
	return err == nil && wire.Matches(reply[:n], query)
}
