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

		{"debug", "debug", &Switch{}},
		{"pprof", "pprof", &Pprof{Addr: "localhost:6053"}},
		{"pprof", "pprof :1234 {\nblock\n}", &Pprof{Addr: ":1234", BlockRate: 1}},
		{"pprof", "pprof {\nblock 20\n}", &Pprof{Addr: "localhost:6053", BlockRate: 20}},

		{"trace", "trace otlp 192.0.2.9", &Trace{Endpoint: "http://192.0.2.9:4318/v1/traces", Service: "nodens", Every: 1}},
		{"trace", "trace OTLP [2001:db8::1]", &Trace{Endpoint: "http://[2001:db8::1]:4318/v1/traces", Service: "nodens", Every: 1}},
		{"trace", "trace otlp a.test:80", &Trace{Endpoint: "http://a.test:80/v1/traces", Service: "nodens", Every: 1}},
		{"trace", "trace otlp https://a.test/ {\nslow 200ms\n}", &Trace{Endpoint: "https://a.test/v1/traces", Service: "nodens", Slow: 200 * time.Millisecond}},
		{"trace", "trace otlp http://a.test:1/x {\nslow 1s\nevery 100\nservice dns\n}", &Trace{Endpoint: "http://a.test:1/x", Service: "dns", Every: 100, Slow: time.Second}},
		{"trace", "trace otlp a.test {\nevery 0\n}", &Trace{Endpoint: "http://a.test:4318/v1/traces", Service: "nodens"}},
		{"trace", "trace", &Trace{Service: "nodens", Every: 1}},
		{"trace", "trace http://a.test:9411/api {\nevery 7\nclient_server\nzipkin_max_backlog_size 0\nzipkin_max_batch_size 5\nzipkin_max_batch_interval 3s\n}", &Trace{Service: "nodens", Every: 7}},
		{"trace", "trace Datadog a.test:8126 {\ndatadog_analytics_rate\ndatadog_analytics_rate 1\nclient_server f\n}", &Trace{Service: "nodens", Every: 1}},

		{"dnstap", "dnstap /tmp/s", tap(func(*Dnstap) {})},
		{"dnstap", "dnstap unix:///tmp/s full 2 3", tap(func(x *Dnstap) { x.Full, x.WriteBuffer, x.Queue = true, 2<<20, 30000 })},
		{"dnstap", "dnstap tcp://127.0.0.1:6000 no 1024 4096", tap(func(x *Dnstap) {
			x.Network, x.Address, x.WriteBuffer, x.Queue = "tcp", "127.0.0.1:6000", 1<<30, 40960000
		})},
		{"dnstap", "dnstap tls://tap.test:6000 full {\nskipverify\nidentity me\nversion v1\nextra \"{name} x\"\n}", tap(func(x *Dnstap) {
			x.Network, x.Address, x.Full, x.SkipVerify = "tls", "tap.test:6000", true, true
			x.Identity, x.Version, x.Extra = "me", "v1", "{name} x"
		})},
		{"dnstap", "dnstap listen tcp://:6000 full 1 2 {\nskipverify\n}", tap(func(x *Dnstap) {
			x.Listen, x.Network, x.Address, x.Full, x.Queue, x.SkipVerify = true, "tcp", ":6000", true, 20000, true
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
	wantFaults(t, map[string]string{
		"log a..b \"{name}\"":                            `log: "a..b" is not a zone`,
		strings.Repeat("log a.test\n", 102):              "log: a block has more than 100 logs",
		"log {\nsample 0\n}":                             "log sample: 0 is out of range; allowed: 1 to 1000000",
		"log {\nsample 1.5\n}":                           `log sample: "1.5" is not a whole number`,
		"log {\nsample\n}":                               `log: an argument is missing after "sample"; write: sample N`,
		"log {\nslow 0s\n}":                              "log slow: 0s is out of range; allowed: 1ms to 1m0s",
		"log {\nslow x\n}":                               `log slow: "x" is not a duration such as 500ms`,
		"log {\naggregate 500ms\n}":                      "log aggregate: 500ms is out of range; allowed: 1s to 1h0m0s",
		"log {\nsampel 5\n}":                             `log: unknown option "sampel" (did you mean "sample"?)`,
		"debug on":                                       `debug: "on" is one argument too many after "debug"; write: debug`,
		"debug {\nx\n}":                                  `debug: unknown option "x": debug takes no options`,
		"pprof 127.0.0.1":                                `pprof: "127.0.0.1" is not an address with a port`,
		"pprof :1 :2":                                    `pprof: ":2" is one argument too many`,
		"pprof {\nblock x\n}":                            `pprof block: "x" is not a whole number`,
		"pprof {\nblock 1 2\n}":                          `pprof: "2" is one argument too many after "block"`,
		"pprof\npprof :1":                                `pprof: "pprof" is in the block twice`,
		"errors {\nconsolidate 5m\n}":                    `errors: an argument is missing after "consolidate"; write: ` + consolidateUsage,
		"errors {\nconsolidate x y\n}":                   `errors consolidate: "x" is not a duration`,
		"errors {\nconsolidate 1m (\n}":                  "errors consolidate: error parsing regexp",
		"errors {\nconsolidate 1m x warn\n}":             `errors consolidate: unknown option "warn"`,
		"errors {\nconsolidate 1m x show_first error\n}": "errors consolidate: the level may be given once, before show_first",
		"errors {\nconsolidate 1m " + strings.Repeat("x", 10001) + "\n}": "errors consolidate: the regular expression has 10001 bytes; allowed: up to 10000",
		"errors {\n" + strings.Repeat("consolidate 1m x\n", 101) + "}":   "errors consolidate: there are more than 100 patterns",
		"trace otlp":                                                  "trace: otlp needs an endpoint; write: trace otlp http://HOST:4318",
		"trace a b c":                                                 `trace: "c" is one argument too many`,
		"trace jaeger a.test":                                         `trace: unknown endpoint type "jaeger"; allowed: datadog, otlp, zipkin`,
		"trace otlp grpc://a.test:4317":                               `trace: "grpc://a.test:4317" is neither an http:// nor an https:// URL`,
		"trace otlp http://:1":                                        `trace: "http://:1" is not a URL`,
		"trace otlp http://a.test:x":                                  `trace: "http://a.test:x" is not a URL`,
		"trace otlp http://me:secret@a.test":                          "has more than a host, a port and a path",
		"trace otlp a.test {\nevery -1\n}":                            "trace every: -1 is out of range",
		"trace {\nclient_server maybe\n}":                             `trace client_server: unknown value "maybe"; allowed: false, true`,
		"trace {\ndatadog_analytics_rate 1.1\n}":                      `trace datadog_analytics_rate: "1.1" is not a rate from 0 to 1`,
		"trace {\ndatadog_analytics_rate NaN\n}":                      `"NaN" is not a rate`,
		"trace {\nzipkin_max_batch_size\n}":                           `trace: an argument is missing after "zipkin_max_batch_size"`,
		"trace {\nzipkin_max_batch_interval 1\n}":                     `trace zipkin_max_batch_interval: "1" is not a duration`,
		"trace {\nevry 2\n}":                                          `trace: unknown option "evry" (did you mean "every"?)`,
		"trace\ntrace otlp c":                                         `trace: "trace" is in the block twice`,
		"dnstap":                                                      `dnstap: an argument is missing after "dnstap"`,
		"dnstap listen":                                               `dnstap: an argument is missing after "dnstap"; write: dnstap [listen] ENDPOINT`,
		"dnstap listen /s full 1 1 1":                                 `dnstap: "1" is one argument too many`,
		"dnstap listen tcp://:":                                       `dnstap: ":" is not HOST:PORT; write tcp://HOST:PORT`,
		"dnstap listen tls://:6000":                                   "dnstap: tls:// needs a certificate; add the option `tls CERT KEY [CA]`",
		"dnstap listen tcp://:6000 {\ntls a b\n}":                     "dnstap: connections to tcp://:6000 are not encrypted; write tls://HOST:PORT",
		"dnstap listen tls://:6000 {\ntls a b\n}":                     "dnstap: there is no file a; mount the Secret that it is in",
		"dnstap listen tls://:6000 {\ntls a\n}":                       `dnstap: an argument is missing after "tls"`,
		"dnstap unix://":                                              "dnstap: the path of the socket is empty",
		"dnstap tcp://127.0.0.1":                                      `dnstap: "127.0.0.1" is not HOST:PORT; write tcp://HOST:PORT`,
		"dnstap http://a:1":                                           `dnstap: unknown scheme "http://a:1"; allowed: tcp, tls, unix`,
		"dnstap /s full 0":                                            "dnstap: 0 is out of range; allowed: 1 to 1024",
		"dnstap /s full 1 4097":                                       "dnstap: 4097 is out of range; allowed: 1 to 4096",
		"dnstap /s {\ntls a b\n}":                                     `dnstap: only a listening dnstap has certificates of its own; take the line out`,
		"dnstap listen /s\n}\na.test {\ndnstap listen unix:///s full": "listen unix:///s has other options in the block at Corefile:1; write the same ones, or choose another address",
		strings.Repeat("dnstap /s\n", 9):                              "dnstap: a block has more than 8 dnstaps",
	})
}

// TestTraceWarning: the forms of CoreDNS, which export nothing, have one warning with the remedy.
func TestTraceWarning(t *testing.T) {
	for text, want := range map[string]int{"trace": 1, "trace zipkin a.test": 1, "trace a.test\n}\na.test {\ntrace datadog b.test": 2, "trace otlp a.test": 0} {
		c := mustParse(t, ". {\n"+text+"\n}\n")
		if len(c.Warnings) != want {
			t.Errorf("%q: warnings %q, want %d", text, c.Warnings, want)
		}
		for _, w := range c.Warnings {
			if !strings.Contains(w, "trace: nodens has no exporter for zipkin and datadog") || !strings.Contains(w, "write `trace otlp http://HOST:4318`") {
				t.Errorf("%q: %s", text, w)
			}
		}
	}
}
