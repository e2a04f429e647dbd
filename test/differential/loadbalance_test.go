package differential

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// balanceBlock is a server block: its port, its `loadbalance`, and the directory of the weights.
const balanceBlock = `.:%d {
    bind 127.0.0.1
    errors
    root %s
    %s
    hosts {
        10.0.0.1 www.test
        10.9.20.1 www.test
        192.168.1.1 www.test
        10.9.20.2 www.test
        2001:db8::1 www.test
        2001:db8:1::1 www.test
        10.0.0.1 other.test
        10.0.0.2 other.test
        fallthrough
    }
    template IN A alias.test {
        answer "alias.test. 60 IN CNAME www.test."
        fallthrough
    }
}
`

// weightText are the weights: nearly always the one with 255 is the first.
const weightText = `# the name, then its addresses
www.test
10.9.20.2 255
10.0.0.1 1

2001:db8:1::1 200
`

// balances are the directives that are compared, and how often each address must be the first of www.test's at
// least in 200 replies, by type; a network's address stands for all of them.
var balances = []struct {
	text  string
	first map[uint16]string
}{
	{"loadbalance", nil},
	{"loadbalance round_robin {\n        prefer 192.168.1.0/24 10.9.20.0/24\n    }", map[uint16]string{dns.TypeA: "192.168.1.1"}},
	{"loadbalance {\n        prefer 2001:db8:1::/48\n        prefer 192.168.1.1/16\n    }", map[uint16]string{dns.TypeA: "192.168.1.1", dns.TypeAAAA: "2001:db8:1::1"}},
	{"loadbalance weighted weights {\n        reload 1s\n    }", nil},
	{"loadbalance weighted weights", nil},
}

const balanceReplies = 200

// TestLoadbalance compares the order of addresses: how often each is the first one, and where preferred ones are.
func TestLoadbalance(t *testing.T) {
	if testing.Short() {
		t.Skip("building CoreDNS takes minutes: skipped under -short")
	}
	dir := t.TempDir()
	check.NoError(t, os.WriteFile(filepath.Join(dir, "weights"), []byte(weightText), 0o644))
	ports := peer.Ports(t, 2*len(balances))
	var texts [2]strings.Builder
	for i, b := range balances {
		for side := range texts {
			fmt.Fprintf(&texts[side], balanceBlock, ports[2*i+side], dir, b.text)
		}
	}
	for side, name := range []string{"coredns", "nodens"} {
		serveRules(t, name, texts[side].String(), netip.AddrPortFrom(loopback, ports[side]))
	}
	for i, b := range balances {
		for _, name := range []string{"www.test.", "alias.test.", "other.test."} {
			for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
				want := countOrders(t, netip.AddrPortFrom(loopback, ports[2*i]), name, qtype)
				got := countOrders(t, netip.AddrPortFrom(loopback, ports[2*i+1]), name, qtype)
				what := fmt.Sprintf("%s: %s %s", b.text, name, dns.TypeToString[qtype])
				want.compare(t, what, got)
				if first := b.first[qtype]; first != "" && name == "www.test." && got.first[first] != balanceReplies {
					t.Errorf("%s: %s is the first in %d of %d replies", what, first, got.first[first], balanceReplies)
				}
			}
		}
	}
}

// orders are what a number of replies have in common, and how often each address is the first one.
type orders struct {
	records string // all of a reply, sorted
	first   map[string]int
}

// countOrders asks a server again and again.
func countOrders(t *testing.T, addr netip.AddrPort, name string, qtype uint16) orders {
	t.Helper()
	o := orders{first: map[string]int{}}
	conn, err := dns.Dial("udp", addr.String())
	check.NoError(t, err)
	defer conn.Close()
	for range balanceReplies {
		m, _, err := (&dns.Client{Timeout: longWait}).ExchangeWithConn(new(dns.Msg).SetQuestion(name, qtype), conn)
		check.NoError(t, err)
		o.add(m)
	}
	return o
}

// add adds a reply.
func (o *orders) add(m *dns.Msg) {
	var records, addresses []string
	for _, rr := range m.Answer {
		records = append(records, strings.ToLower(rr.String()))
		switch rr := rr.(type) {
		case *dns.A:
			addresses = append(addresses, rr.A.String())
		case *dns.AAAA:
			addresses = append(addresses, rr.AAAA.String())
		}
	}
	slices.Sort(records)
	o.records = strings.Join(records, "; ")
	if len(addresses) > 0 {
		o.first[addresses[0]]++
	}
}

// compare fails the test unless both have the same records, and the same shares of first places within what chance
// makes of them: six standard deviations of the difference, which are at most 60 of 200 replies.
func (o *orders) compare(t *testing.T, what string, other orders) {
	t.Helper()
	if diff := gocmp.Diff(o.records, other.records); diff != "" {
		t.Errorf("%s (-coredns +nodens):\n%s", what, diff)
	}
	for _, list := range []map[string]int{o.first, other.first} {
		for addr := range list {
			if d := o.first[addr] - other.first[addr]; d > 60 || d < -60 {
				t.Errorf("%s: %s is the first in %d replies of CoreDNS, and in %d", what, addr, o.first[addr], other.first[addr])
			}
		}
	}
}
