package main

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"

	"github.com/miekg/dns"
)

// keep is the TTL of everything the upstream says, in seconds: an hour is longer
// than a run, so nothing expires in it.
const keep = 3600

// upstream is the server that the measured ones forward to. It runs in the
// harness's own process: only the warm-up asks it.
type upstream struct {
	addr   netip.AddrPort
	server *dns.Server
	asked  atomic.Uint64
}

// startUpstream starts the upstream on a free port; the caller calls close.
func startUpstream() (*upstream, error) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("starting the upstream: %w", err)
	}
	u := &upstream{addr: conn.LocalAddr().(*net.UDPAddr).AddrPort()}
	started := make(chan struct{})
	u.server = &dns.Server{
		PacketConn: conn, Handler: dns.HandlerFunc(u.answer),
		NotifyStartedFunc: func() { close(started) },
	}
	failed := make(chan error, 1)
	go func() { failed <- u.server.ActivateAndServe() }()
	select {
	case <-started:
		return u, nil
	case err := <-failed:
		return nil, fmt.Errorf("starting the upstream: %w", err)
	}
}

func (u *upstream) close() { _ = u.server.Shutdown() }

// answer is the script: below nx.test no name exists, all other names have one
// address and nothing else.
func (u *upstream) answer(w dns.ResponseWriter, q *dns.Msg) {
	u.asked.Add(1)
	m := new(dns.Msg)
	m.SetReply(q)
	m.RecursionAvailable = true
	name := q.Question[0].Name
	missing := strings.HasSuffix(strings.ToLower(name), ".nx.test.")
	switch {
	case !missing && q.Question[0].Qtype == dns.TypeA:
		m.Answer = []dns.RR{&dns.A{
			Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: keep},
			A:   net.IPv4(192, 0, 2, 1),
		}}
	default:
		if missing {
			m.Rcode = dns.RcodeNameError
		}
		m.Ns = []dns.RR{&dns.SOA{
			Hdr: dns.RR_Header{Name: "test.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: keep},
			Ns:  "ns.test.", Mbox: "host.test.",
			Serial: 1, Refresh: keep, Retry: keep, Expire: keep, Minttl: keep,
		}}
	}
	// A client that is gone needs no answer.
	_ = w.WriteMsg(m)
}
