// These tests use logLevel and newLogger, which are not exported.

package app

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// TestCoreDNSFormat: the log in CoreDNS's form, one line for each record whatever is in it.
func TestCoreDNSFormat(t *testing.T) {
	var out bytes.Buffer
	level := new(slog.LevelVar)
	log, err := newLogger(options.LogCoreDNS, &out, level)
	check.NoError(t, err)
	log.Debug("not yet")
	level.Set(slog.LevelDebug)
	log.Debug("now")
	log.With("part", "upstream").Warn("two\nlines", "n", 1, "err", errors.New(`a "b"`), "empty", "")
	log.Error("x", "y", "a=b")
	log.Info(`127.0.0.1:1 - 2 "A IN x. udp 33 false 512" NOERROR qr 49 0.1s`)
	want := `[DEBUG] now
[WARNING] two\nlines part=upstream n=1 err="a \"b\"" empty=""
[ERROR] x y="a=b"
[INFO] 127.0.0.1:1 - 2 "A IN x. udp 33 false 512" NOERROR qr 49 0.1s
`
	if out.String() != want {
		t.Errorf("log:\n%s, want:\n%s", &out, want)
	}
	if _, err := newLogger("xml", &out, level); err == nil || !strings.Contains(err.Error(), "give text, json or coredns") {
		t.Errorf("xml: %v", err)
	}
}

// TestLogFormats: what an agent writes of a query and of one that fails, by the form of
// its log.
func TestLogFormats(t *testing.T) {
	const client = `127\.0\.0\.1`
	for _, c := range []struct{ format, block, query, failed string }{
		{"text", "log", `level=INFO msg=query plugin=log zone=\. client_ip=` + client + ` client_port=\d+ qname=by\.hand\. qtype=A .* rcode=NOERROR`,
			`level=ERROR msg="query failed" plugin=errors zone=\. qname=none\.test\. qtype=A client=` + client + `:\d+ err=`},
		{"text", `log . "{name} {local}"`, `level=INFO msg="by\.hand\. ` + client + `" plugin=log`, `msg="query failed"`},
		{"json", "log", `"msg":"` + client + `:\d+ - \d+ \\"A IN by\.hand\. udp .*","plugin":"log","zone":"\.","client_ip":"127\.0\.0\.1","client_port":\d+,"qname":"by\.hand\."`,
			`"msg":"query failed","plugin":"errors"`},
		{"coredns", "log", `(?m)^\[INFO\] ` + client + `:\d+ - \d+ "A IN by\.hand\. udp \d+ false \d+" NOERROR qr,aa,rd,ra \d+ 0\.\d+s$`,
			`(?m)^\[ERROR\] plugin/errors: 2 none\.test\. A: .+$`},
		{"coredns", `log . "{name}"`, `(?m)^\[INFO\] by\.hand\.$`, `(?m)^\[INFO\] none\.test\.$`},
	} {
		t.Run(c.format+" "+c.block, func(t *testing.T) {
			port := peer.Ports(t, 1)[0]
			l := lookedAt(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n errors\n %s\n hosts {\n  192.0.2.1 by.hand\n  fallthrough\n }\n forward . 127.0.0.1:1\n}\n", port, c.block), func(o *options.Agent) { o.LogFormat = c.format })
			_ = agenttest.Ask(t, port, "by.hand.")
			_ = agenttest.Ask(t, port, "none.test.")
			for _, want := range []string{c.query, c.failed} {
				if !regexp.MustCompile(want).MatchString(l.log.String()) {
					t.Errorf("no %s in\n%s", want, l.log)
				}
			}
		})
	}
}

// TestProcessSettings: what is one for the whole process comes with the configuration and goes
// with it.
func TestProcessSettings(t *testing.T) {
	p := peer.Ports(t, 2)
	block := func(more string) string {
		return fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts\n %s\n}\n", p[0], more)
	}
	profiled := fmt.Sprintf("debug\n pprof 127.0.0.1:%d {\n  block 7\n }", p[1])
	l := lookedAt(t, block(profiled))
	if l.logLevel.Level() != slog.LevelDebug {
		t.Error("debug logs nothing more")
	}
	if code, text := agenttest.Get(t, p[1], "/debug/pprof/"); code != http.StatusOK || !strings.Contains(text, "goroutine") {
		t.Errorf("profiles: %d %s", code, text)
	}
	if code, text := agenttest.Get(t, p[1], "/debug/pprof/goroutine?debug=1"); code != http.StatusOK || !strings.Contains(text, "goroutine profile") {
		t.Errorf("a profile: %d %s", code, text)
	}
	for _, path := range []string{"/debug/pprof/profile?seconds=301", "/debug/pprof/trace?seconds=1e9", "/debug/pprof/profile?seconds=NaN"} {
		if code, text := agenttest.Get(t, p[1], path); code != http.StatusBadRequest || !strings.Contains(text, "give at most 300") {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	agenttest.WriteFile(t, l.conf, block(""))
	if !l.look() || l.logLevel.Level() != slog.LevelInfo {
		t.Error("without debug as much is logged as before")
	}
	if conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p[1])); err == nil {
		_ = conn.Close()
		t.Error("profiles are still served")
	}
	runtime.SetBlockProfileRate(0)
}

// TestLogLevel: lines below --log-level are left out, in every format; the debug directive logs
// all.
func TestLogLevel(t *testing.T) {
	for _, format := range []string{options.LogText, options.LogJSON, options.LogCoreDNS} {
		for _, tt := range []struct {
			level           slog.Level
			block           string
			serving, failed bool
		}{
			{slog.LevelInfo, "", true, true},
			{slog.LevelWarn, "", false, true},
			{slog.LevelError, "", false, true},
			{slog.LevelError, "debug", true, true},
		} {
			t.Run(fmt.Sprint(format, " ", tt.level, " ", tt.block), func(t *testing.T) {
				port := peer.Ports(t, 1)[0]
				l := lookedAt(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n errors\n log\n %s\n forward . 127.0.0.1:1\n}\n", port, tt.block),
					func(o *options.Agent) { o.LogFormat, o.LogLevel = format, tt.level })
				_ = agenttest.Ask(t, port, "none.test.")
				log := l.log.String()
				if got := strings.Contains(log, "ERROR"); got != tt.failed {
					t.Errorf("an ERROR line: %v, want %v; log:\n%s", got, tt.failed, log)
				}
				if got := strings.Contains(log, "INFO"); got != tt.serving {
					t.Errorf("an INFO line: %v, want %v; log:\n%s", got, tt.serving, log)
				}
			})
		}
	}
}
