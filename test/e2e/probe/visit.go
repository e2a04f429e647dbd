package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/nodens-dns/nodens/test/e2e/probe/visit"
)

// runVisit is visit with its arguments as text.
func runVisit(ctx context.Context, args []string) error {
	denied, err := netip.ParseAddrPort(args[1])
	if err != nil {
		return fmt.Errorf("visit, the address that is denied: %w", err)
	}
	l, err := net.Listen("tcp", args[0])
	if err != nil {
		return err
	}
	return visit.Run(ctx, visit.Config{Allowed: args[3:], DeniedName: args[2], Denied: denied.Addr(), Port: denied.Port()}, l)
}
