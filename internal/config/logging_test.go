// These tests use consolidateUsage, which is not exported.

package config

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestLoggingDirectives: the directives that say what is told of queries, and to whom.
func TestLoggingDirectives(t *testing.T) {
	tap := func(edit func(x *Dnstap)) *Dnstap {
		x := &Dnstap{Network: "unix", Address: "/tmp/s", WriteBuffer: 1 << 20, Queue: 10000}
		edit(x)
		return x
	}
	for _, tt := range []struct {
		directive, text string
		want            any
	}{
		{"log", `log "{name}"`, &Log{Format: "{name}"}},
		{"log", `log . "{remote} {name}"`, &Log{Format: "{remote} {name}"}},
		{"log", `log a.test "x {common} {combined}"`, &Log{Names: names(t, "a.test"), Format: "x " + CommonLogFormat + " " + CommonLogFormat + ` "{>opcode}"`}},
		{"log", "log a.test {\nclass error\n}\nlog b.test \"{name}\" {\nclass denial success\n}\nlog", &Log{
			Names: names(t, "a.test"), Classes: []string{"error"},
			Next: &Log{Names: names(t, "b.test"), Classes: []string{"success", "denial"}, Format: "{name}", Next: &Log{}},
		}},

		{"log", "log {\nsample 100\nslow 200ms\naggregate 60s\n}", &Log{Sample: 100, Slow: 200 * time.Millisecond, Aggregate: time.Minute}},

		{"debug", "debug", &Debug{}},
		{"pprof", "pprof", &Pprof{Addr: "localhost:6053"}},
		{"pprof", "pprof :1234 {\nblock\n}", &Pprof{Addr: ":1234", BlockRate: 1}},
		{"pprof", "pprof {\nblock 20\n}", &Pprof{Addr: "localhost:6053", BlockRate: 20}},

		{"dnstap", "dnstap /tmp/s", tap(func(*Dnstap) {})},
		{"dnstap", "dnstap unix:///tmp/s full 2 3", tap(func(x *Dnstap) { x.Full, x.WriteBuffer, x.Queue = true, 2<<20, 30000 })},
		{"dnstap", "dnstap tcp://127.0.0.1:6000 no 1024 4096", tap(func(x *Dnstap) {
			x.Network, x.Address, x.WriteBuffer, x.Queue = "tcp", "127.0.0.1:6000", 1<<30, 40960000
		})},
		{"dnstap", "dnstap tls://tap.test:6000 full {\nskipverify\nidentity me\nversion v1\nextra \"{name} x\"\n}", tap(func(x *Dnstap) {
			x.Network, x.Address, x.Full, x.SkipVerify = "tls", "tap.test:6000", true, true
			x.Identity, x.Version, x.Extra = "me", "v1", "{name} x"
		})},
		{"dnstap", "dnstap /tmp/s\ndnstap /tmp/t full", tap(func(x *Dnstap) {
			x.Next = tap(func(x *Dnstap) { x.Address, x.Full = "/tmp/t", true })
		})},
	} {
		t.Run(tt.text, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, one(t, tt.directive, tt.text), equal); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestEveryQuery: which logs must see the queries that the kernel could answer.
func TestEveryQuery(t *testing.T) {
	for options, want := range map[string]bool{
		"": true, "class all": true, "class denial": true, "class success error": true, "class error": false,
		"sample 1": true, "sample 2": false, "slow 1s": false, "aggregate 1m": true,
		"slow 1s\nsample 1": true, "slow 1s\nsample 2": false, "slow 1s\naggregate 1m": true, "sample 2\naggregate 1m": false,
	} {
		if got := one(t, "log", "log {\n"+options+"\n}").(*Log).EveryQuery(); got != want {
			t.Errorf("%q: %v", options, got)
		}
	}
}

// TestConsolidate: which errors are logged together, and how.
func TestConsolidate(t *testing.T) {
	text := "errors stdout {\nconsolidate 5m \".* i/o timeout$\" warning show_first\nconsolidate 30s \"^Failed to .+\"\nconsolidate 1ms x show_first\nconsolidate 1h y debug\nstacktrace\n}"
	want := []Consolidation{
		{5 * time.Minute, regexp.MustCompile(".* i/o timeout$"), "warning", true},
		{30 * time.Second, regexp.MustCompile("^Failed to .+"), "error", false},
		{time.Millisecond, regexp.MustCompile("x"), "error", true},
		{time.Hour, regexp.MustCompile("y"), "debug", false},
	}
	got := one(t, "errors", text).(*Errors).Consolidate
	same := cmp.Comparer(func(a, b *regexp.Regexp) bool { return a.String() == b.String() })
	if diff := cmp.Diff(want, got, same); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestLoggingDirectiveErrors: what is wrong in them, and what to do.
func TestLoggingDirectiveErrors(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"log a..b \"{name}\"", `log: "a..b" is not a zone`},
		{strings.Repeat("log a.test\n", 102), "log: a block has more than 100 logs"},
		{"log {\nsample 0\n}", "log sample: 0 is out of range; allowed: 1 to 1000000"},
		{"log {\nsample 1.5\n}", `log sample: "1.5" is not a whole number`},
		{"log {\nsample\n}", `log: an argument is missing after "sample"; write: sample N`},
		{"log {\nslow 0s\n}", "log slow: 0s is out of range; allowed: 1ms to 1m0s"},
		{"log {\nslow x\n}", `log slow: "x" is not a duration such as 500ms`},
		{"log {\naggregate 500ms\n}", "log aggregate: 500ms is out of range; allowed: 1s to 1h0m0s"},
		{"log {\nsampel 5\n}", `log: unknown option "sampel" (did you mean "sample"?)`},
		{"debug on", `debug: "on" is one argument too many after "debug"; write: debug`},
		{"debug {\nx\n}", `debug: unknown option "x": debug takes no options`},
		{"pprof 127.0.0.1", `pprof: "127.0.0.1" is not an address with a port`},
		{"pprof :1 :2", `pprof: ":2" is one argument too many`},
		{"pprof {\nblock x\n}", `pprof block: "x" is not a whole number`},
		{"pprof {\nblock 1 2\n}", `pprof: "2" is one argument too many after "block"`},
		{"pprof\npprof", `pprof: "pprof" is in the block twice`},
		{"errors {\nconsolidate 5m\n}", `errors: an argument is missing after "consolidate"; write: ` + consolidateUsage},
		{"errors {\nconsolidate x y\n}", `errors consolidate: "x" is not a duration`},
		{"errors {\nconsolidate 1m (\n}", "errors consolidate: error parsing regexp"},
		{"errors {\nconsolidate 1m x warn\n}", `errors consolidate: unknown option "warn"`},
		{"errors {\nconsolidate 1m x show_first error\n}", "errors consolidate: the level may be given once, before show_first"},
		{"errors {\nconsolidate 1m " + strings.Repeat("x", 10001) + "\n}", "errors consolidate: the regular expression has 10001 bytes; allowed: up to 10000"},
		{"errors {\n" + strings.Repeat("consolidate 1m x\n", 101) + "}", "errors consolidate: there are more than 100 patterns"},
		{"dnstap", `dnstap: an argument is missing after "dnstap"`},
		{"dnstap listen /s", "dnstap: CoreDNS has dnstap listen, this version of nodens doesn't"},
		{"dnstap unix://", "dnstap: the path of the socket is empty"},
		{"dnstap tcp://127.0.0.1", `dnstap: "127.0.0.1" is not HOST:PORT; write tcp://HOST:PORT`},
		{"dnstap http://a:1", `dnstap: unknown scheme "http://a:1"; allowed: tcp, tls, unix`},
		{"dnstap /s full 0", "dnstap: 0 is out of range; allowed: 1 to 1024"},
		{"dnstap /s full 1 4097", "dnstap: 4097 is out of range; allowed: 1 to 4096"},
		{"dnstap /s {\ntls a b\n}", `dnstap: CoreDNS has the option "tls"`},
		{strings.Repeat("dnstap /s\n", 9), "dnstap: a block has more than 8 dnstaps"},
	} {
		t.Run(tt.want, func(t *testing.T) {
			_, err := parse(t, ". {\n"+tt.text+"\n}\n")
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%q: %v, want %q", tt.text, err, tt.want)
			}
		})
	}
}
