package main

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/miekg/dns"
)

// serve answers at the ports, over UDP and TCP, until the context ends: the Nth port gives
// 198.51.100.N as the address of every name, and names whose first label is nx are not
// there. There are no other records.
func serve(ctx context.Context, ports []string) error {
	failed := make(chan error, 2*len(ports))
	for i, port := range ports {
		at := net.JoinHostPort("", port)
		for _, proto := range []string{"udp", "tcp"} {
			server := &dns.Server{Addr: at, Net: proto, Handler: authority(i + 1)}
			go func() { failed <- fmt.Errorf("%s port %s: %w", proto, port, server.ListenAndServe()) }()
		}
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// authority gives addresses that end in the number.
type authority byte

// ServeDNS implements dns.Handler.
func (a authority) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	m.Authoritative, m.RecursionAvailable = true, true
	name, kind := q.Question[0].Name, q.Question[0].Qtype
	header := func(kind uint16) dns.RR_Header {
		// A second, so that a change of servers is seen by the next question.
		return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: 1}
	}
	absent := strings.HasPrefix(strings.ToLower(name), "nx.")
	if kind == dns.TypeA && !absent {
		m.Answer = []dns.RR{&dns.A{Hdr: header(dns.TypeA), A: net.IPv4(198, 51, 100, byte(a))}}
	} else {
		soa := &dns.SOA{Hdr: header(dns.TypeSOA), Ns: "ns.invalid.", Mbox: "host.invalid.", Serial: 1, Refresh: 1, Retry: 1, Expire: 1, Minttl: 1}
		soa.Hdr.Name = "."
		m.Ns = []dns.RR{soa}
	}
	if absent {
		m.Rcode = dns.RcodeNameError
	}
	_ = w.WriteMsg(m) // a client that is gone needs no reply
}
