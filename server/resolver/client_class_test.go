package resolver_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// randomACL returns an ACL for a few names and networks.
func randomACL(t *testing.T, r *rand.Rand) *resolver.ACL {
	var b strings.Builder
	for range 1 + r.IntN(3) {
		fmt.Fprintf(&b, "acl %s {\n", []string{"a.test", "b.a.test", "."}[r.IntN(3)])
		for range 1 + r.IntN(3) {
			b.WriteString([]string{"allow", "block", "filter", "drop"}[r.IntN(4)])
			if r.IntN(2) == 0 {
				b.WriteString(" type " + []string{"A", "AAAA TXT"}[r.IntN(2)])
			}
			if r.IntN(4) > 0 {
				fmt.Fprintf(&b, " net 10.0.0.%d/%d fd00::%d/126", r.IntN(16), 28+r.IntN(5), r.IntN(16))
			}
			b.WriteString("\n")
		}
		b.WriteString("}\n")
	}
	return aclOf(t, b.String())
}

// TestClientClasses: ACLs come to the same verdicts on all clients of one class.
func TestClientClasses(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var clients []netip.Addr
	for i := range 20 {
		clients = append(clients, netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", i)), netip.MustParseAddr(fmt.Sprintf("::ffff:10.0.0.%d", i)), netip.MustParseAddr(fmt.Sprintf("fd00::%d", i)))
	}
	alike, apart := 0, 0
	for range 200 {
		acls := []*resolver.ACL{randomACL(t, r), randomACL(t, r)}
		rt := resolver.NewRoutes([]*resolver.Zone{
			{Name: wire.Root, ACL: acls[0], Stats: resolver.NewStats()}, {Name: resolvertest.ZoneName(t, "a.test."), ACL: acls[1], Stats: resolver.NewStats()},
		}, resolver.NewStats())
		verdicts := make(map[uint64]string)
		for _, client := range clients {
			text := ""
			for _, a := range acls {
				for _, name := range []string{"a.test.", "x.a.test.", "b.a.test.", "y.b.a.test.", "other."} {
					for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeMX} {
						text += fmt.Sprint(a.Verdict([]byte(resolvertest.ZoneName(t, name)), qtype, client))
					}
				}
			}
			class, ok := rt.ClassOf(client)
			if !ok {
				t.Fatal("no classes")
			}
			if other, known := verdicts[class]; known && other != text {
				t.Fatalf("%s has the class %b, and verdicts %s, another client %s", client, class, text, other)
			} else if known {
				alike++
			} else {
				apart++
			}
			verdicts[class] = text
		}
	}
	if alike < 1000 || apart < 500 {
		t.Errorf("%d clients had a class of others, %d had another one", alike, apart)
	}
}

// TestTooManyClasses: there are classes for as many lists of networks as a number has bits. The same list counts once.
func TestTooManyClasses(t *testing.T) {
	acl := func(n int) *resolver.ACL {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "acl a%d.test {\nblock net 10.0.0.%d\n}\nacl b%d.test {\nblock net 10.0.0.%d\n}\n", i, i, i, i)
		}
		return aclOf(t, b.String())
	}
	for n, want := range map[int]bool{1: true, 64: true, 65: false} {
		rt := resolver.NewRoutes([]*resolver.Zone{{Name: wire.Root, ACL: acl(n), Stats: resolver.NewStats()}}, resolver.NewStats())
		if class, ok := rt.ClassOf(netip.MustParseAddr("10.0.0.0")); ok != want || ok && class != 1 {
			t.Errorf("%d lists: class %b, %t", n, class, ok)
		}
	}
	if _, ok := resolver.NewRoutes([]*resolver.Zone{{Name: wire.Root, Stats: resolver.NewStats()}}, resolver.NewStats()).ClassOf(netip.MustParseAddr("10.0.0.0")); ok {
		t.Error("classes without an ACL")
	}
}

// TestACLCopy: a reply that an ACL was asked about is copied for the clients of one class, and, if there are search
// paths, of one namespace; a denial is not copied. Allowed queries are counted.
func TestACLCopy(t *testing.T) {
	b := resolvertest.StartBackend(t, outer)
	secret := &resolver.Zone{Name: resolvertest.ZoneName(t, "example.org."), ACL: aclOf(t, "acl {\nblock net 127.0.1.2\n}"), Stats: resolver.NewStats()}
	w := newSearchWorld(t, nil, secret)
	secret.Forward = resolvertest.Pool(t, b.Addr())
	const www, search = "www.example.org.", "www.example.org" + inShop
	for _, c := range []struct {
		client    string
		name      string
		ok        bool
		namespace string // "" for none
		class     uint64
		judged    bool
	}{
		{shopper.String(), www, true, "shop", 0, true},
		{stranger.String(), www, true, "", 0, true},
		{neighbor.String(), www, false, "", 0, false},
		{shopper.String(), search, true, "shop", 0, true},
		{neighbor.String(), "www.example.org" + inOther, false, "", 0, false},
		{neighbor.String(), "db.shop" + inOther, true, "other", 1, true},
		{neighbor.String(), "web" + inShop, true, "", 0, false},
		{shopper.String(), "no.such.", true, "", 0, false},
	} {
		got, ok := w.copyFor(netip.MustParseAddr(c.client), c.name, dns.TypeA)
		if ok != c.ok {
			t.Errorf("%s asks for %s: a copy %t, want %t", c.client, c.name, ok, c.ok)
		}
		if !ok {
			continue
		}
		g := got.Clients
		ns := ""
		if g.Namespace != nil {
			ns = string(g.Namespace[1:])
		}
		if ns != c.namespace || g.Class != c.class || (g.ACLs != nil) != c.judged || g.IsAll() == c.judged {
			t.Errorf("%s asks for %s: copied for %q, class %b, by ACLs %t; want %q, %b, %t", c.client, c.name, ns, g.Class, g.ACLs != nil, c.namespace, c.class, c.judged)
		}
	}
	got, ok := w.copyFor(shopper, www, dns.TypeA)
	if !ok {
		t.Fatal("no copy")
	}
	before := secret.Stats.Verdicts()
	w.x.HitCounter(&got, 50).ReportHits(5, time.Microsecond)
	before.Allowed += 5
	if diff := cmp.Diff(before, secret.Stats.Verdicts()); diff != "" {
		t.Errorf("verdicts counted (-want +got):\n%s", diff)
	}
}

// TestACLCopyTooMany: with too many lists of networks, replies that an ACL was asked about are not copied.
func TestACLCopyTooMany(t *testing.T) {
	var rules strings.Builder
	for i := range 65 {
		fmt.Fprintf(&rules, "acl {\nblock net 10.0.0.%d\n}\n", i)
	}
	w := newSearchWorld(t, nil, &resolver.Zone{Name: resolvertest.ZoneName(t, "example.org."), ACL: aclOf(t, rules.String())})
	if _, ok := w.copyFor(shopper, "www.example.org.", dns.TypeA); ok {
		t.Error("a copy")
	}
	packet, err := question("www.example.org.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	const want = "an acl that is about a name in the reply distinguishes too many lists of networks"
	if e, _ := w.rt.Explain(packet, w.x.Client, resolver.UDP); e.NotCopied != want {
		t.Errorf("explained as %q, want %q", e.NotCopied, want)
	}
	if _, ok := w.copyFor(shopper, "web"+inShop, dns.TypeA); !ok {
		t.Error("no copy of another name")
	}
}
