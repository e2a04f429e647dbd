package resolver_test

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/rewrite"
	"github.com/nodens-dns/nodens/server/template"
	"github.com/nodens-dns/nodens/test/race"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
	"github.com/nodens-dns/nodens/test/soak"
)

// ruled is a zone with the rewrite and template directives of text, in front of hosts, a
// cache and upstreams at to.
func ruled(t testing.TB, text string, to netip.AddrPort) *resolver.Zone {
	t.Helper()
	c, err := config.Parse(config.Source{Text: []byte(". {\n" + text + "\n}\n")})
	if err != nil {
		t.Fatal(err)
	}
	z := &resolver.Zone{Name: wire.Root, Stats: resolver.NewStats(), Hosts: resolvertest.Hosts(t, true, "192.0.2.9 by.hand"), Cache: resolvertest.Cache(), Forward: resolvertest.Pool(t, to)}
	if b := c.Blocks[0]; b.Rewrite != nil {
		z.Rewrite = rewrite.New(b.Rewrite)
	}
	if b := c.Blocks[0]; b.Template != nil {
		z.Template = template.New(b.Template)
	}
	return z
}

// inShort is a reply in one line.
func inShort(m *dns.Msg) string {
	return dns.RcodeToString[m.Rcode] + " " + strings.Join(texts(m.Answer), "; ") + " | " + strings.Join(texts(m.Ns), "; ")
}

// TestRules: what a client gets under rules and templates, over both transports, the
// first time and from the cache.
func TestRules(t *testing.T) {
	const soa = "test. 30 SOA ns.nic.test. hostmaster.nic.test. 1 2 3 4 30"
	for _, tt := range []struct {
		name, text, qname string
		qtype             uint16
		want              string
		asked             []string // of the upstream, once each; nil is not looked at
	}{
		{"no rule takes it", "rewrite name a.test www.example.org", "www.example.org.", dns.TypeA, "NOERROR www.example.org. 60 A 192.0.2.1 | ", []string{"www.example.org."}},
		{"exact", "rewrite name a.test www.example.org", "A.test.", dns.TypeA, "NOERROR A.test. 60 A 192.0.2.1 | ", []string{"www.example.org."}},
		{"hosts", "rewrite name a.test by.hand", "a.test.", dns.TypeA, "NOERROR a.test. 3600 A 192.0.2.9 | ", []string{}},
		{"suffix", "rewrite name suffix .a.test .example.org", "chain.a.test.", dns.TypeA, "NOERROR chain.example.org. 50 CNAME www.example.org.; www.example.org. 50 A 192.0.2.1 | ", nil},
		{"suffix, answer auto", "rewrite name suffix .a.test .example.org answer auto", "chain.a.test.", dns.TypeA, "NOERROR chain.a.test. 50 CNAME www.a.test.; www.a.test. 50 A 192.0.2.1 | ", []string{"chain.example.org."}},
		{"no such name", "rewrite name suffix .a.test .test answer auto", "no.a.test.", dns.TypeA, "NXDOMAIN  | " + strings.Replace(soa, "ns.nic.", "ns.nic.a.", 1), []string{"no.test."}},
		{"broken upstream", "rewrite name a.test broken.example.org", "a.test.", dns.TypeA, "SERVFAIL  | ", nil},
		{"rcode", "rewrite continue rcode a.test SERVFAIL NXDOMAIN\nrewrite name a.test broken.example.org", "a.test.", dns.TypeA, "NXDOMAIN  | ", nil},
		{"an rcode that takes EDNS", "rewrite rcode www.example.org NOERROR BADKEY", "www.example.org.", dns.TypeA, "SERVFAIL www.example.org. 60 A 192.0.2.1 | ", nil},
		{"ttl", "rewrite ttl regex example 7", "www.example.org.", dns.TypeA, "NOERROR www.example.org. 7 A 192.0.2.1 | ", nil},
		{"type", "rewrite type MX A", "www.example.org.", dns.TypeMX, "NOERROR www.example.org. 60 A 192.0.2.1 | ", []string{"www.example.org."}},
		{"no name", "rewrite name regex (.*) {1}", "www.example.org.", dns.TypeA, "SERVFAIL  | ", []string{}},
		{"no name in the reply", "rewrite name regex (.*)\\.a\\.test {1}.example.org answer name ^(www).* {1}..x", "www.a.test.", dns.TypeA, "SERVFAIL  | ", []string{"www.example.org."}},
		{"cname", "rewrite cname www.example.org intern.corp.test", "chain.example.org.", dns.TypeA, "NOERROR chain.example.org. 50 CNAME intern.corp.test.; intern.corp.test. 40 A 192.0.2.7 | ", []string{"chain.example.org.", "intern.corp.test."}},
		{"cname to what doesn't resolve", "rewrite cname www.example.org broken.example.org", "chain.example.org.", dns.TypeA, "NOERROR chain.example.org. 50 CNAME broken.example.org. | ", nil},
		{"another cname", "rewrite cname x.example.org intern.corp.test", "chain.example.org.", dns.TypeA, "NOERROR chain.example.org. 50 CNAME www.example.org.; www.example.org. 50 A 192.0.2.1 | ", []string{"chain.example.org."}},
		{"a circle", "rewrite cname www.example.org chain.example.org", "chain.example.org.", dns.TypeA,
			"NOERROR " + strings.Repeat("chain.example.org. 50 CNAME chain.example.org.; ", 9) + "chain.example.org. 50 CNAME www.example.org.; www.example.org. 50 A 192.0.2.1 | ", []string{"chain.example.org."}},
		{"template", "template IN A t.test {\nanswer \"{{ .Name }} 5 IN A 192.0.2.8\"\n}", "X.t.test.", dns.TypeA, "NOERROR X.t.test. 5 A 192.0.2.8 | ", []string{}},
		{"template, another type", "template IN A t.test {\nanswer \"{{ .Name }} 5 IN A 192.0.2.8\"\n}", "x.t.test.", dns.TypeAAAA, "NXDOMAIN  | t." + soa, []string{"x.t.test."}},
		{"template that fails", "template IN A t.test {\nanswer \"{{ .Name }} 5 IN A x\"\n}", "x.t.test.", dns.TypeA, "SERVFAIL  | ", []string{}},
		{"template of an alias", "template IN A t.test {\nanswer \"{{ .Name }} 5 IN CNAME chain.example.org\"\n}", "x.t.test.", dns.TypeA,
			"NOERROR x.t.test. 5 CNAME chain.example.org.; chain.example.org. 50 CNAME www.example.org.; www.example.org. 50 A 192.0.2.1 | ", []string{"chain.example.org."}},
		{"template of a circle", "template IN A t.test {\nanswer \"{{ .Name }} 5 IN CNAME {{ .Name }}\"\n}", "x.t.test.", dns.TypeA, "NOERROR " + strings.TrimSuffix(strings.Repeat("x.t.test. 5 CNAME x.t.test.; ", 9), "; ") + " | ", []string{}},
		{"rewrite to a template", "rewrite name a.test x.t.test\ntemplate IN A t.test {\nanswer \"{{ .Name }} 5 IN CNAME chain.example.org\"\n}", "a.test.", dns.TypeA,
			"NOERROR a.test. 5 CNAME chain.example.org.; chain.example.org. 50 CNAME www.example.org.; www.example.org. 50 A 192.0.2.1 | ", []string{"chain.example.org."}},
	} {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(tt.name+"/"+network, func(t *testing.T) {
				b := resolvertest.StartBackend(t, outer)
				_, addr := start(t, server.Limits{}, ruled(t, tt.text, b.Addr()))
				for range 2 {
					m := query(t, network, addr, question(tt.qname, tt.qtype))
					// What the cache holds may be a second older.
					if got := inShort(m); strings.ReplaceAll(got, " 49 ", " 50 ") != tt.want && strings.ReplaceAll(got, " 59 ", " 60 ") != tt.want {
						t.Errorf("got\n%s, want\n%s", got, tt.want)
					}
					if q := m.Question[0]; q.Name != tt.qname || q.Qtype != tt.qtype {
						t.Errorf("the question is %s", q.String())
					}
				}
				if tt.asked == nil {
					return
				}
				want := map[string]int{}
				for _, name := range tt.asked {
					want[name] = 1
				}
				if diff := cmp.Diff(want, b.Asked()); diff != "" {
					t.Errorf("asked (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// TestRulesEnd: a template that leads to itself by many ways is still answered, in a bounded
// time.
func TestRulesEnd(t *testing.T) {
	ways := soak.Choose(50, 500)
	b := resolvertest.StartBackend(t, outer)
	_, addr := start(t, server.Limits{}, ruled(t, "template IN A t.test {\nanswer"+strings.Repeat(" \"{{ .Name }} 5 IN CNAME {{ .Name }}\"", ways)+"\n}", b.Addr()))
	if m := query(t, "tcp", addr, question("x.t.test.", dns.TypeA)); m.Rcode != dns.RcodeSuccess || len(m.Answer) < ways {
		t.Errorf("%s with %d answers", dns.RcodeToString[m.Rcode], len(m.Answer))
	}
}

// TestClasses: a rule may have queries of another class answered; all others are refused,
// wherever they come.
func TestClasses(t *testing.T) {
	b := resolvertest.StartBackend(t, outer)
	corp := ruled(t, "rewrite name a.test b.test", b.Addr())
	corp.Name = resolvertest.ZoneName(t, "corp.test.")
	plain := &resolver.Zone{Name: resolvertest.ZoneName(t, "plain.test."), Forward: resolvertest.Pool(t, b.Addr())}
	_, addr := start(t, server.Limits{}, ruled(t, "rewrite continue class CH IN\nrewrite name a.test www.example.org", b.Addr()), corp, plain)
	for _, network := range []string{"udp", "tcp"} {
		for _, c := range []struct {
			name  string
			class uint16
			want  string
		}{
			{"www.example.org.", dns.ClassCHAOS, "NOERROR www.example.org. 60 A 192.0.2.1 | "},
			{"a.test.", dns.ClassCHAOS, "NOERROR a.test. 60 A 192.0.2.1 | "},
			{"a.test.", dns.ClassHESIOD, "REFUSED  | "},
			{"intern.corp.test.", dns.ClassCHAOS, "REFUSED  | "},
			{"a.plain.test.", dns.ClassCHAOS, "REFUSED  | "},
			{"intern.corp.test.", dns.ClassINET, "NOERROR intern.corp.test. 40 A 192.0.2.7 | "},
		} {
			q := question(c.name, dns.TypeA)
			q.Question[0].Qclass = c.class
			m := query(t, network, addr, q)
			if got := inShort(m); strings.NewReplacer(" 59 ", " 60 ", " 39 ", " 40 ").Replace(got) != c.want || m.Question[0].Qclass != c.class {
				t.Errorf("%s %s class %d: %s, want %s", network, c.name, c.class, got, c.want)
			}
		}
	}
}

// TestRulesCounted: replies are counted under who answered, and what fails by a rule is
// logged once.
func TestRulesCounted(t *testing.T) {
	b := resolvertest.StartBackend(t, outer)
	z := ruled(t, "rewrite name suffix .a.test .example.org\nrewrite name suffix .h.test .hand\nrewrite name regex ^(bad)\\. {1}..\ntemplate IN A t.test {\nanswer \"{{ .Name }} A 192.0.2.8\"\n}\ntemplate IN A f.test {\nanswer x\n}", b.Addr())
	var log bytes.Buffer
	var mu sync.Mutex
	z.Errors = &resolver.ErrorLog{Logger: slog.New(slog.NewTextHandler(&locked{w: &log, mu: &mu}, nil))}
	_, addr := start(t, server.Limits{}, z)
	for range 2 {
		for _, name := range []string{"www.a.test.", "by.h.test.", "bad.", "x.t.test.", "x.f.test."} {
			query(t, "udp", addr, question(name, dns.TypeA))
		}
	}
	got := map[string]uint64{}
	eventually(t, "all to be counted", func() bool {
		clear(got)
		var sum uint64
		z.Stats.EachResponse(func(rcode, plugin string, n uint64) { got[rcode+" "+plugin] += n; sum += n })
		return sum == 10
	})
	want := map[string]uint64{"NOERROR forward": 1, "NOERROR cache": 1, "NOERROR hosts": 2, "SERVFAIL ": 2, "NOERROR template": 2, "SERVFAIL template": 2}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	mu.Lock()
	defer mu.Unlock()
	if text := log.String(); strings.Count(text, "\n") != 4 || strings.Count(text, rewrite.ErrInvalidName.Error()) != 2 || strings.Count(text, "template answer: dns:") != 2 {
		t.Errorf("logged:\n%s", text)
	}
}

// locked is a writer for several goroutines.
type locked struct {
	mu *sync.Mutex
	w  *bytes.Buffer
}

func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// TestRulesStampede: many clients at once get their own answers.
func TestRulesStampede(t *testing.T) {
	b := resolvertest.StartBackend(t, outer)
	_, addr := start(t, server.Limits{}, ruled(t, "rewrite continue ttl prefix x 9\nrewrite name regex ^(.)\\.(a|b)\\.test {2}{1}.example.org answer auto\ntemplate IN A example.org {\nmatch ^(a|b)(.)\nanswer \"{{ .Name }} 5 IN CNAME {{ index .Match 2 }}.any\" \"{{ .Name }} 5 IN TXT {{ .Name }}\"\n}", b.Addr()))
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 50 {
				name := string(rune('a'+(i+j)%26)) + "." + string(rune('a'+j%2)) + ".test."
				m := query(t, "udp", addr, question(name, dns.TypeA))
				if len(m.Answer) != 2 || m.Answer[0].Header().Name != name || m.Answer[1].Header().Name != name || m.Question[0].Name != name {
					t.Errorf("%s:\n%s", name, m)
					return
				}
			}
		})
	}
	all.Wait()
}

// unconnected is a server without sockets, and asks it.
func unconnected(t testing.TB, z *resolver.Zone) func(name string) resolver.Outcome {
	t.Helper()
	rt := resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())
	x := &resolver.Request{Client: netip.AddrPortFrom(shopper, 4242)}
	out := make([]byte, 0, replyBuffer)
	packets := make(map[string][]byte)
	return func(name string) resolver.Outcome {
		packet := packets[name]
		if packet == nil {
			var err error
			if packet, err = question(name, dns.TypeA).Pack(); err != nil {
				t.Fatal(err)
			}
			packets[name] = packet
		}
		x.Query.Packet = packet
		_, o := serve(rt, x, out)
		if o != resolver.Answered {
			resume(rt, x, o)
		}
		return o
	}
}

// TestRulesAllocs: a hit that no rule takes costs no allocation, and one by another name at
// most two.
func TestRulesAllocs(t *testing.T) {
	if race.Enabled() {
		t.Skip("pools are not kept under the race detector")
	}
	b := resolvertest.StartBackend(t, outer)
	serve := unconnected(t, ruled(t, "rewrite name suffix .a.test .example.org answer auto\nrewrite ttl prefix x 5\ntemplate IN MX t.test", b.Addr()))
	for name, most := range map[string]float64{"www.example.org.": 0, "www.a.test.": 2} {
		serve(name)
		if n := testing.AllocsPerRun(100, func() {
			if serve(name) != resolver.Answered {
				t.Fatal("not a hit")
			}
		}); n > most {
			t.Errorf("%s: %v allocations, at most %v are meant", name, n, most)
		}
	}
}

// BenchmarkRewritten is a hit by another name.
func BenchmarkRewritten(b *testing.B) {
	addr := netip.AddrPortFrom(loopback, 9)
	z := ruled(b, "rewrite name a.test by.hand\nrewrite name suffix .h.test .hand answer auto\nrewrite name regex (.*)\\.r\\.test {1}.hand answer auto\ntemplate IN A t.test {\nanswer \"{{ .Name }} 5 IN A 192.0.2.8\"\n}", addr)
	for _, name := range []string{"by.hand.", "a.test.", "by.h.test.", "by.r.test.", "x.t.test."} {
		b.Run(name, func(b *testing.B) {
			serve := unconnected(b, z)
			serve(name)
			b.ReportAllocs()
			for b.Loop() {
				if serve(name) != resolver.Answered {
					b.Fatal("not a hit")
				}
			}
		})
	}
}
