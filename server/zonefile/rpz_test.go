package zonefile_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodens-dns/nodens/internal/authority"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/zonefile"
	"github.com/nodens-dns/nodens/test/race"
	"github.com/nodens-dns/nodens/test/testlog"
)

// everyone is a client whose rules are those for all clients.
type everyone struct{}

func (everyone) Namespace() (string, bool) { return "", true }

// policies are the response policy zones of these directives, and what is logged about them.
type policies struct {
	*zonefile.Policies
	log     testlog.Buffer
	changes int
}

func openPolicies(tb testing.TB, primaries *zonefile.Primaries, directives string) (*policies, error) {
	tb.Helper()
	c, err := config.Parse(config.Source{Text: []byte(". {\n" + directives + "\n}\n")})
	if err != nil {
		tb.Fatal(err)
	}
	p := new(policies)
	p.Policies, err = zonefile.NewPolicies(c.Blocks[0].RPZ, primaries, zonefile.Options{Logger: slog.New(slog.NewTextHandler(&p.log, nil))}, func() { p.changes++ })
	return p, err
}

// fromRules returns the policies of one zone with these rules.
func fromRules(tb testing.TB, rules string) *policies {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "db")
	if err := os.WriteFile(path, []byte("$TTL 60\n@ SOA ns host 1 2 3 4 5\n"+rules), 0o600); err != nil {
		tb.Fatal(err)
	}
	p, err := openPolicies(tb, nil, "rpz z.test {\nfile "+path+"\n}")
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// action is what the rules say of a name.
func (p *policies) action(tb testing.TB, text string) string {
	tb.Helper()
	name, err := wire.ParseName(text)
	if err != nil {
		tb.Fatal(err)
	}
	r, _ := p.NameRule([]byte(name), everyone{})
	return actionOf(r)
}

// actionOf returns the action of r, "" for no rule.
func actionOf(r *authority.PolicyRule) string {
	if r == nil {
		return ""
	}
	return r.Action.String()
}

func (p *policies) rules() (st zonefile.PolicyStats) {
	p.Each(func(_ wire.Name, s zonefile.PolicyStats, _ func(func(string, string, uint64))) { st = s })
	return st
}

// TestPolicyReload: a file is read when it changes, whatever its serial; one that is missing or invalid leaves the former rules.
func TestPolicyReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "db")
		version := time.Now()
		write := func(rules string) {
			if err := os.WriteFile(path, []byte("$TTL 60\n@ SOA ns host 1 2 3 4 5\n"+rules), 0o600); err != nil {
				t.Fatal(err)
			}
			version = version.Add(time.Second)
			if err := os.Chtimes(path, version, version); err != nil {
				t.Fatal(err)
			}
		}
		p, err := openPolicies(t, nil, "rpz z.test {\nfile "+path+"\nreload 10s\n}")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { p.Run(ctx); close(ended) }()
		for _, step := range []struct {
			change    func()
			want, log string
			changed   bool
		}{
			{func() {}, "", "", false},
			{func() { write("a.test CNAME .\n") }, "nxdomain", "zone file loaded", true},
			{func() { write("a.test CNAME *.\n") }, "nodata", "zone file loaded", true},
			{func() { write("a.test CNAME") }, "nodata", "can't read the zone file; keeping the last state", false},
			{func() { _ = os.Remove(path) }, "nodata", "can't open the zone file; keeping the last state", false},
			{func() { write("a.test CNAME rpz-drop.\nb.test CNAME rpz-x.\nc.test.rpz-nsdname CNAME .\n") }, "drop", "rules=2", true},
		} {
			before, changes := len(p.log.String()), p.changes
			step.change()
			time.Sleep(30 * time.Second)
			synctest.Wait()
			if got, lines := p.action(t, "a.test"), p.log.String()[before:]; got != step.want || !strings.Contains(lines, step.log) || p.changes > changes != step.changed {
				t.Errorf("the action is %q, want %q; %d changes; the log has %q, want %q", got, step.want, p.changes-changes, lines, step.log)
			}
		}
		cancel()
		<-ended
	})
}

// TestPolicyTransfer: rules come from a primary server, follow its serial, and stay when the zone has expired.
func TestPolicyTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, shared := &primary{down: true}, zonefile.NewPrimaries()
		shared.Dial = server.dial
		p, err := openPolicies(t, shared, "rpz z.test {\ntransfer from 192.0.2.1\n}")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { p.Run(ctx); close(ended) }()
		for _, step := range []struct {
			name   string
			change func()
			after  time.Duration
			want   string
		}{
			{"no server", func() {}, time.Second, ""},
			{"the zone is there", func() {
				server.set(t, 1, times, "A.test CNAME .\n")
				server.with(func() { server.down = false })
			}, 11 * time.Second, "nxdomain"},
			{"after refresh", func() { server.set(t, 2, times, "a.test CNAME *.\n") }, 106 * time.Second, "nodata"},
			{"NOTIFY", func() {
				server.set(t, 3, times, "a.test CNAME Rpz-Passthru.\n")
				if got := p.Notify([]byte("\x01z\x04test\x00"), netip.MustParseAddr("192.0.2.1")); got != authority.Notified {
					t.Errorf("NOTIFY: %v", got)
				}
			}, 2 * time.Second, "passthru"},
			{"expired", func() { server.with(func() { server.down = true }) }, 1000 * time.Second, "passthru"},
			{"it is back", func() {
				server.set(t, 4, times, "a.test A 192.0.2.1\n")
				server.with(func() { server.down = false })
			}, 26 * time.Second, "local_data"},
		} {
			step.change()
			time.Sleep(step.after)
			synctest.Wait()
			if got := p.action(t, "a.test"); got != step.want || p.Settled() != true {
				t.Errorf("%s: %q, want %q; the log has %s", step.name, got, step.want, p.log.String())
			}
		}
		if got := p.Notify([]byte("\x01y\x04test\x00"), netip.MustParseAddr("192.0.2.1")); got != authority.NotSecondary {
			t.Errorf("NOTIFY for another zone: %v", got)
		}
		cancel()
		<-ended
	})
}

// TestPolicyNames compares look-ups of random names with the definition: the name itself, else the longest wildcard above it.
func TestPolicyNames(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	name := func() string {
		labels := make([]string, 1+r.IntN(4))
		for i := range labels {
			labels[i] = []string{"a", "b", "aa", "*"}[r.IntN(4)]
		}
		return strings.Join(labels, ".") + "."
	}
	actions := map[string]string{".": "nxdomain", "*.": "nodata", "rpz-passthru.": "passthru", "rpz-drop.": "drop", "rpz-tcp-only.": "tcp_only", "x.": "redirect", "rpz-other.": ""}
	targets := []string{".", "*.", "rpz-passthru.", "rpz-drop.", "rpz-tcp-only.", "x.", "rpz-other."}
	for range 50 {
		rules, text := map[string]string{}, ""
		for range r.IntN(12) {
			if n := name(); rules[n] == "" {
				rules[n] = targets[r.IntN(len(targets))]
				text += n + "z.test. CNAME " + rules[n] + "\n"
			}
		}
		p := fromRules(t, text)
		for range 200 {
			n := name()
			target, found := rules[n]
			for rest := n; !found && rest != ""; {
				_, rest, _ = strings.Cut(rest, ".")
				target, found = rules["*."+rest]
			}
			if got, want := p.action(t, n), actions[target]; got != want {
				t.Fatalf("%s: %q, want %q, with\n%s", n, got, want, text)
			}
		}
	}
	p := fromRules(t, "*.z.test. CNAME .\n")
	for _, n := range []string{"a.", "a.b.", strings.Repeat("a.", 127), strings.Repeat(strings.Repeat("a", 62)+".", 4)} {
		if got := p.action(t, n); got != "nxdomain" {
			t.Errorf("%s: %q", n, got)
		}
	}
	if got := p.action(t, "."); got != "" {
		t.Errorf("the root: %q", got)
	}
}

// TestPolicyAddrs: the longest prefix decides, for IPv4 and for IPv6.
func TestPolicyAddrs(t *testing.T) {
	p := fromRules(t, `8.0.0.0.10.rpz-ip CNAME .
16.0.0.1.10.rpz-ip CNAME *.
32.3.2.1.10.rpz-ip CNAME rpz-passthru.
32.zz.db8.2001.rpz-ip CNAME .
128.1.zz.db8.2001.rpz-ip CNAME rpz-drop.
128.8.7.6.5.4.3.2.1.rpz-ip CNAME *.
33.0.0.0.10.rpz-ip CNAME .
24.1.0.0.10.rpz-ip CNAME .
24.x.0.0.10.rpz-ip CNAME .
24.rpz-ip CNAME .
rpz-ip CNAME .
`)
	for addr, want := range map[string]string{
		"10.0.0.1": "nxdomain", "10.1.0.1": "nodata", "10.1.2.3": "passthru", "::ffff:10.1.2.3": "passthru", "11.0.0.1": "", "9.255.255.255": "", "::a00:1": "",
		"2001:db8::2": "nxdomain", "2001:db8::1": "drop", "2001:db9::1": "", "1:2:3:4:5:6:7:8": "nodata", "1:2:3:4:5:6:7:9": "",
	} {
		if r, _ := p.AddrRule(netip.MustParseAddr(addr), everyone{}); actionOf(r) != want {
			t.Errorf("%s: %q, want %q", addr, actionOf(r), want)
		}
	}
	if st := p.rules(); st.Addrs != 6 || st.Ignored != 5 || st.Names != 0 {
		t.Errorf("%+v", st)
	}
}

// TestPolicyMemory: what a rule takes in memory, and that a look-up allocates nothing.
func TestPolicyMemory(t *testing.T) {
	race.SkipSequential(t)
	p := fromRules(t, "$GENERATE 1-50000 ad${0,6}.tracking${0,6}.example CNAME .\n$GENERATE 1-50000 *.ad${0,6}.tracking${0,6}.example CNAME .\n")
	st := p.rules()
	if st.Names != 100_000 {
		t.Fatalf("%+v", st)
	}
	t.Logf("%d bytes for a rule", st.Bytes/st.Names)
	if st.Bytes/st.Names > 150 {
		t.Errorf("%d bytes for each of %d rules", st.Bytes/st.Names, st.Names)
	}
	name, err := wire.ParseName("www.fine.example.")
	if err != nil {
		t.Fatal(err)
	}
	packed := []byte(name)
	if n := testing.AllocsPerRun(100, func() { p.NameRule(packed, everyone{}) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzPolicies: no rules and no name make a look-up panic, and a name that is looked up in the zone's own rules is found.
func FuzzPolicies(f *testing.F) {
	f.Add("a CNAME .\n*.b CNAME *.\n32.1.2.0.192.rpz-ip CNAME .\n", "a.b")
	f.Add("128.zz.rpz-ip CNAME .\n0.zz.rpz-ip CNAME .\n1.zz.zz.rpz-ip A 192.0.2.1\n*.rpz-ip CNAME rpz-drop.\n", "zz.rpz-ip")
	f.Add("* CNAME rpz-tcp-only.\na DNAME b\nc NS d\n", "x.a")
	dir := f.TempDir()
	var n int
	f.Fuzz(func(t *testing.T, rules, text string) {
		name, err := wire.ParseName(text)
		if err != nil || len(rules) > 1<<12 || strings.Contains(rules, "GENERATE") || strings.Contains(rules, "INCLUDE") {
			return
		}
		n++
		path := filepath.Join(dir, fmt.Sprint(n))
		if err := os.WriteFile(path, []byte("$TTL 60\n@ SOA ns host 1 2 3 4 5\n"+rules), 0o600); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(path)
		p, err := openPolicies(t, nil, "rpz z.test {\nfile "+path+"\n}")
		if err != nil {
			return
		}
		if r, _ := p.NameRule([]byte(name), everyone{}); r != nil && !strings.HasSuffix(wire.Name(r.Trigger).String(), "z.test.") {
			t.Errorf("%s: the rule is %s", text, wire.Name(r.Trigger))
		}
		p.AddrRule(netip.AddrFrom4([4]byte{192, 0, 2, 1}), everyone{})
		p.AddrRule(netip.IPv6Unspecified(), everyone{})
	})
}
