package resolver_test

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
	"github.com/nodens-dns/nodens/upstream"
)

// explained is a zone whose explanations are compared with what happens.
type explained struct {
	t       *testing.T
	zones   []*resolver.Zone
	backend *resolvertest.Backend
	routes  *resolver.Routes
}

func newExplained(t *testing.T, backend *resolvertest.Backend, zones ...*resolver.Zone) *explained {
	for _, z := range zones {
		if z.Stats == nil {
			z.Stats = resolver.NewStats()
		}
	}
	return &explained{t, zones, backend, resolver.NewRoutes(zones, resolver.NewStats())}
}

// observable is all that a run could leave behind.
func (x *explained) observable() (all []any) {
	for _, z := range x.zones {
		var sums resolver.Sums
		z.Stats.AddTo(&sums)
		all = append(all, sums)
		if z.Cache != nil {
			all = append(all, z.Cache.Stats())
		}
	}
	return append(all, len(x.backend.Queries()))
}

// explain explains a query, and requires that it leaves nothing behind.
func (x *explained) explain(client netip.Addr, q *dns.Msg) *resolver.Explanation {
	x.t.Helper()
	before := x.observable()
	e, verdict := x.routes.Explain(packed(x.t, q), netip.AddrPortFrom(client, 53), resolver.UDP)
	if verdict != wire.Serve {
		x.t.Fatalf("%s: the packet is not served", q.Question[0].String())
	}
	if diff := cmp.Diff(before, x.observable()); diff != "" {
		x.t.Errorf("%s: the explanation leaves behind:\n%s", q.Question[0].String(), diff)
	}
	return e
}

func packed(t *testing.T, q *dns.Msg) []byte {
	t.Helper()
	packet, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return packet
}

// ask asks the query, and returns the request and whether it had to wait.
func (x *explained) ask(client netip.Addr, q *dns.Msg) (r *resolver.Request, waited bool) {
	x.t.Helper()
	r = &resolver.Request{Client: netip.AddrPortFrom(client, 53), Arrival: clock.Now()}
	r.Query.Packet = packed(x.t, q)
	if _, o := serve(x.routes, r, nil); o != resolver.Answered {
		w := new(resolver.Request)
		r.Detach(context.Background(), w, nil, nil)
		if o == resolver.WouldWait {
			w.Begin(x.routes, clock.Now(), nil)
			o = x.routes.Resolve(w)
		}
		if o == resolver.Forward {
			w.Forward()
		}
		w.Finish()
		return w, true
	}
	return r, false
}

// agree compares the explanation of a query with what then happens.
func (x *explained) agree(client netip.Addr, q *dns.Msg) *resolver.Explanation {
	x.t.Helper()
	what := client.String() + ": " + q.Question[0].String()
	e := x.explain(client, q)
	r, _ := x.ask(client, q)
	switch {
	case e.Waits == resolver.NoWait && (e.Source != r.Source() || e.Rcode != r.Reply().Rcode()):
		x.t.Errorf("%s: explained as %q %v, but answered %q %v\n%s", what, e.Source, e.Rcode, r.Source(), r.Reply().Rcode(), stepsText(e))
	case e.Waits != resolver.NoWait && e.Source != r.Source() && !slices.Contains(e.Alternatives, r.Source()):
		x.t.Errorf("%s: explained as %q or %q, but answered %q %v\n%s", what, e.Source, e.Alternatives, r.Source(), r.Reply().Rcode(), stepsText(e))
	case e.Zone != nil && e.Zone != r.Zone():
		x.t.Errorf("%s: explained by zone %v, but answered by %v", what, e.Zone.Name, r.Zone().Name)
	case r.Source() == "forward" && e.Waits == resolver.WaitUpstream && r.Pool() != nil && r.Pool() != e.Pool:
		x.t.Errorf("%s: explained with the pool for %v, but forwarded to the one for %v", what, e.Pool.From(), r.Pool().From())
	case (e.Reply == nil) != (r.Dropped() || e.Waits != resolver.NoWait):
		x.t.Errorf("%s: the explanation has a reply: %v", what, e.Reply != nil)
	}
	return e
}

// stepsText is what the steps decided.
func stepsText(e *resolver.Explanation) string {
	var b strings.Builder
	for _, s := range e.Steps {
		b.WriteString(strings.Repeat("  ", s.Depth) + s.Name.String() + " " + s.Step + " " + s.Outcome.String() + " " + s.Reason + "\n")
	}
	return b.String()
}

// TestExplainAgrees: an explanation leaves nothing behind, and names the source, the zone and the rcode of what then
// happens, the first time and from the cache.
func TestExplainAgrees(t *testing.T) {
	names := []string{
		"web.shop.svc.cluster.local.", "none.shop.svc.cluster.local.", "out.other.svc.cluster.local.", "lost.other.svc.cluster.local.",
		"www.example.org.", "chain.example.org.", "intern.corp.test.", "empty.example.org.", "broken.example.org.", "refused.example.org.", "no.such.",
		"by.hand.", "localhost.", "x.localhost.", "1.0.0.127.in-addr.arpa.", "_dns.resolver.arpa.", ".",
		"www.example.org.shop.svc.cluster.local.", "web.shop.svc.cluster.local.shop.svc.cluster.local.", "no.such.shop.svc.cluster.local.", "broken.example.org.shop.svc.cluster.local.",
		"a.rewritten.test.", "b.made.test.", "alias.made.test.", "bad.made.test.",
	}
	outside := resolvertest.StartBackend(t, outer)
	base := func(t *testing.T) *resolver.Zone {
		z, _ := searching(t, outside.Addr(), "corp.test")
		z.Autopath = nil
		return z
	}
	const rules = `rewrite name suffix .rewritten.test .corp.test answer auto
	rewrite name exact b.rewritten.test b.made.test
	template IN ANY made.test {
		match ^b
		answer "{{ .Name }} 60 IN A 192.0.2.1"
		fallthrough
	}
	template IN A made.test {
		match ^alias
		answer "{{ .Name }} 60 IN CNAME www.example.org."
		fallthrough
	}
	template IN A made.test {
		match ^bad
		answer "nonsense"
	}`
	for name, zone := range map[string]func(t *testing.T) []*resolver.Zone{
		"cluster": func(t *testing.T) []*resolver.Zone { return []*resolver.Zone{base(t)} },
		"autopath": func(t *testing.T) []*resolver.Zone {
			z, _ := searching(t, outside.Addr(), "corp.test")
			return []*resolver.Zone{z}
		},
		"policies": func(t *testing.T) []*resolver.Zone {
			z := base(t)
			z.Local, z.Any = resolver.NewLocal(&config.Local{}), true
			z.ACL = aclOf(t, "acl example.org {\n block net 127.0.1.1\n filter net 127.0.1.2\n drop net 127.0.1.3\n}\n")
			return []*resolver.Zone{z}
		},
		"dns64": func(t *testing.T) []*resolver.Zone {
			z := base(t)
			z.DNS64 = mapping(t, func(c *config.DNS64) { c.AllowIPv4 = true })
			return []*resolver.Zone{z}
		},
		"rules": func(t *testing.T) []*resolver.Zone {
			z := ruled(t, rules, outside.Addr())
			z.Cluster = newPartial(t, "cluster.local")
			return []*resolver.Zone{z}
		},
		"views": func(t *testing.T) []*resolver.Zone {
			z, other := base(t), base(t)
			z.View = viewOf(t, "shop", "incidr(client_ip(), '127.0.1.1/32')")
			other.Name, other.Forward, other.Whoami = resolvertest.ZoneName(t, "example.org"), nil, true
			other.View = viewOf(t, "other", "type() == 'AAAA'")
			return []*resolver.Zone{z, other}
		},
		"pools": func(t *testing.T) []*resolver.Zone {
			z := base(t)
			z.Forward = append(poolFor(t, "example.org", outside.Addr()), z.Forward...)
			return []*resolver.Zone{z}
		},
		"no upstream": func(t *testing.T) []*resolver.Zone {
			z := base(t)
			z.Name, z.Forward = resolvertest.ZoneName(t, "cluster.local"), nil
			return []*resolver.Zone{z}
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newExplained(t, outside, zone(t)...)
			for _, name := range names {
				for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeANY, dns.TypeDS} {
					for _, client := range []netip.Addr{shopper, neighbor, stranger, shopper} {
						x.agree(client, question(name, qtype))
					}
				}
			}
			chaos, unknown := question("www.example.org.", dns.TypeA), question("www.example.org.", dns.TypeA)
			chaos.Question[0].Qclass = dns.ClassCHAOS
			x.agree(shopper, chaos)
			unknown.SetEdns0(1232, false)
			unknown.IsEdns0().SetVersion(1)
			x.agree(shopper, unknown)
		})
	}
}

// poolFor is a pool for the names in a zone.
func poolFor(t *testing.T, zone string, to netip.AddrPort) []*upstream.Pool {
	p := upstream.New(&config.Forward{From: resolvertest.ZoneName(t, zone), To: []config.Target{{Addr: to}}, ReadTimeout: patience}, upstream.Options{})
	t.Cleanup(func() { _ = p.Close() })
	return []*upstream.Pool{p}
}

// TestExplainView: what the view lacks is neither asked for nor waited for.
func TestExplainView(t *testing.T) {
	b := resolvertest.StartBackend(t, outer)
	p := newPartial(t, "cluster.local")
	z := &resolver.Zone{Name: resolvertest.ZoneName(t, "cluster.local"), Cluster: p}
	x := newExplained(t, b, z)
	p.lacks("web.shop.svc.cluster.local.", kubernetes.Incomplete)
	p.lacks("db.other.svc.cluster.local.", kubernetes.NotSynced)
	e := x.agree(shopper, question("web.shop.svc.cluster.local.", dns.TypeA))
	if e.Waits != resolver.WaitView || e.Source != "kubernetes" {
		t.Errorf("incomplete: %v %q", e.Waits, e.Source)
	}
	if n := p.waited(); n != 1 {
		t.Errorf("%d waits for the view, want the query's own", n)
	}
	if e := x.agree(shopper, question("db.other.svc.cluster.local.", dns.TypeA)); e.Waits != resolver.NoWait || e.Rcode != wire.ServFail {
		t.Errorf("not synced: %v %v", e.Waits, e.Rcode)
	}
	z.Forward, z.ClusterDNS = resolvertest.Pool(t, b.Addr()), always
	if e := x.agree(shopper, question("web.shop.svc.cluster.local.", dns.TypeA)); e.Waits != resolver.WaitUpstream || e.Source != "forward" || e.Pool != z.Forward[0] {
		t.Errorf("with the cluster's own DNS: %v %q %v", e.Waits, e.Source, e.Pool)
	}
}

// TestExplainServedZone: a reverse name that the view may turn out not to have is denied here (RFC 6303), not asked of an
// upstream, and the explanation says that this may come of it.
func TestExplainServedZone(t *testing.T) {
	const name = "7.1.254.169.in-addr.arpa."
	b := resolvertest.StartBackend(t, outer)
	p := newPartial(t, "cluster.local", "in-addr.arpa")
	p.lacks(name, kubernetes.Incomplete)
	p.awaited = func(context.Context) error { p.lacks(name, kubernetes.NotMine); return nil }
	x := newExplained(t, b, &resolver.Zone{Name: wire.Root, Cluster: p, Forward: resolvertest.Pool(t, b.Addr())})
	if e := x.agree(shopper, question(name, dns.TypePTR)); !slices.Contains(e.Alternatives, "local") {
		t.Errorf("the alternatives are %q", e.Alternatives)
	}
}

// TestExplainSteps: the steps of an explanation, in the order of the path.
func TestExplainSteps(t *testing.T) {
	b := resolvertest.StartBackend(t, outer)
	z, _ := searching(t, b.Addr(), "corp.test")
	z.Line = 7
	x := newExplained(t, b, z)
	if _, waited := x.ask(shopper, question("www.example.org.", dns.TypeA)); !waited {
		t.Fatal("the cache has the name already")
	}
	for name, want := range map[string][]string{
		"by.hand.":                    {"zone takes", "hosts answers"},
		"web.shop.svc.cluster.local.": {"zone takes", "hosts passes", "kubernetes answers"},
		"www.example.org.":            {"zone takes", "hosts passes", "kubernetes passes", "cache answers"},
		"no.such.":                    {"zone takes", "hosts passes", "kubernetes passes", "cache passes", "forward waits"},
		"www.example.org.shop.svc.cluster.local.": {
			"zone takes", "hosts passes", "kubernetes answers", // as the client asks
			"hosts passes", "kubernetes answers", "hosts passes", "kubernetes answers", // svc.cluster.local, cluster.local
			"hosts passes", "kubernetes passes", "cache passes", "forward waits", // corp.test
		},
	} {
		e := x.explain(shopper, question(name, dns.TypeA))
		var got []string
		for _, s := range e.Steps {
			got = append(got, s.Step+" "+s.Outcome.String())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s\n%s", name, diff, stepsText(e))
		}
		if !strings.Contains(e.Steps[0].Reason, "line 7") {
			t.Errorf("%s: the zone is %q", name, e.Steps[0].Reason)
		}
	}
	e := x.explain(shopper, question("www.example.org.", dns.TypeA))
	if c := e.Steps[3].Cached; c == nil || c.TTL <= 0 || c.Answers != 1 || c.Age < 0 || c.Denial || !c.Usable {
		t.Errorf("the entry is %+v", c)
	}
}
