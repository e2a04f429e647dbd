package hosts_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/filewatch"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/hosts"
)

// writeFile writes text to a new hosts file.
func writeFile(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// newTable returns the Table of cfg, and the buffer of its log.
func newTable(t testing.TB, cfg config.Hosts) (*hosts.Table, *bytes.Buffer) {
	t.Helper()
	var out bytes.Buffer
	tab, err := hosts.New(&cfg, hosts.Options{Logger: slog.New(slog.NewTextHandler(&out, nil))})
	if err != nil {
		t.Fatalf("making the table: %v", err)
	}
	return tab, &out
}

func name(t testing.TB, s string) wire.Name {
	t.Helper()
	n, err := wire.ParseName(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func query(t testing.TB, qname string, qtype uint16) *wire.Query {
	t.Helper()
	var m dns.Msg
	m.SetQuestion(dns.Fqdn(qname), qtype)
	packet, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	var q wire.Query
	if v := q.Parse(packet); v != wire.Serve {
		t.Fatalf("verdict %d", v)
	}
	return &q
}

// ask returns tab's answer as lines: the rcode and AA, then the records. It returns nil if
// tab does not answer.
func ask(t testing.TB, tab *hosts.Table, qname string, qtype uint16) []string {
	t.Helper()
	q := query(t, qname, qtype)
	var r wire.Reply
	r.Start(nil, q)
	if !tab.Answer(q, &r) {
		return nil
	}
	var m dns.Msg
	if err := m.Unpack(r.Finish(wire.MaxMessage)); err != nil {
		t.Fatalf("unpacking the answer: %v", err)
	}
	status := dns.RcodeToString[m.Rcode]
	if m.Authoritative {
		status += " aa"
	}
	out := []string{status}
	for _, rr := range m.Answer {
		out = append(out, strings.ReplaceAll(rr.String(), "\t", " "))
	}
	if len(m.Ns)+len(m.Extra) > 0 {
		t.Errorf("records outside the answer section:\n%s", &m)
	}
	return out
}

const text = `
# a comment
10.0.0.1 web.example web2.example WEB3.Example. # another
fd00::1  web.example
10.0.0.3 web.example
10.0.0.1 web.example
	10.0.0.4	tab.example
fe80::1%eth0 scoped.example
::ffff:10.0.0.5 mapped.example
10.0.0.2 *.wild.example
fd00::2 own.wild.example
10.0.0.6 out.test
`

func TestAnswer(t *testing.T) {
	cfg := config.Hosts{
		File: writeFile(t, text), TTL: 3600, Zones: []wire.Name{name(t, "example"), name(t, "10.in-addr.arpa")},
		Inline: []string{"10.0.0.9 inline.example web.example"},
	}
	tests := map[string]struct {
		qname string
		qtype uint16
		want  []string
	}{
		"A, in the order of the lines, without duplicates": {"web.example", dns.TypeA, []string{"NOERROR aa",
			"web.example. 3600 IN A 10.0.0.1", "web.example. 3600 IN A 10.0.0.3", "web.example. 3600 IN A 10.0.0.9"}},
		"AAAA":                     {"web.example", dns.TypeAAAA, []string{"NOERROR aa", "web.example. 3600 IN AAAA fd00::1"}},
		"a second name":            {"web2.example", dns.TypeA, []string{"NOERROR aa", "web2.example. 3600 IN A 10.0.0.1"}},
		"the case of the query":    {"wEB3.example", dns.TypeA, []string{"NOERROR aa", "wEB3.example. 3600 IN A 10.0.0.1"}},
		"only the other family":    {"web2.example", dns.TypeAAAA, []string{"NOERROR aa"}},
		"another type":             {"web.example", dns.TypeMX, []string{"NOERROR aa"}},
		"no such name":             {"no.example", dns.TypeA, []string{"SERVFAIL"}},
		"no such name, a type":     {"no.example", dns.TypeMX, []string{"SERVFAIL"}},
		"the zone itself":          {"example", dns.TypeA, []string{"SERVFAIL"}},
		"tabs":                     {"tab.example", dns.TypeA, []string{"NOERROR aa", "tab.example. 3600 IN A 10.0.0.4"}},
		"an IPv6 zone":             {"scoped.example", dns.TypeAAAA, []string{"NOERROR aa", "scoped.example. 3600 IN AAAA fe80::1"}},
		"an IPv4-mapped address":   {"mapped.example", dns.TypeA, []string{"NOERROR aa", "mapped.example. 3600 IN A 10.0.0.5"}},
		"inline":                   {"inline.example", dns.TypeA, []string{"NOERROR aa", "inline.example. 3600 IN A 10.0.0.9"}},
		"a wildcard":               {"a.wild.example", dns.TypeA, []string{"NOERROR aa", "a.wild.example. 3600 IN A 10.0.0.2"}},
		"a wildcard, NODATA":       {"a.wild.example", dns.TypeAAAA, []string{"NOERROR aa"}},
		"two labels below":         {"a.b.wild.example", dns.TypeA, []string{"SERVFAIL"}},
		"beside a wildcard":        {"own.wild.example", dns.TypeA, []string{"NOERROR aa"}},
		"a name outside the zones": {"out.test", dns.TypeA, nil},
		"the root":                 {".", dns.TypeA, nil},
		"PTR": {"1.0.0.10.in-addr.arpa", dns.TypePTR, []string{"NOERROR aa", "1.0.0.10.in-addr.arpa. 3600 IN PTR web.example.",
			"1.0.0.10.in-addr.arpa. 3600 IN PTR web2.example.", "1.0.0.10.in-addr.arpa. 3600 IN PTR web3.example."}},
		"PTR outside the zones": {"1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.F.ip6.arpa", dns.TypePTR, []string{"NOERROR aa",
			"1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.F.ip6.arpa. 3600 IN PTR web.example."}},
		"PTR of a wildcard":               {"2.0.0.10.in-addr.arpa", dns.TypePTR, nil},
		"PTR of an unknown address":       {"7.0.0.10.in-addr.arpa", dns.TypePTR, nil},
		"PTR of a name outside the zones": {"6.0.0.10.in-addr.arpa", dns.TypePTR, nil},
		"PTR of a plain name":             {"web.example", dns.TypePTR, nil},
		"A of a reverse name":             {"1.0.0.10.in-addr.arpa", dns.TypeA, []string{"SERVFAIL"}},
	}
	tab, logged := newTable(t, cfg)
	if logged.Len() > 0 {
		t.Errorf("logged:\n%s", logged)
	}
	for label, tt := range tests {
		t.Run(label, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, ask(t, tab, tt.qname, tt.qtype)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	// 12 addresses: web 3+1, web2, web3, tab, scoped, mapped, inline, wildcard, own. Each but
	// the wildcard has a reverse name.
	if got := tab.Entries(); got != 12+11 {
		t.Errorf("%d entries", got)
	}
}

func TestOptions(t *testing.T) {
	path := writeFile(t, "10.0.0.1 web.example\n")
	tests := map[string]struct {
		cfg   config.Hosts
		qname string
		qtype uint16
		want  []string
	}{
		"ttl":                           {config.Hosts{TTL: 30}, "web.example", dns.TypeA, []string{"NOERROR aa", "web.example. 30 IN A 10.0.0.1"}},
		"no_reverse":                    {config.Hosts{NoReverse: true}, "1.0.0.10.in-addr.arpa", dns.TypePTR, nil},
		"fallthrough":                   {config.Hosts{Fallthrough: &config.Fallthrough{}}, "no.example", dns.TypeA, nil},
		"fallthrough, an existing name": {config.Hosts{Fallthrough: &config.Fallthrough{}}, "web.example", dns.TypeAAAA, []string{"NOERROR aa"}},
		"fallthrough for its zone":      {config.Hosts{Fallthrough: &config.Fallthrough{Zones: []wire.Name{name(t, "example")}}}, "no.example", dns.TypeA, nil},
		"fallthrough for other zones":   {config.Hosts{Fallthrough: &config.Fallthrough{Zones: []wire.Name{name(t, "test")}}}, "no.example", dns.TypeA, []string{"SERVFAIL"}},
		"without zones":                 {config.Hosts{}, ".", dns.TypeA, []string{"SERVFAIL"}},
	}
	for label, tt := range tests {
		t.Run(label, func(t *testing.T) {
			tt.cfg.File = path
			tab, _ := newTable(t, tt.cfg)
			if diff := cmp.Diff(tt.want, ask(t, tab, tt.qname, tt.qtype)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestBadLines(t *testing.T) {
	long := strings.Repeat("a", 64)
	tests := map[string]struct {
		line string
		log  string // expected in the log; "" for no line
		good string // a name of the line that is used nevertheless
	}{
		"no address":        {"web.example 10.0.0.1", "is not an IP address", ""},
		"a short address":   {"10.1 web.example", "is not an IP address", ""},
		"no name":           {"10.0.0.1", "an address without a name", ""},
		"a comment instead": {"10.0.0.1 # web.example", "an address without a name", ""},
		"a long label":      {"10.0.0.1 good.example " + long + ".example", "label of 64 bytes", "good.example"},
		"an empty label":    {"10.0.0.1 good.example a..example", "empty label", "good.example"},
		"binary":            {"\x00\xff\x01", "is not an IP address", ""},
		"blank":             {" \t ", "", ""},
		"a carriage return": {"10.0.0.1 good.example\r", "", "good.example"},
		"an @":              {"10.0.0.1 a@b.example", "", "a@b.example"},
	}
	for label, tt := range tests {
		t.Run(label, func(t *testing.T) {
			tab, logged := newTable(t, config.Hosts{File: writeFile(t, "\n10.0.0.7 first.example\n"+tt.line+"\n10.0.0.8 last.example")})
			got := logged.String()
			if tt.log == "" && got != "" {
				t.Errorf("logged %s", got)
			}
			if tt.log != "" && (!strings.Contains(got, tt.log) || !strings.Contains(got, "line=3") || strings.Count(got, "\n") != 1) {
				t.Errorf("logged %s", got)
			}
			for _, n := range []string{"first.example", "last.example", tt.good} {
				if n != "" && len(ask(t, tab, n, dns.TypeA)) != 2 {
					t.Errorf("%s has no address", n)
				}
			}
		})
	}
	t.Run("many", func(t *testing.T) {
		_, logged := newTable(t, config.Hosts{File: writeFile(t, strings.Repeat("x\n", 1000))})
		if n := strings.Count(logged.String(), "\n"); n != hosts.MaxLoggedLines+1 || !strings.Contains(logged.String(), "lines=1000") {
			t.Errorf("%d lines logged, last:\n%s", n, logged)
		}
	})
	t.Run("inline", func(t *testing.T) {
		_, logged := newTable(t, config.Hosts{File: writeFile(t, ""), Inline: []string{"10.0.0.1 a.example", "b.example"}})
		if !strings.Contains(logged.String(), "source=Corefile line=2") {
			t.Errorf("logged %s", logged)
		}
	})
}

func TestFile(t *testing.T) {
	t.Run("missing", func(t *testing.T) {
		tab, logged := newTable(t, config.Hosts{File: filepath.Join(t.TempDir(), "hosts"), Inline: []string{"10.0.0.1 a.example"}})
		if !strings.Contains(logged.String(), "does not exist") {
			t.Errorf("logged %s", logged)
		}
		if len(ask(t, tab, "a.example", dns.TypeA)) != 2 {
			t.Error("the inline lines are ignored")
		}
	})
	t.Run("a folder", func(t *testing.T) {
		dir := t.TempDir()
		_, err := hosts.New(&config.Hosts{File: dir}, hosts.Options{})
		if !errors.Is(err, filewatch.ErrNotRegular) || !strings.Contains(err.Error(), dir) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("too large", func(t *testing.T) {
		path := writeFile(t, "")
		if err := os.Truncate(path, hosts.MaxFileSize+1); err != nil { // a hole, no blocks
			t.Fatal(err)
		}
		if _, err := hosts.New(&config.Hosts{File: path}, hosts.Options{}); err == nil || !strings.Contains(err.Error(), "32 MiB") {
			t.Errorf("error %v", err)
		}
	})
}

func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	write := func(text string, at time.Time) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		const every = 5 * time.Second
		ctx, stop := context.WithCancel(t.Context())
		tab, logged := newTable(t, config.Hosts{File: path, Reload: every})
		done := make(chan struct{})
		go func() { tab.Run(ctx); close(done) }()
		tick := func() { time.Sleep(every); synctest.Wait() } // fake time
		has := func(addr string) bool {
			lines := ask(t, tab, "a.example", dns.TypeA)
			return len(lines) == 2 && strings.HasSuffix(lines[1], addr)
		}
		then := time.Unix(1e9, 0)
		steps := []struct {
			what string
			do   func()
			want string
		}{
			{"the file appears", func() { write("10.0.0.1 a.example", then) }, "10.0.0.1"},
			{"nothing changes", func() {}, "10.0.0.1"},
			{"another time, same size", func() { write("10.0.0.2 a.example", then.Add(time.Second)) }, "10.0.0.2"},
			{"an older time", func() { write("10.0.0.3 a.example", then) }, "10.0.0.3"},
			{"same time, another size", func() { write("10.0.0.44 a.example", then) }, "10.0.0.44"},
			{"another file with the same time and size", func() {
				other := path + ".new"
				if err := os.WriteFile(other, []byte("10.0.0.66 a.example"), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Chtimes(other, then, then); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(other, path); err != nil {
					t.Fatal(err)
				}
			}, "10.0.0.66"},
			{"the file is removed", func() {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}, "10.0.0.66"},
			{"the file is restored", func() { write("10.0.0.55 a.example", then) }, "10.0.0.55"},
			{"the file becomes too large", func() {
				if err := os.Truncate(path, hosts.MaxFileSize+1); err != nil {
					t.Fatal(err)
				}
			}, "10.0.0.55"},
		}
		for _, s := range steps {
			s.do()
			tick()
			if !has(s.want) {
				t.Errorf("%s: %v, want %s", s.what, ask(t, tab, "a.example", dns.TypeA), s.want)
			}
		}
		before := logged.Len()
		tick()
		if logged.Len() != before {
			t.Errorf("the same failure is logged again:\n%s", logged.String()[before:])
		}
		stop()
		<-done
	})
}

func TestNoReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := writeFile(t, "10.0.0.1 a.example")
		tab, _ := newTable(t, config.Hosts{File: path})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { tab.Run(ctx); close(done) }()
		if err := os.WriteFile(path, []byte("10.0.0.22 a.example"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // fake time
		synctest.Wait()
		if lines := ask(t, tab, "a.example", dns.TypeA); len(lines) != 2 || !strings.HasSuffix(lines[1], "10.0.0.1") {
			t.Errorf("the file was reloaded: %v", lines)
		}
		stop()
		<-done
	})
}

// TestBlockList: one address has more names than fit into a message.
func TestBlockList(t *testing.T) {
	var lines strings.Builder
	for i := range hosts.MaxRecords + 10 {
		fmt.Fprintf(&lines, "0.0.0.0 n%d.example\n10.%d.%d.1 many.example\n", i, i/256, i%256)
	}
	tab, _ := newTable(t, config.Hosts{File: writeFile(t, lines.String())})
	if got := tab.Entries(); got != hosts.MaxRecords+10+hosts.MaxRecords+hosts.MaxRecords+hosts.MaxRecords {
		t.Errorf("%d entries", got)
	}
	if got := ask(t, tab, fmt.Sprintf("n%d.example", hosts.MaxRecords+9), dns.TypeA); len(got) != 2 {
		t.Errorf("the last name: %v", got)
	}
	for _, q := range []*wire.Query{query(t, "0.0.0.0.in-addr.arpa", dns.TypePTR), query(t, "many.example", dns.TypeA)} {
		var r wire.Reply
		r.Start(nil, q)
		if !tab.Answer(q, &r) || len(r.Finish(wire.MaxMessage)) > wire.MaxMessage {
			t.Errorf("%s: no answer, or one that is too long", wire.Name(q.Name()))
		}
	}
}

func TestReverseName(t *testing.T) {
	for _, addr := range []string{"0.0.0.0", "10.0.255.1", "255.255.255.255", "::", "fd00::1:2", "2001:db8:ffff:1234::abcd"} {
		want, err := dns.ReverseAddr(addr)
		if err != nil {
			t.Fatal(err)
		}
		if got := hosts.ReverseName(netip.MustParseAddr(addr)).String(); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
}

func TestAllocations(t *testing.T) {
	tab, _ := newTable(t, config.Hosts{File: writeFile(t, text), Zones: []wire.Name{name(t, "example")}})
	var r wire.Reply
	buf := make([]byte, 0, 4096)
	for _, q := range []*wire.Query{
		query(t, "web.example", dns.TypeA), query(t, "a.wild.example", dns.TypeA), query(t, "no.example", dns.TypeA),
		query(t, "out.test", dns.TypeA), query(t, "1.0.0.10.in-addr.arpa", dns.TypePTR),
	} {
		if n := testing.AllocsPerRun(100, func() {
			r.Start(buf, q)
			tab.Answer(q, &r)
		}); n != 0 {
			t.Errorf("%s: %v allocations", wire.Name(q.Name()), n)
		}
	}
}

func BenchmarkAnswer(b *testing.B) {
	var lines strings.Builder
	for i := range 10000 {
		fmt.Fprintf(&lines, "10.0.%d.%d n%d.example\n", i/256, i%256, i)
	}
	tab, _ := newTable(b, config.Hosts{File: writeFile(b, lines.String()), Zones: []wire.Name{name(b, "example")}})
	q := query(b, "n5000.example", dns.TypeA)
	var r wire.Reply
	buf := make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		r.Start(buf, q)
		tab.Answer(q, &r)
	}
}
