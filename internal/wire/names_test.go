package wire

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
)

// copyOf returns a reply that copies m, a response to q.
func copyOf(t testing.TB, q *Query, m *dns.Msg) *Reply {
	t.Helper()
	resp, err := ParseResponse(packed(t, m), q)
	noError(t, err)
	r := new(Reply)
	r.Start(nil, q)
	r.CopyRaw(resp.Packed)
	return r
}

// TestNames: all owners and targets of random replies are returned, except repetitions.
func TestNames(t *testing.T) {
	for seed := range uint64(300) {
		maker := newMaker(seed)
		q := stubQuery(t, maker.names[0], dns.TypeA)
		r := copyOf(t, q, maker.response(t, q))
		var got []string
		for names := r.Names(); ; {
			n, ok := names.Next()
			if !ok {
				break
			}
			got = append(got, Name(n.Name).String()+" "+TypeName(n.Type))
		}
		m := unpacked(t, slices.Clone(r.Finish(MaxMessage)))
		var want []string
		for _, rr := range m.Answer {
			h := rr.Header()
			want = append(want, h.Name+" "+TypeName(h.Rrtype))
			switch rr := rr.(type) {
			case *dns.CNAME:
				want = append(want, rr.Target+" CNAME")
			case *dns.DNAME:
				want = append(want, rr.Target+" DNAME")
			case *dns.PTR:
				want = append(want, rr.Ptr+" PTR")
			case *dns.SRV:
				want = append(want, rr.Target+" SRV")
			case *dns.MX:
				want = append(want, rr.Mx+" MX")
			case *dns.NS:
				want = append(want, rr.Ns+" NS")
			case *dns.SVCB:
				want = append(want, svcbTarget(rr)+" SVCB")
			case *dns.HTTPS:
				want = append(want, svcbTarget(&rr.SVCB)+" HTTPS")
			}
		}
		for _, rr := range m.Extra {
			if rr.Header().Rrtype != dns.TypeOPT {
				want = append(want, rr.Header().Name+" "+TypeName(rr.Header().Rrtype))
			}
		}
		for i, w := range want {
			want[i] = strings.ToLower(w)
		}
		for i, g := range got {
			got[i] = strings.ToLower(g)
		}
		missing := slices.DeleteFunc(slices.Clone(want), func(w string) bool { return slices.Contains(got, w) })
		extra := slices.DeleteFunc(slices.Clone(got), func(g string) bool { return slices.Contains(want, g) })
		name := func(s string) string { n, _, _ := strings.Cut(s, " "); return n }
		missing = slices.DeleteFunc(missing, func(w string) bool { // one of several owners
			return name(w) == Name(q.Name()).String() || slices.ContainsFunc(got, func(g string) bool { return name(g) == name(w) })
		})
		if len(missing)+len(extra) > 0 {
			t.Fatalf("seed %d: missing %q, extra %q in\n%s", seed, missing, extra, m)
		}
	}
}

// svcbTarget returns the name that rr is about.
func svcbTarget(rr *dns.SVCB) string {
	if rr.Target == "." {
		return rr.Hdr.Name
	}
	return rr.Target
}

// TestNamesHints: the addresses in SVCB and HTTPS records are noticed, and "." is the owner.
func TestNamesHints(t *testing.T) {
	q := stubQuery(t, "www.a.test.", dns.TypeHTTPS)
	r := answers(t, q, true, "www.a.test. 60 IN HTTPS 1 .", "www.a.test. 60 IN HTTPS 1 b.test. alpn=h2 ipv4hint=192.0.2.1",
		"c.test. 60 IN HTTPS 1 . ipv6hint=2001:db8::1", "d.test. 60 IN SVCB 1 e.test. ipv4hint=192.0.2.1 ipv6hint=2001:db8::1", "f.test. 60 IN A 192.0.2.1")
	var got []string
	for names := r.AllNames(); ; {
		n, ok := names.Next()
		if !ok {
			break
		}
		got = append(got, fmt.Sprint(Name(n.Name), " ", n.Target, n.HintsA, n.HintsAAAA))
	}
	equal(t, []string{
		"www.a.test. false false false", "www.a.test. true false false", "www.a.test. false false false", "b.test. true true false",
		"c.test. false false false", "c.test. true false true", "d.test. false false false", "e.test. true true true", "f.test. false false false",
	}, got, "the names")
}

// TestNamesSkipsRepeatedOwners: an answer's owner is returned once, and the question's name not
// at all.
func TestNamesSkipsRepeatedOwners(t *testing.T) {
	q := stubQuery(t, "www.a.test.", dns.TypeA)
	r := answers(t, q, true, "www.a.test. 60 IN CNAME b.test.", "b.test. 60 IN A 192.0.2.1", "b.test. 60 IN A 192.0.2.2", "b.test. 60 IN A 192.0.2.3")
	var got []string
	for names := r.Names(); ; {
		n, ok := names.Next()
		if !ok {
			break
		}
		got = append(got, Name(n.Name).String())
	}
	equal(t, []string{"b.test.", "b.test."}, got, "the target and its owner")
	if n := testing.AllocsPerRun(100, func() {
		for names := r.Names(); ; {
			if _, ok := names.Next(); !ok {
				return
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestRemove: the records are removed and the others stay unchanged.
func TestRemove(t *testing.T) {
	for seed := range uint64(300) {
		maker := newMaker(seed)
		q := stubQuery(t, maker.names[0], dns.TypeA)
		m := maker.response(t, q)
		r, whole := copyOf(t, q, m), copyOf(t, q, m)
		all := unpacked(t, whole.Finish(MaxMessage))
		var out []int
		var want [3][]string
		number := 0
		for s, list := range [][]dns.RR{all.Answer, all.Ns, all.Extra} {
			for _, text := range lines(list, 1) {
				if maker.IntN(3) == 0 {
					out = append(out, number)
				} else {
					want[s] = append(want[s], text)
				}
				number++
			}
		}
		if !r.Remove(out) {
			t.Fatalf("seed %d: %v can't be removed from\n%s", seed, out, all)
		}
		got := unpacked(t, r.Finish(MaxMessage))
		if diff := cmp.Diff(want, [3][]string{lines(got.Answer, 1), lines(got.Ns, 1), lines(got.Extra, 1)}); diff != "" {
			t.Fatalf("seed %d without %v (-want +got):\n%s", seed, out, diff)
		}
		if got.Rcode != all.Rcode || got.Truncated != all.Truncated || got.Authoritative != all.Authoritative {
			t.Fatalf("seed %d: the header changes from\n%s\nto\n%s", seed, all, got)
		}
	}
}

// TestRemoveIPv6Hints: only ipv6hint goes, from records of any section, and only where clients need not know it. Other records and
// the names that later records share stay.
func TestRemoveIPv6Hints(t *testing.T) {
	q := stubQuery(t, "a.test.", dns.TypeHTTPS)
	const keeps = `a.test. 60 IN HTTPS 4 b.test. mandatory="alpn,ipv6hint" alpn="h2" ipv6hint="2001:db8::4"`
	for _, c := range []struct {
		name       string
		lines, out []string
	}{
		{"none", []string{`a.test. 60 IN HTTPS 1 . alpn="h2"`}, nil},
		{"an address", []string{"a.test. 60 IN AAAA 2001:db8::1"}, nil},
		{"an alias", []string{"a.test. 60 IN HTTPS 0 b.test."}, nil},
		{"mandatory", []string{keeps}, nil},
		{"the only one", []string{`a.test. 60 IN HTTPS 1 . ipv6hint="2001:db8::1,2001:db8::2"`}, []string{"a.test. 60 IN HTTPS 1 ."}},
		{
			"several", []string{
				"a.test. 60 IN CNAME c.test.", `c.test. 60 IN HTTPS 1 d.test. mandatory="alpn" alpn="h2" ipv4hint="192.0.2.1" ech="AAAA" ipv6hint="2001:db8::1"`,
				keeps, `d.test. 60 IN HTTPS 2 . ipv6hint="2001:db8::1" key65280="x"`, `d.test. 60 IN TXT "x"`,
			}, []string{
				"a.test. 60 IN CNAME c.test.", `c.test. 60 IN HTTPS 1 d.test. mandatory="alpn" alpn="h2" ipv4hint="192.0.2.1" ech="AAAA"`,
				keeps, `d.test. 60 IN HTTPS 2 . key65280="x"`, `d.test. 60 IN TXT "x"`,
			},
		},
	} {
		r := answers(t, q, true, c.lines...)
		r.flags |= flagAD
		want := c.out
		if has := r.HasIPv6Hint(); has != (want != nil) {
			t.Errorf("%s: there are hints: %t", c.name, has)
		}
		if r.RemoveIPv6Hints(); want == nil {
			want = c.lines
		}
		m := unpacked(t, r.Finish(MaxMessage))
		got := make([]string, len(m.Answer))
		for i, rr := range m.Answer {
			got[i] = strings.Join(strings.Fields(rr.String()), " ")
		}
		if diff := cmp.Diff(want, got); diff != "" || r.HasIPv6Hint() || r.flags&flagAD != 0 {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// TestTruncate: a truncated reply has TC; a short one does not change.
func TestTruncate(t *testing.T) {
	q := stubQuery(t, "a.test.", dns.TypeA)
	for size, want := range map[int]int{104: 5, 103: 4, 1000: 5} {
		r := answers(t, q, true, slices.Repeat([]string{"a.test. 60 IN A 192.0.2.1"}, 5)...)
		r.Truncate(size)
		m := unpacked(t, r.Finish(MaxMessage)) // header and question take 24 bytes, an address 16
		if len(m.Answer) != want || m.Truncated != (want < 5) {
			t.Errorf("%d bytes: %d records, TC %v", size, len(m.Answer), m.Truncated)
		}
	}
}
