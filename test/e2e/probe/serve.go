package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// serve answers at the ports over UDP and TCP until the context ends. The Nth port gives
// 198.51.100.N as the address of every name; names whose first label is nx do not exist. There
// are no other records.
func serve(ctx context.Context, ports []string) error {
	for i, port := range ports {
		addr, err := netip.ParseAddrPort("[::]:" + port)
		if err != nil {
			return err
		}
		s, err := fakedns.Open(fakedns.Answers(func(q *dns.Msg) *dns.Msg { return answer(q, i+1) }), fakedns.Options{Addr: addr})
		if err != nil {
			return fmt.Errorf("port %s: %w", port, err)
		}
		defer s.Close()
	}
	<-ctx.Done()
	return nil
}

// ttl is a second, so that a change of servers shows with the next query.
const ttl = 1

// answer is the reply of the nth server.
func answer(q *dns.Msg, n int) *dns.Msg {
	m := fakedns.Address(q, ttl, fmt.Sprintf("198.51.100.%d", n))
	switch {
	case strings.HasPrefix(strings.ToLower(q.Question[0].Name), "nx."):
		m = fakedns.Negative(q, dns.RcodeNameError, ttl)
	case len(m.Answer) == 0:
		m = fakedns.Negative(q, dns.RcodeSuccess, ttl)
	}
	m.Authoritative = true
	return m
}
