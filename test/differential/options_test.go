package differential

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// optionRules are rules for EDNS options. Each is one block of both servers.
var optionRules = []string{
	"edns0 local set 0xffee 0x61626364", "edns0 local set 65518 abcd revert", "edns0 local append 0xffee abcd",
	"edns0 local replace 0xffee abcd", "edns0 local unset 0xffee", "edns0 local set 0xffee 0x",
	"edns0 local set 0xffee {qname}", "edns0 local set 0xffee {qtype}", "edns0 local set 0xffee {client_ip}",
	"edns0 local set 0xffee {protocol}", "edns0 local set 0xffee {server_ip}", "edns0 local set 0xffee {server_port}",
	"edns0 local append 0xffee {client_ip}", "edns0 local replace 0xffee {client_ip}", "edns0 local set 0xffee {view/name}",
	"edns0 local set 0xffee {view/none}\n    rewrite edns0 local set 0xffef b",
	"edns0 nsid set", "edns0 nsid append", "edns0 nsid replace", "edns0 nsid unset",
	"edns0 subnet set 24 56", "edns0 subnet set 0 0", "edns0 subnet set 31 128", "edns0 subnet append 24 56", "edns0 subnet replace 24 56 revert", "edns0 subnet unset",
	"continue edns0 local set 0xffee a\n    rewrite edns0 local set 0xffef b", "stop edns0 local set 0xffee a\n    rewrite edns0 local set 0xffef b",
	"edns0 local replace 0xffee a\n    rewrite edns0 local set 0xffef b", "continue edns0 local set 0xffee a\n    rewrite edns0 local replace 0xffee bcde revert",
	"continue name a.test b.test\n    rewrite edns0 local set 0xffee {qname}", "continue type TXT AAAA\n    rewrite edns0 local set 0xffee {qtype}",
	"continue {\n        edns0 local set 0xffee ab\n    }\n    rewrite name suffix .test .example answer auto",
	`name regex ^([a-z]+)\.test\.$ {1}.{view/name}.example metadata answer auto`, `name regex ^([a-z]+)\.test\.$ {1}.{view/none}.example metadata`,
}

// optionBlock is a server block: its port, its rules, and the upstream.
const optionBlock = `.:%d {
    bind 127.0.0.1
    errors
    metadata
    view Inner {
        expr true
    }
    rewrite %s
    forward . %s
}
`

// TestRewriteOptions compares what an upstream gets under rules for EDNS options and names of metadata: its reply
// has a TXT record for each option.
func TestRewriteOptions(t *testing.T) {
	if testing.Short() {
		t.Skip("building CoreDNS takes minutes: skipped under -short")
	}
	upstream := fakedns.Start(t, fakedns.Answers(replyOptions)).Addr()
	ports := peer.Ports(t, 2*len(optionRules))
	var texts [2]strings.Builder
	for i, rule := range optionRules {
		for side := range texts {
			fmt.Fprintf(&texts[side], optionBlock, ports[2*i+side], rule, upstream)
		}
	}
	for side, name := range []string{"coredns", "nodens"} {
		serveRules(t, name, texts[side].String(), netip.AddrPortFrom(loopback, ports[side]))
	}
	for i, rule := range optionRules {
		for _, q := range optionQueries() {
			want, echoed := askOptions(t, netip.AddrPortFrom(loopback, ports[2*i]), q)
			got, options := askOptions(t, netip.AddrPortFrom(loopback, ports[2*i+1]), q)
			if diff := gocmp.Diff(normalizeOptions(want, rule, q), got); diff != "" {
				t.Errorf("rewrite %s: %s (-coredns +nodens):\n%s", rule, q, diff)
			}
			if len(options) > 0 {
				t.Errorf("rewrite %s: %s: the reply has the options %s (of CoreDNS: %s)", rule, q, options, echoed)
			}
		}
	}
}

// optionQueries are queries without options and with some that rules are about.
func optionQueries() []query {
	plain := query{name: "a.test.", qtype: dns.TypeTXT}
	edns := query{name: "a.test.", qtype: dns.TypeTXT, ednsSize: 4096, tcp: true}
	own := edns
	own.options = []dns.EDNS0{
		&dns.EDNS0_LOCAL{Code: 65518, Data: []byte{1, 2}}, &dns.EDNS0_NSID{Code: dns.EDNS0NSID},
		&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 8, Address: []byte{10, 0, 0, 0}},
	}
	return []query{plain, edns, own}
}

// normalizeOptions is what the agent's upstream must get where CoreDNS's gets list.
func normalizeOptions(list []string, rule string, q query) []string {
	var kept []string
	seen := map[string]bool{}
	for _, text := range list { // OWNER CODE:DATA
		_, option, _ := strings.Cut(text, " ")
		code, _, isOption := strings.Cut(option, ":")
		// Options of the client that no rule is about stay behind; and an option is not sent twice, as `append` of
		// CoreDNS does against its documentation.
		if isOption && (len(q.options) > 0 && !aboutOption(rule, code) || seen[code]) {
			continue
		}
		seen[code] = true
		kept = append(kept, text)
	}
	return kept
}

// aboutOption reports whether one of rule's lines is about the option code, in decimal.
func aboutOption(rule, code string) bool {
	for _, word := range map[string][]string{"65518": {"0xffee", "65518"}, "65519": {"0xffef"}, "3": {"nsid"}, "8": {"subnet"}}[code] {
		if strings.Contains(rule, word) {
			return true
		}
	}
	return false
}

// replyOptions is the upstream's reply: the name and type that were asked for, and the options.
func replyOptions(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	m.RecursionAvailable = true
	asked := q.Question[0]
	add := func(text string) {
		m.Answer = append(m.Answer, &dns.TXT{Hdr: dns.RR_Header{Name: asked.Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 300}, Txt: []string{text}})
	}
	add(strings.ToLower(asked.Name) + " " + dns.TypeToString[asked.Qtype])
	if opt := q.IsEdns0(); opt != nil {
		for _, text := range optionsOf(opt) {
			if !strings.HasPrefix(text, "10:") { // a cookie is between the two
				add(text)
			}
		}
		m.SetEdns0(4096, opt.Do())
	}
	return m
}

// optionsOf returns the options of a record as `CODE:DATA`.
func optionsOf(opt *dns.OPT) (list []string) {
	for _, o := range opt.Option {
		data := o.String()
		if local, ok := o.(*dns.EDNS0_LOCAL); ok {
			data = hex.EncodeToString(local.Data)
		}
		list = append(list, fmt.Sprintf("%d:%s", o.Option(), data))
	}
	return list
}

// askOptions returns the texts of the reply of the server at addr, with its port as PORT, and the options of the reply.
func askOptions(t *testing.T, addr netip.AddrPort, q query) (texts, options []string) {
	t.Helper()
	packet, err := q.pack(dns.Id())
	check.NoError(t, err)
	var request dns.Msg
	check.NoError(t, request.Unpack(packet))
	c := dns.Client{Timeout: longWait}
	if q.tcp {
		c.Net = "tcp"
	}
	m, _, err := c.Exchange(&request, addr.String())
	if err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	port := fmt.Sprintf(":%04x", addr.Port())
	for _, rr := range m.Answer {
		text := strings.Join(rr.(*dns.TXT).Txt, "")
		if strings.HasSuffix(text, port) {
			text = strings.TrimSuffix(text, port) + ":PORT"
		}
		texts = append(texts, rr.Header().Name+" "+text)
	}
	slices.Sort(texts)
	if opt := m.IsEdns0(); opt != nil {
		options = optionsOf(opt)
	}
	return texts, options
}
