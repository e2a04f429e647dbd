package dnspolicy_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
)

func name(t testing.TB, text string) wire.Name {
	t.Helper()
	n, err := wire.ParseName(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// spec is a policy as an object has it.
type spec struct {
	audit, others bool
	allow, deny   []string
	services      []string
}

func (s spec) policy(t testing.TB, called string) *dnspolicy.Policy {
	t.Helper()
	p := &dnspolicy.Policy{Namespace: "ns", Name: called, Audit: s.audit, AllowOthers: s.others, Counts: new(dnspolicy.Counts)}
	for i, list := range [][]string{s.allow, s.deny} {
		for _, text := range list {
			base, below := strings.CutPrefix(text, "*.")
			p.Add(name(t, base), below, i == 1)
		}
	}
	for _, labels := range s.services {
		p.AddService(labels)
	}
	return p
}

func class(t testing.TB, specs ...spec) *dnspolicy.Class {
	t.Helper()
	var list []*dnspolicy.Policy
	for i, s := range specs {
		list = append(list, s.policy(t, fmt.Sprint("p", i)))
	}
	return dnspolicy.NewClass(dnspolicy.FirstID, list)
}

// TestNames: an entry has its name, or *.name all names below it and not itself, and nothing beside it.
func TestNames(t *testing.T) {
	long := strings.Repeat("a", 63)
	longest := strings.Join([]string{long, long, long, strings.Repeat("b", 61)}, ".") // 255 bytes in wire form
	for _, c := range []struct {
		entry     string
		has, lack []string
	}{
		{"api.example.com", []string{"api.example.com", "API.Example.COM", "api.example.com."}, []string{"example.com", "x.api.example.com", "api.example.com.evil.test", "apiexample.com", "xapi.example.com", "api.example.co", "com", "."}},
		{"API.example.com.", []string{"api.example.com"}, []string{"example.com"}},
		{"*.example.com", []string{"a.example.com", "a.b.c.example.com", "*.example.com", long + ".example.com", "A.EXAMPLE.com."}, []string{"example.com", "aexample.com", "a-example.com", "example.com.a", "a.example.com.evil.test", "example.org", `a\.example.com`, "com"}},
		{"*.com", []string{"example.com", "a.example.com"}, []string{"com", "xcom", "example.com.test"}},
		{long + ".test", []string{long + ".test"}, []string{long[1:] + ".test", "test"}},
		{longest, []string{longest}, []string{longest[1:], longest[2:]}},
		{"*." + longest[2:], nil, []string{longest[2:]}},
		{"*." + long + "." + long + "." + long, []string{longest[strings.Index(longest, "b"):] + "." + long + "." + long + "." + long}, []string{long + "." + long + "." + long}},
	} {
		t.Run(c.entry[:min(len(c.entry), 20)], func(t *testing.T) {
			for kind, cl := range map[string]*dnspolicy.Class{
				"allow": class(t, spec{allow: []string{c.entry}}), "deny": class(t, spec{others: true, deny: []string{c.entry}}),
			} {
				for i, list := range [][]string{c.has, c.lack} {
					for _, text := range list {
						d := cl.Judge([]byte(name(t, text)), nil)
						if allowed, want := d.Policy == nil, (kind == "allow") == (i == 0); allowed != want {
							t.Errorf("%s %s: %s is allowed: %t", kind, c.entry, text, allowed)
						}
						if kind == "deny" && i == 0 && !strings.EqualFold(strings.TrimSuffix(d.Entry([]byte(name(t, text))), "."), strings.TrimSuffix(c.entry, ".")) {
							t.Errorf("%s is denied by %s, want %s", text, d.Entry([]byte(name(t, text))), c.entry)
						}
					}
				}
			}
		})
	}
}

// TestConflicts: policies add up as those of a NetworkPolicy, a deny list wins, and audit mode denies nothing.
func TestConflicts(t *testing.T) {
	allowsA, deniesA := spec{allow: []string{"a.test"}}, spec{others: true, deny: []string{"a.test"}}
	audit := func(s spec) spec { s.audit = true; return s }
	const (
		allowed = iota
		listed
		byDefault
		auditListed
		auditDefault
	)
	for _, c := range []struct {
		name  string
		specs []spec
		a, b  int // a.test and b.test
	}{
		{"none", nil, allowed, allowed},
		{"empty", []spec{{}}, byDefault, byDefault},
		{"allow list", []spec{allowsA}, allowed, byDefault},
		{"deny list", []spec{deniesA}, listed, allowed},
		{"two allow lists", []spec{allowsA, {allow: []string{"b.test"}}}, allowed, allowed},
		{"an allow list and an empty one", []spec{{}, allowsA}, allowed, byDefault},
		{"deny wins", []spec{allowsA, deniesA}, listed, allowed},
		{"deny wins in one policy", []spec{{allow: []string{"*.test"}, deny: []string{"a.test"}}}, listed, allowed},
		{"a wide deny wins over a narrow allow", []spec{{allow: []string{"a.test"}, deny: []string{"*.test"}}}, listed, listed},
		{"default Allow adds up", []spec{allowsA, {others: true}}, allowed, allowed},
		{"audit of a deny list", []spec{audit(deniesA)}, auditListed, allowed},
		{"audit of an allow list", []spec{audit(allowsA)}, allowed, auditDefault},
		{"audit allows nothing", []spec{{}, audit(allowsA)}, byDefault, byDefault},
		{"audit beside an allow list", []spec{allowsA, audit(spec{allow: []string{"b.test"}})}, allowed, byDefault},
		{"audit of a deny list beside an allow list", []spec{allowsA, audit(deniesA)}, auditListed, byDefault},
		{"audit beside default Allow", []spec{{others: true}, audit(spec{})}, allowed, allowed},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := class(t, c.specs...)
			for text, want := range map[string]int{"a.test": c.a, "b.test": c.b} {
				d, got := cl.Judge([]byte(name(t, text)), nil), allowed
				switch {
				case d.Policy == nil:
				case d.Audit && d.Listed:
					got = auditListed
				case d.Audit:
					got = auditDefault
				case d.Listed:
					got = listed
				default:
					got = byDefault
				}
				if got != want {
					t.Errorf("%s is %d, want %d", text, got, want)
				}
			}
		})
	}
	if d := (*dnspolicy.Class)(nil).Judge([]byte(name(t, "a.test")), nil); d.Policy != nil {
		t.Error("a client without policies is denied a name")
	}
}

// TestServices: a Service has its own names and those below it, a namespace those of all its Services.
func TestServices(t *testing.T) {
	cl := class(t, spec{services: []string{"\x03web\x01a", "\x01b"}, deny: []string{"secret.b.svc.cluster.local"}})
	for text, want := range map[string]bool{"\x03web\x01a": true, "\x02db\x01a": false, "\x01a": false, "\x02db\x01b": true, "\x01b": true, "\x01b\x01a": false, "": false} {
		if d := cl.Judge([]byte(name(t, "x.test")), dnspolicy.Service(text)); (d.Policy == nil) != want {
			t.Errorf("Service %q is allowed: %t", text, !want)
		}
	}
	if d := cl.Judge([]byte(name(t, "secret.b.svc.cluster.local")), dnspolicy.Service("\x06secret\x01b")); !d.Listed {
		t.Error("the deny list does not win over a Service")
	}
}

// TestAllocs: a decision allocates nothing.
func TestAllocs(t *testing.T) {
	cl := class(t, spec{allow: []string{"*.example.com"}, deny: []string{"a.b.example.com"}, services: []string{"\x03web\x01a"}}, spec{audit: true})
	table := dnspolicy.NewTable()
	addr := netip.MustParseAddr("10.0.0.1")
	table.Set(map[netip.Addr]*dnspolicy.Class{addr: cl}, true, func() {})
	for _, text := range []string{"a.b.example.com", "x.example.com", "a.test"} {
		n := []byte(name(t, text))
		if got := testing.AllocsPerRun(100, func() {
			d := table.ClassOf(addr).Judge(n, dnspolicy.Service("\x02db\x01a"))
			d.Count()
		}); got != 0 {
			t.Errorf("%v allocations for %s", got, text)
		}
	}
}

// TestTable: who is bound by what, before and after it is known.
func TestTable(t *testing.T) {
	bound, free, other, host := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("10.0.0.4")
	cl := class(t, spec{})
	for _, closed := range []bool{false, true} {
		table := dnspolicy.NewTable()
		var counter atomic.Uint64
		table.Closed, table.Host = closed, func(a netip.Addr) bool { return a == host }
		table.Mark = func() epoch.Mark { return epoch.Mark{Index: 1, Value: counter.Load()} }
		check := func(when string, want map[netip.Addr]uint32) {
			t.Helper()
			for addr, id := range want {
				for _, a := range []netip.Addr{addr, netip.AddrFrom16(addr.As16())} {
					if got := table.ID(a); got != id {
						t.Errorf("closed %t, %s: the class of %s is %d, want %d", closed, when, a, got, id)
					}
				}
			}
		}
		unknown := uint32(0)
		if closed {
			unknown = 1
		}
		check("at first", map[netip.Addr]uint32{bound: unknown, free: unknown, other: unknown, host: 0, netip.MustParseAddr("127.0.0.1"): 0})
		if table.Known() {
			t.Error("it is known")
		}
		if !table.Set(map[netip.Addr]*dnspolicy.Class{bound: cl, free: nil}, true, func() { counter.Add(1) }) || counter.Load() != 2 {
			t.Errorf("the counter is %d", counter.Load())
		}
		if table.Set(map[netip.Addr]*dnspolicy.Class{bound: cl, free: nil}, true, func() { counter.Add(1) }) || counter.Load() != 2 {
			t.Error("the same is a change")
		}
		check("known", map[netip.Addr]uint32{bound: dnspolicy.FirstID, free: 0, other: unknown, host: 0})
		if !table.Known() {
			t.Error("it is not known")
		}
	}
	if (*dnspolicy.Table)(nil).ClassOf(bound) != nil {
		t.Error("no table binds a client")
	}
}

// TestAwait: who waits for a class gets it as soon as it is known, and that of unknown clients at the end.
func TestAwait(t *testing.T) {
	table := dnspolicy.NewTable()
	table.Closed = true
	addr := netip.MustParseAddr("10.0.0.1")
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if c := table.Await(over, addr); c == nil || !c.Unknown {
		t.Errorf("the class is %v", c)
	}
	cl := class(t, spec{})
	got := make(chan *dnspolicy.Class)
	go func() { got <- table.Await(t.Context(), addr) }()
	table.Set(map[netip.Addr]*dnspolicy.Class{}, true, func() {})
	table.Set(map[netip.Addr]*dnspolicy.Class{addr: cl}, true, func() {})
	select {
	case c := <-got:
		if c != cl {
			t.Errorf("the class is %v", c)
		}
	case <-time.After(time.Minute):
		t.Fatal("it still waits")
	}
}

// TestCounters: each policy has counts of its own, up to a bound.
func TestCounters(t *testing.T) {
	var c dnspolicy.Counters
	p := &dnspolicy.Policy{Counts: c.Of("a", "p")}
	(&dnspolicy.Denial{Policy: p}).Count()
	(&dnspolicy.Denial{Policy: p, Audit: true}).Count()
	(&dnspolicy.Denial{Policy: p, Audit: true}).Count()
	(&dnspolicy.Denial{}).Count()
	if c.Of("a", "p") != p.Counts {
		t.Error("other counts for the same policy")
	}
	var text strings.Builder
	c.Each(func(ns, name, mode string, n uint64) { fmt.Fprint(&text, ns, "/", name, " ", mode, " ", n, "; ") })
	if want := "a/p enforce 1; a/p audit 2; "; text.String() != want {
		t.Errorf("%s, want %s", text.String(), want)
	}
	for i := range 2000 {
		c.Of("b", fmt.Sprint(i))
	}
	lines, others := 0, false
	c.Each(func(_, name, _ string, _ uint64) { lines++; others = others || name == dnspolicy.OtherPolicies })
	if lines > 1030 || !others {
		t.Errorf("%d policies have counts, with others: %t", lines, others)
	}
	c.Forget("a", "p")
	if c.Of("a", "p") == p.Counts {
		t.Error("the counts of a policy that is gone are still there")
	}
	(*dnspolicy.Counters)(nil).Forget("a", "p")
	if (*dnspolicy.Counters)(nil).Of("a", "p") != nil {
		t.Error("nil has counts")
	}
}

// TestConcurrent: readers see one state or the other.
func TestConcurrent(t *testing.T) {
	table := dnspolicy.NewTable()
	addr := netip.MustParseAddr("10.0.0.1")
	a, b := class(t, spec{}), class(t, spec{others: true})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 2000 {
			table.Set(map[netip.Addr]*dnspolicy.Class{addr: []*dnspolicy.Class{a, b}[i%2]}, true, func() {})
		}
	})
	for range 2 {
		wg.Go(func() {
			for range 2000 {
				if c := table.ClassOf(addr); c != nil && c != a && c != b {
					t.Errorf("the class is %v", c)
					return
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkJudge measures the decision on a name.
func BenchmarkJudge(b *testing.B) {
	for _, n := range []int{1, 8, 64} {
		var specs []spec
		for i := range n {
			s := spec{}
			for j := range 100 {
				s.allow = append(s.allow, fmt.Sprintf("*.s%d-%d.example.com", i, j))
			}
			specs = append(specs, s)
		}
		cl, q := class(b, specs...), []byte(name(b, "a.b.other.example.com"))
		b.Run(fmt.Sprint(n, " policies"), func(b *testing.B) {
			for b.Loop() {
				cl.Judge(q, nil)
			}
		})
	}
}
