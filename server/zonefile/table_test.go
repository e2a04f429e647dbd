package zonefile_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/authority"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/zonefile"
	"github.com/nodens-dns/nodens/test/race"
	"github.com/nodens-dns/nodens/test/testlog"
)

// shapes is a zone with each shape that a zone can have.
const shapes = `
$TTL 60
@            SOA   NS1.z.test. Host.z.test. 7 3600 600 86400 30
@            NS    ns1
@            NS    ns.elsewhere.test.
@            MX    10 mail
ns1          A     192.0.2.1
mail         A     192.0.2.2
mail         AAAA  2001:db8::2
www     300  A     192.0.2.3
www     300  A     192.0.2.3 ; twice
_x._tcp      SRV   1 2 53 Mail
svc          HTTPS 1 Mail alpn=h2
*.wild       A     192.0.2.9
*.wild       MX    5 mail
host.wild    TXT   "host"
a.b.wild     TXT   "below an empty non-terminal"
x.*.odd      TXT   "an empty non-terminal of an asterisk"
*.alias      CNAME www
sub          NS    ns.sub
sub          NS    ns1
sub          DS    1 13 2 0000000000000000000000000000000000000000000000000000000000000000
ns.sub       A     192.0.2.4
deep.sub     A     192.0.2.5
old          DNAME new
old          TXT   "the owner itself"
a.new        A     192.0.2.6
far          DNAME Elsewhere.test.
self         DNAME self
one          CNAME two
two          CNAME www
self1        CNAME self1
loop1        CNAME loop2
loop2        CNAME loop1
out          CNAME host.elsewhere.test.
gone         CNAME nowhere
tosub        CNAME x.sub
nodata       CNAME ns1
$ORIGIN gen.z.test.
$GENERATE 1-3 h$ 60 A 192.0.2.$
`

// table returns the table of a zone file with this text, with more options in the block.
func table(tb testing.TB, text string, more ...string) *zonefile.Table {
	tb.Helper()
	t, err := newTable(tb, text, nil, more...)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func newTable(tb testing.TB, text string, log *slog.Logger, more ...string) (*zonefile.Table, error) {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "db")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return zonefile.New(directive(tb, path, more...), zonefile.Options{Logger: log})
}

func directive(tb testing.TB, path string, more ...string) *config.ZoneFile {
	tb.Helper()
	text := fmt.Sprintf(". {\nfile %q z.test {\n%s\n}\n}\n", path, strings.Join(more, "\n"))
	c, err := config.Parse(config.Source{Text: []byte(text)})
	if err != nil {
		tb.Fatal(err)
	}
	return c.Blocks[0].ZoneFile
}

// ask returns the outcome of a query and, in short, the reply.
func ask(tb testing.TB, t *zonefile.Table, name string, qtype uint16, do bool) (authority.Outcome, string) {
	tb.Helper()
	m := new(dns.Msg).SetQuestion(name, qtype)
	if do {
		m.SetEdns0(1232, true)
	}
	packet, err := m.Pack()
	if err != nil {
		tb.Fatal(err)
	}
	var q wire.Query
	if q.Parse(packet) != wire.Serve {
		tb.Fatal("no query")
	}
	var r wire.Reply
	r.Start(nil, &q)
	o, lead := t.Answer(&q, &r)
	if o == authority.NotMine {
		return o, "not mine"
	}
	var got dns.Msg
	if err := got.Unpack(r.Finish(wire.MaxMessage)); err != nil {
		tb.Fatal(err)
	}
	text := inShort(&got)
	if o == authority.Leads {
		text += " > " + lead.Target.String()
	}
	return o, text
}

// inShort is the flags, the rcode and the records of m.
func inShort(m *dns.Msg) string {
	parts := []string{dns.RcodeToString[m.Rcode]}
	if m.Authoritative {
		parts[0] += " aa"
	}
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		var list []string
		for _, rr := range section {
			if rr.Header().Rrtype != dns.TypeOPT {
				list = append(list, strings.ReplaceAll(strings.ReplaceAll(rr.String(), "\t", " "), " IN ", " "))
			}
		}
		parts = append(parts, strings.Join(list, "; "))
	}
	for len(parts) > 1 && parts[len(parts)-1] == "" {
		parts = parts[:len(parts)-1]
	}
	return strings.Join(parts, " | ")
}

const (
	soa = "z.test. 30 SOA ns1.z.test. host.z.test. 7 3600 600 86400 30"
	ns  = "z.test. 60 NS ns1.z.test.; z.test. 60 NS ns.elsewhere.test."
)

// TestAnswer: what the zone of shapes answers.
func TestAnswer(t *testing.T) {
	tab := table(t, shapes)
	const www = "www.z.test. 300 A 192.0.2.3"
	for _, tt := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"z.test.", dns.TypeSOA, "NOERROR aa | z.test. 60 SOA ns1.z.test. host.z.test. 7 3600 600 86400 30 | " + ns},
		{"z.test.", dns.TypeNS, "NOERROR aa | " + ns + " |  | ns1.z.test. 60 A 192.0.2.1"},
		{"z.test.", dns.TypeMX, "NOERROR aa | z.test. 60 MX 10 mail.z.test. | " + ns + " | mail.z.test. 60 A 192.0.2.2; mail.z.test. 60 AAAA 2001:db8::2"},
		{"z.test.", dns.TypeA, "NOERROR aa |  | " + soa},
		{"www.z.test.", dns.TypeA, "NOERROR aa | " + www + " | " + ns},
		{"WWW.z.test.", dns.TypeA, "NOERROR aa | WWW.z.test. 300 A 192.0.2.3 | " + ns},
		{"www.z.test.", dns.TypeTXT, "NOERROR aa |  | " + soa},
		{"www.z.test.", dns.TypeANY, "NOERROR aa | " + www + " | " + ns},
		{"no.z.test.", dns.TypeA, "NXDOMAIN aa |  | " + soa},
		{"a.www.z.test.", dns.TypeA, "NXDOMAIN aa |  | " + soa},
		{"_tcp.z.test.", dns.TypeA, "NOERROR aa |  | " + soa},
		{"_x._tcp.z.test.", dns.TypeSRV, "NOERROR aa | _x._tcp.z.test. 60 SRV 1 2 53 Mail.z.test. | " + ns + " | mail.z.test. 60 A 192.0.2.2; mail.z.test. 60 AAAA 2001:db8::2"},
		{"svc.z.test.", dns.TypeHTTPS, `NOERROR aa | svc.z.test. 60 HTTPS 1 Mail.z.test. alpn="h2" | ` + ns + " | mail.z.test. 60 A 192.0.2.2; mail.z.test. 60 AAAA 2001:db8::2"},
		{"h2.gen.z.test.", dns.TypeA, "NOERROR aa | h2.gen.z.test. 60 A 192.0.2.2 | " + ns},

		{"x.wild.z.test.", dns.TypeA, "NOERROR aa | x.wild.z.test. 60 A 192.0.2.9 | " + ns},
		{"x.y.wild.z.test.", dns.TypeA, "NOERROR aa | x.y.wild.z.test. 60 A 192.0.2.9 | " + ns},
		{"*.wild.z.test.", dns.TypeA, "NOERROR aa | *.wild.z.test. 60 A 192.0.2.9 | " + ns},
		{"x.wild.z.test.", dns.TypeTXT, "NOERROR aa |  | " + soa},
		{"host.wild.z.test.", dns.TypeA, "NOERROR aa |  | " + soa},
		{"x.host.wild.z.test.", dns.TypeA, "NXDOMAIN aa |  | " + soa},
		{"b.wild.z.test.", dns.TypeA, "NOERROR aa |  | " + soa},
		{"x.b.wild.z.test.", dns.TypeA, "NXDOMAIN aa |  | " + soa},
		{"y.odd.z.test.", dns.TypeA, "NOERROR aa |  | " + soa},
		{"x.alias.z.test.", dns.TypeA, "NOERROR aa | x.alias.z.test. 60 CNAME www.z.test.; " + www + " | " + ns},

		{"sub.z.test.", dns.TypeA, "NOERROR |  | sub.z.test. 60 NS ns.sub.z.test.; sub.z.test. 60 NS ns1.z.test. | ns.sub.z.test. 60 A 192.0.2.4"},
		{"deep.sub.z.test.", dns.TypeA, "NOERROR |  | sub.z.test. 60 NS ns.sub.z.test.; sub.z.test. 60 NS ns1.z.test. | ns.sub.z.test. 60 A 192.0.2.4"},
		{"sub.z.test.", dns.TypeDS, "NOERROR aa | sub.z.test. 60 DS 1 13 2 " + strings.Repeat("0", 64) + " | " + ns},

		{"a.old.z.test.", dns.TypeA, "NOERROR aa | old.z.test. 60 DNAME new.z.test.; a.old.z.test. 60 CNAME a.new.z.test.; a.new.z.test. 60 A 192.0.2.6 | " + ns},
		{"a.old.z.test.", dns.TypeCNAME, "NOERROR aa | old.z.test. 60 DNAME new.z.test.; a.old.z.test. 60 CNAME a.new.z.test. | " + ns},
		{"b.old.z.test.", dns.TypeA, "NXDOMAIN aa | old.z.test. 60 DNAME new.z.test.; b.old.z.test. 60 CNAME b.new.z.test. | " + soa},
		{"old.z.test.", dns.TypeTXT, `NOERROR aa | old.z.test. 60 TXT "the owner itself" | ` + ns},
		{"old.z.test.", dns.TypeDNAME, "NOERROR aa | old.z.test. 60 DNAME new.z.test. | " + ns},
		{"a.far.z.test.", dns.TypeA, "NOERROR | far.z.test. 60 DNAME Elsewhere.test.; a.far.z.test. 60 CNAME a.elsewhere.test. > a.elsewhere.test."},
		{"x.self.z.test.", dns.TypeA, "SERVFAIL"},
		{strings.Repeat("a.", 120) + "old.z.test.", dns.TypeTXT, "NXDOMAIN aa | old.z.test. 60 DNAME new.z.test.; " +
			strings.Repeat("a.", 120) + "old.z.test. 60 CNAME " + strings.Repeat("a.", 120) + "new.z.test. | " + soa},
		{strings.Repeat("a.", 121) + "far.z.test.", dns.TypeTXT, "YXDOMAIN aa | far.z.test. 60 DNAME Elsewhere.test."},

		{"one.z.test.", dns.TypeA, "NOERROR aa | one.z.test. 60 CNAME two.z.test.; two.z.test. 60 CNAME www.z.test.; " + www + " | " + ns},
		{"one.z.test.", dns.TypeCNAME, "NOERROR aa | one.z.test. 60 CNAME two.z.test. | " + ns},
		{"self1.z.test.", dns.TypeA, "SERVFAIL"},
		{"loop1.z.test.", dns.TypeA, "NOERROR aa | loop1.z.test. 60 CNAME loop2.z.test.; loop2.z.test. 60 CNAME loop1.z.test. | " + ns},
		{"out.z.test.", dns.TypeA, "NOERROR | out.z.test. 60 CNAME host.elsewhere.test. > host.elsewhere.test."},
		{"gone.z.test.", dns.TypeA, "NXDOMAIN aa | gone.z.test. 60 CNAME nowhere.z.test. | " + soa},
		{"nodata.z.test.", dns.TypeTXT, "NOERROR aa | nodata.z.test. 60 CNAME ns1.z.test. | " + soa},
		{"tosub.z.test.", dns.TypeA, "NOERROR aa | tosub.z.test. 60 CNAME x.sub.z.test. | sub.z.test. 60 NS ns.sub.z.test.; sub.z.test. 60 NS ns1.z.test. | ns.sub.z.test. 60 A 192.0.2.4"},

		{"www.z.test.", dns.TypeAXFR, "REFUSED"},
		{"other.test.", dns.TypeA, "not mine"},
	} {
		t.Run(tt.name[:min(len(tt.name), 30)]+" "+dns.Type(tt.qtype).String(), func(t *testing.T) {
			if _, got := ask(t, tab, tt.name, tt.qtype, false); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

// TestFallthrough: names that do not exist are left to the next step, and so are empty non-terminals, as
// in CoreDNS; an alias of such a name leads out of the zone.
func TestFallthrough(t *testing.T) {
	tab := table(t, shapes, "fallthrough")
	for name, want := range map[string]authority.Outcome{
		"no.z.test.": authority.NotMine, "_tcp.z.test.": authority.NotMine, "gone.z.test.": authority.Leads,
		"mail.z.test.": authority.Answered, "x.sub.z.test.": authority.Answered,
	} {
		if got, text := ask(t, tab, name, dns.TypeA, false); got != want {
			t.Errorf("%s: outcome %d, want %d: %s", name, got, want, text)
		}
	}
	tab = table(t, shapes, "fallthrough wild.z.test")
	for name, want := range map[string]authority.Outcome{"no.z.test.": authority.Answered, "x.host.wild.z.test.": authority.NotMine} {
		if got, text := ask(t, tab, name, dns.TypeA, false); got != want {
			t.Errorf("%s: outcome %d, want %d: %s", name, got, want, text)
		}
	}
	if !tab.FallsThrough() || table(t, shapes).FallsThrough() {
		t.Error("the table doesn't know whether names fall through")
	}
}

// TestBroken: a file that is no zone is refused with its reason.
func TestBroken(t *testing.T) {
	const apex = "@ 60 SOA ns host 1 2 3 4 5\n"
	for text, want := range map[string]string{
		"@ 60 NS ns\n": "no SOA record", "www 60 SOA ns host 1 2 3 4 5\n": "another name", apex + "a 60 CH A 192.0.2.1\n": "class", "@ 60 SOA ns\n": "line: 1",
		apex + "@ 60 NSEC3PARAM 1 0 1 -\n": "NSEC3", apex + "$INCLUDE none\n": "none",
		apex + "$INCLUDE db\n": "too deeply", apex + strings.Repeat("a", 64) + " 60 A 192.0.2.1\n": "line: 2",
	} {
		_, err := newTable(t, text, nil)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "z.test.") {
			t.Errorf("%.40q: %v, want an error with the zone and %q", text, err, want)
		}
	}
}

// TestReload: another serial replaces the zone; the same one, or an error, leaves it.
func TestReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged testlog.Buffer
		path := filepath.Join(t.TempDir(), "db")
		version := time.Now()
		write := func(serial int, more string) {
			text := fmt.Sprintf("@ 60 SOA ns host %d 2 3 4 5\nwww 60 A 192.0.2.%d\n%s", serial, serial, more)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			version = version.Add(time.Second)
			if err := os.Chtimes(path, version, version); err != nil {
				t.Fatal(err)
			}
		}
		tab, err := zonefile.New(directive(t, path, "reload 10s"), zonefile.Options{Logger: slog.New(slog.NewTextHandler(&logged, nil))})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { tab.Run(ctx); close(ended) }()
		for _, step := range []struct {
			change func()
			want   string
			log    string
		}{
			{func() {}, "SERVFAIL", ""},
			{func() { write(1, "") }, "192.0.2.1", "zone file loaded"},
			{func() { write(2, "") }, "192.0.2.2", "serial=2"},
			{func() { write(2, "a 60 TXT b\n") }, "192.0.2.2", "has not"},
			{func() { write(3, "a 60 A b\n") }, "192.0.2.2", "can't read the zone file"},
			{func() { _ = os.Remove(path) }, "192.0.2.2", "can't open the zone file"},
			{func() { write(4, "") }, "192.0.2.4", "serial=4"},
		} {
			before := len(logged.String())
			step.change()
			time.Sleep(30 * time.Second)
			synctest.Wait()
			lines := logged.String()[before:]
			if _, got := ask(t, tab, "www.z.test.", dns.TypeA, false); !strings.Contains(got, step.want) || !strings.Contains(lines, step.log) || strings.Count(lines, "\n") > 1 {
				t.Errorf("the answer is %s, want %s; the log has %q, want one line with %q", got, step.want, lines, step.log)
			}
		}
		cancel()
		<-ended
	})
}

// TestInclude: relative names of included files are in the directory of the file that includes them.
func TestInclude(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"db": "@ 60 SOA ns host 1 2 3 4 5\n$INCLUDE more/a\n", "more/a": "$INCLUDE b deep\na 60 A 192.0.2.1\n", "more/b": "b 60 A 192.0.2.2\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tab, err := zonefile.New(directive(t, filepath.Join(dir, "db")), zonefile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, name := range []string{"a.z.test.", "b.deep.z.test."} {
		_, text := ask(t, tab, name, dns.TypeA, false)
		got = append(got, text)
	}
	if diff := cmp.Diff([]string{"NOERROR aa | a.z.test. 60 A 192.0.2.1", "NOERROR aa | b.deep.z.test. 60 A 192.0.2.2"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestLarge: a zone of 10,000 names is small, and each name is found.
func TestLarge(t *testing.T) {
	tab := table(t, "@ 60 SOA ns host 1 2 3 4 5\n$GENERATE 0-9999 h$ 60 A 192.0.2.1\n$GENERATE 0-9 sub$ 60 NS ns.sub$\n$GENERATE 0-9 ns.sub$ 60 A 192.0.2.2\n")
	if n := tab.Records(); n != 10021 {
		t.Errorf("%d records", n)
	}
	if size := tab.Size(); size > 1<<20 {
		t.Errorf("the zone takes %d bytes", size)
	}
	for i := range 10000 {
		if _, got := ask(t, tab, fmt.Sprintf("h%d.z.test.", i), dns.TypeA, false); !strings.Contains(got, "192.0.2.1") {
			t.Fatal(got)
		}
	}
}

// TestAllocPin: answers of each kind are made without allocation.
func TestAllocPin(t *testing.T) {
	race.SkipSequential(t)
	tab := table(t, shapes)
	for _, name := range []string{"www.z.test.", "x.wild.z.test.", "no.z.test.", "deep.sub.z.test.", "a.old.z.test.", "one.z.test.", "other.test."} {
		packet, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
		if err != nil {
			t.Fatal(err)
		}
		var q wire.Query
		q.Parse(packet)
		var r wire.Reply
		buf := make([]byte, 2048)
		if n := testing.AllocsPerRun(100, func() {
			r.Start(buf, &q)
			tab.Answer(&q, &r)
		}); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
