package main

import (
	"crypto/tls"
	"hash/fnv"
	"net/netip"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/fakedns"
)

// Zones of the upstreams. Names below missing don't exist; every other name has one address,
// which outsideAddr makes of it.
const (
	outside = "outside.test."
	missing = "missing.outside.test."
	// overTLS is asked for at an upstream over TLS.
	overTLS = "tls.test."
)

// outsideTTL is longer than a round and shorter than a run.
const outsideTTL = 60

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
	return fakedns.Address(q, outsideTTL, outsideAddr(name).String())
}

// upstream is a scripted upstream at a fixed address that can die and return.
type upstream struct {
	*fakedns.Server
	options fakedns.Options
}

func openUpstream(config *tls.Config) (*upstream, error) {
	// Malformed packets would be the agent's; they fail the queries.
	u := &upstream{options: fakedns.Options{TLS: config}}
	err := u.open()
	if err == nil {
		u.options.Addr = u.Addr()
	}
	return u, err
}

// open starts the server, for the first time or after Close.
func (u *upstream) open() (err error) {
	u.Server, err = fakedns.Open(fakedns.Answers(answerOutside), u.options)
	return err
}
