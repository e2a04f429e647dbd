package main

import (
	"crypto/tls"
	"hash/fnv"
	"net/netip"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// Zones of the upstreams. Names below missing don't exist; every other name has one address,
// which outsideAddr makes of it.
const (
	outside = "outside.test."
	missing = "missing.outside.test."
	kept    = "kept.outside.test."
	// overTLS is asked for at an upstream over TLS.
	overTLS = "tls.test."
)

const (
	// outsideTTL is longer than a round and shorter than a run.
	outsideTTL = 60
	// keptTTL is as long as an agent's cache allows.
	keptTTL = 3600
)

func outsideAddr(name string) netip.Addr {
	h := fnv.New32a()
	h.Write([]byte(strings.ToLower(name)))
	sum := h.Sum32()
	return netip.AddrFrom4([4]byte{198, byte(sum >> 16), byte(sum >> 8), byte(sum)})
}

func outsideQuestion(name string) question {
	if dns.IsSubDomain(missing, name) {
		return question{name: name, rcode: dns.RcodeNameError}
	}
	return question{name: name, addrs: []netip.Addr{outsideAddr(name)}}
}

func answerOutside(q *dns.Msg) *dns.Msg {
	name := q.Question[0].Name
	if dns.IsSubDomain(missing, name) {
		return fakedns.Negative(q, dns.RcodeNameError, outsideTTL)
	}
	ttl := uint32(outsideTTL)
	if dns.IsSubDomain(kept, name) {
		ttl = keptTTL
	}
	return fakedns.Address(q, ttl, outsideAddr(name).String())
}

// answerUpstream is answerOutside, and counts queries for names below kept.
func (r *run) answerUpstream(q *dns.Msg) *dns.Msg {
	if dns.IsSubDomain(kept, q.Question[0].Name) {
		r.keptAsked.Add(1)
	}
	return answerOutside(q)
}

// answer returns the reply that has what the question expects.
func (q question) answer(m *dns.Msg) *dns.Msg {
	if q.rcode != dns.RcodeSuccess {
		return fakedns.Negative(m, q.rcode, outsideTTL)
	}
	addrs := make([]string, len(q.addrs))
	for i, a := range q.addrs {
		addrs[i] = a.String()
	}
	return fakedns.Address(m, outsideTTL, addrs...)
}

// upstream is a scripted upstream at a fixed address that can die and return.
type upstream struct {
	*fakedns.Server
	handler fakedns.Handler
	options fakedns.Options
}

func openUpstream(reply func(q *dns.Msg) *dns.Msg, config *tls.Config) (*upstream, error) {
	// Malformed packets would be the agent's; they fail the queries.
	u := &upstream{handler: fakedns.Answers(reply), options: fakedns.Options{TLS: config, Addr: netip.AddrPortFrom(worldAddr, 0)}}
	err := u.open()
	if err == nil {
		u.options.Addr = u.Addr()
	}
	return u, err
}

// open starts the server, for the first time or after Close.
func (u *upstream) open() (err error) {
	u.Server, err = fakedns.Open(u.handler, u.options)
	return err
}
