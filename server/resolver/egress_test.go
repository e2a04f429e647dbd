package resolver_test

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
)

// recordingFilter is a packet filter that records the addresses of the sets.
type recordingFilter struct {
	has  map[string]map[netip.Addr]bool
	fail bool
}

func (f *recordingFilter) Sync(map[string][]netip.Addr, bool) ([]string, error) { return nil, nil }

func (f *recordingFilter) Add(list []dnspolicy.Element) error {
	if f.fail {
		return errors.New("refused")
	}
	for _, e := range list {
		if f.has[e.Policy] == nil {
			f.has[e.Policy] = make(map[netip.Addr]bool)
		}
		f.has[e.Policy][e.Addr] = true
	}
	return nil
}

// set returns the addresses in the set of a policy, and empties it.
func (f *recordingFilter) set(policy string) string {
	var list []string
	for _, a := range slices.SortedFunc(maps.Keys(f.has[policy]), netip.Addr.Compare) {
		list = append(list, a.String())
	}
	delete(f.has, policy)
	return strings.Join(list, " ")
}

// bindEgress makes these policies, p with a set each, bind the clients of boundPod.
func (d *tenantDesk) bindEgress(policies ...testPolicy) (*recordingFilter, *dnspolicy.Table) {
	filter := &recordingFilter{has: make(map[string]map[netip.Addr]bool)}
	e := dnspolicy.NewEgress(filter, slog.New(slog.DiscardHandler))
	table := d.bind(nil)
	var list []*dnspolicy.Policy
	for _, p := range policies {
		compiled := p.compile(d.t)
		if !strings.HasPrefix(p.name, "no-set") {
			compiled.Set = e.Of("ns", p.name)
		}
		list = append(list, compiled)
	}
	table.Set(map[netip.Addr]*dnspolicy.Class{netip.MustParseAddr(boundPod): dnspolicy.NewClass(dnspolicy.FirstID, list), netip.MustParseAddr(freePod): nil}, true, func() {})
	return filter, table
}

// TestEgressNames: the set of a policy has the addresses in answers to names that this policy allows, of all families and kinds, when
// the reply is sent.
func TestEgressNames(t *testing.T) {
	d := policyDesk(t, "autopath @kubernetes\n", map[string][]string{
		"api.example.com.":   {"api.example.com. 60 CNAME edge.cdn.test.", "edge.cdn.test. 60 A 192.0.2.1", "edge.cdn.test. 60 A 192.0.2.2"},
		"six.example.com.":   {"six.example.com. 60 AAAA 2001:db8::1", "six.example.com. 60 AAAA ::ffff:192.0.2.9"},
		"hint.example.com.":  {"hint.example.com. 60 HTTPS 1 . alpn=h2 ipv4hint=192.0.2.3 ipv6hint=2001:db8::3"},
		"text.example.com.":  {"text.example.com. 60 TXT 192.0.2.4"},
		"node.example.com.":  {"node.example.com. 60 A 127.0.0.1", "node.example.com. 60 A 169.254.169.254"},
		"other.example.net.": {"other.example.net. 60 A 192.0.2.5"},
	})
	filter, _ := d.bindEgress(
		testPolicy{name: "p", allow: []string{"*.example.com"}, services: []string{"web.a"}},
		testPolicy{name: "no-set", allow: []string{"*.example.net"}},
		testPolicy{name: "audit", audit: true, others: true, deny: []string{"six.example.com"}},
	)
	for _, c := range []struct{ query, p, audit string }{
		{"api.example.com. A", "192.0.2.1 192.0.2.2", "192.0.2.1 192.0.2.2"},
		{"api.example.com.a.svc.cluster.local. A", "", ""}, // they are there for long enough
		{"six.example.com. AAAA", "192.0.2.9 2001:db8::1", ""},
		{"hint.example.com. HTTPS", "192.0.2.3 2001:db8::3", "192.0.2.3 2001:db8::3"},
		{"text.example.com. TXT", "", ""},
		{"node.example.com. A", "", ""},
		{"other.example.net. A", "", "192.0.2.5"},
		{"evil.test. A", "", ""},
		{"web.a.svc.cluster.local. A", "10.96.1.1", "10.96.1.1"},
		{"db.b.svc.cluster.local. A", "", ""},
	} {
		d.from(freePod+":53", resolver.TCP)
		d.ask(asked(c.query))
		if got := filter.set("ns/p") + filter.set("ns/audit"); got != "" {
			t.Errorf("%s: the answer to a client without a policy enters a set: %s", c.query, got)
		}
		d.from(boundPod+":53", resolver.TCP)
		d.ask(asked(c.query))
		if p, audit := filter.set("ns/p"), filter.set("ns/audit"); p != c.p || audit != c.audit {
			t.Errorf("%s: the sets get %q and %q, want %q and %q", c.query, p, audit, c.p, c.audit)
		}
	}
}

// TestEgressSearchPath: the name on the client's search path that the answer is about decides.
func TestEgressSearchPath(t *testing.T) {
	d := policyDesk(t, "autopath @kubernetes\n", map[string][]string{"api.example.com.": {"api.example.com. 60 A 192.0.2.1"}, "no.example.net.": {"no.example.net. 60 A 192.0.2.2"}})
	filter, _ := d.bindEgress(testPolicy{name: "p", allow: []string{"api.example.com"}}, testPolicy{name: "no-set", allow: []string{"*.example.net"}})
	d.from(boundPod+":53", resolver.TCP)
	for query, want := range map[string]string{"api.example.com.a.svc.cluster.local. A": "192.0.2.1", "no.example.net.a.svc.cluster.local. A": ""} {
		if m := d.ask(asked(query)); len(m.Answer) != 2 {
			t.Fatalf("%s: %s", query, told(m))
		}
		if got := filter.set("ns/p"); got != want {
			t.Errorf("%s: the set gets %q, want %q", query, got, want)
		}
	}
}

// TestEgressWaits: without permission to wait no reply leaves before its addresses are in the set, and then it needs no
// permission; it is never copied.
func TestEgressWaits(t *testing.T) {
	d := policyDesk(t, "", map[string][]string{"api.example.com.": {"api.example.com. 60 A 192.0.2.1"}})
	filter, _ := d.bindEgress(testPolicy{name: "p", allow: []string{"api.example.com"}, services: []string{"a"}})
	query := question("web.a.svc.cluster.local.", dns.TypeA)
	d.from(boundPod+":53", resolver.UDP)
	run := func() resolver.Outcome {
		d.x.Forbid()
		packet, err := query.Pack()
		if err != nil {
			t.Fatal(err)
		}
		d.x.Query.Packet = packet
		if d.x.Parse() != wire.Serve {
			t.Fatal("the query is not served")
		}
		d.x.Begin(d.rt, d.x.Arrival, nil)
		return d.rt.Resolve(&d.x)
	}
	if o := run(); o != resolver.WouldWait || filter.set("ns/p") != "" {
		t.Errorf("the outcome is %v before the address is in the set", o)
	}
	d.from(boundPod+":53", resolver.UDP)
	d.ask(query)
	if got := filter.set("ns/p"); got != "10.96.1.1" {
		t.Errorf("the set gets %q", got)
	}
	if o := run(); o != resolver.Answered {
		t.Errorf("the outcome is %v after that", o)
	}
	d.x.Finish()
	if _, ok := d.x.Reusable(); ok {
		t.Error("a reply whose addresses are in a set is copied")
	}
}

// TestEgressFails: if the packet filter fails, clients get SERVFAIL where they wait for their policies, and else the reply.
func TestEgressFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := policyDesk(t, "", nil)
		filter, table := d.bindEgress(testPolicy{name: "p", services: []string{"a"}})
		filter.fail = true
		const query = "web.a.svc.cluster.local. A edns"
		for closed, want := range map[bool]string{false: "NOERROR aa | web.a.svc.cluster.local. 5 A 10.96.1.1", true: "SERVFAIL +15:14 (Not Ready): ()"} {
			table.Closed = closed
			if got := told(d.from(boundPod+":53", resolver.TCP).ask(asked(query))); got != want {
				t.Errorf("closed %t: %s, want %s", closed, got, want)
			}
		}
	})
}
