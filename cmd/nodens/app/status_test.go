// These tests use agent, faultRing and exchangeCounts, which are not exported.

package app

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/baseline"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/testlog"
)

// statusOf asks for /status.
func statusOf(t *testing.T, socket string) report.Status {
	t.Helper()
	return shown[report.Status](t, socket, "/status")
}

// TestStatus: what an agent says of itself, before and after an invalid configuration.
func TestStatus(t *testing.T) {
	p := peer.Ports(t, 2)
	startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts {\n  192.0.2.1 a.test\n }\n}\n", p[1]))
	socket := filepath.Join(t.TempDir(), "a.sock")
	corefile := fmt.Sprintf(".:%d {\n bind 127.0.0.1\n cache\n forward . 127.0.0.1:%d\n}\n", p[0], p[1])
	r := startAgent(t, corefile, func(o *options.Agent) { o.AdminSocket, o.NodeName = socket, "node-1" })
	for range 4 {
		agenttest.Expect(t, p[0], "a.test.", "192.0.2.1")
	}
	s := statusOf(t, socket)
	if !s.Ready || !s.Healthy || s.SchemaVersion != 1 || s.Node != "node-1" || s.Version != "dev" || s.Config.Path != r.Conf || len(s.Config.Hash) != 128 {
		t.Errorf("the status is %+v", s)
	}
	if s.Started.IsZero() || s.ServingSince.Before(s.Started) || s.Config.Loaded.Before(s.Started) {
		t.Errorf("started %v, configured %v, serving since %v", s.Started, s.Config.Loaded, s.ServingSince)
	}
	if want := (report.FailOpen{Reason: "the agent sets up no rules"}); s.FailOpen != want || len(s.ServedBy) != 1 || s.ServedBy[0] != (report.Serving{By: report.ServedByAgent, Since: s.ServingSince}) {
		t.Errorf("fail-open %+v, served by %+v", s.FailOpen, s.ServedBy)
	}
	names := make(map[string]bool)
	for i, l := range s.Limits {
		names[l.Name] = true
		if l.Bound <= 0 || l.Share != float64(l.Used)/float64(l.Bound) || i > 0 && l.Share > s.Limits[i-1].Share {
			t.Errorf("limit %d of %+v", i, s.Limits)
		}
	}
	for _, want := range []string{"waiting queries", "TCP connections", "unsent replies", "cache", "client addresses", "queries to an upstream"} {
		if !names[want] {
			t.Errorf("no limit %q in %+v", want, s.Limits)
		}
	}
	if s.View != nil || s.Handover.Last != nil || s.Config.LastRejected != nil || s.Upstreams != (report.Counts{Total: 1}) {
		t.Errorf("view %v, hand-over %v, rejected %v, upstreams %v", s.View, s.Handover, s.Config.LastRejected, s.Upstreams)
	}
	if q := s.Rates.QueriesPerSecond * s.Rates.Seconds; q < 3.99 || q > 4.01 || s.Rates.HitRatio != 0.75 || s.Rates.P50Seconds == 0 || s.Rates.P99Seconds < s.Rates.P50Seconds {
		t.Errorf("the rates are %+v", s.Rates)
	}
	u := shown[report.Upstreams](t, socket, "/upstreams")
	if len(u.Forwards) != 1 {
		t.Fatalf("/upstreams: %+v", u)
	}
	if up := u.Forwards[0].Upstreams[0]; up.Exchanges["NOERROR"] != 1 || up.Recent.PerSecond == 0 || up.Recent.P50Seconds == 0 || up.Recent.ServfailShare != 0 {
		t.Errorf("the upstream is %+v", up)
	}

	r.Reload("nonsense {", "the old configuration stays")
	bad := statusOf(t, socket)
	if !bad.Ready || bad.Healthy || len(bad.Problems) != 1 || !bad.Config.Rejected || bad.Config.LastRejected == nil || bad.Instance != s.Instance {
		t.Errorf("with an invalid configuration the status is %+v", bad)
	}
	if n := len(bad.Faults); n == 0 || bad.Faults[n-1].Level != "error" || bad.Faults[n-1].Message != "reload: the old configuration stays" || !strings.Contains(bad.Faults[n-1].Fields, "err=") {
		t.Errorf("the faults are %+v", bad.Faults)
	}
	r.Reload(corefile+"# changed", "the new configuration is in force")
	if again := statusOf(t, socket); !again.Healthy || again.Config.Rejected || again.Config.LastRejected == nil || !again.Config.Loaded.After(s.Config.Loaded) {
		t.Errorf("after a valid configuration the status is %+v", again.Config)
	}
}

// TestJudge: what makes an agent unhealthy.
func TestJudge(t *testing.T) {
	l := lookedAt(t, fmt.Sprintf("test:%d {\n bind 127.0.0.1\n hosts\n}\n", peer.Ports(t, 1)[0]))
	l.serving.Store(true)
	for name, c := range map[string]struct {
		status report.Status
		code   string
		want   string
	}{
		"healthy":   {report.Status{Upstreams: report.Counts{Total: 2, Down: 1}, View: &report.View{AgeSeconds: 90}}, "", ""},
		"upstreams": {report.Status{Upstreams: report.Counts{Total: 2, Down: 2}}, "upstreams-down", "all upstreams are down"},
		"zones":     {report.Status{Upstreams: report.Counts{Total: 2, Down: 1}, ZonesDown: []string{"a.test."}}, "upstreams-down", "all upstreams of a.test. are down"},
		"many zones": {report.Status{Upstreams: report.Counts{Total: 2, Down: 1}, ZonesDown: []string{"a.", "b.", "c.", "d.", "e."}},
			"upstreams-down", "all upstreams of a., b., c. and 2 more zones are down"},
		"view": {report.Status{View: &report.View{AgeSeconds: 360}}, "view-stale", "no sign of life of the API server for 6m0s"},
		"config": {report.Status{Config: report.Config{Rejected: true, LastRejected: &report.Rejection{Error: "bad"}}},
			"config-invalid", "the configuration in the files is invalid: bad"},
	} {
		l.judge(&c.status)
		var got report.Problem
		for _, got = range c.status.Problems {
			if got.Severity == "" || got.Remedy == "" {
				t.Errorf("%s: %+v lacks a part", name, got)
			}
		}
		if got.Text != c.want || got.Code != c.code || len(c.status.Problems) > 1 || c.status.Healthy != (c.want == "") || !c.status.Ready {
			t.Errorf("%s: %+v, healthy %v, ready %v", name, c.status.Problems, c.status.Healthy, c.status.Ready)
		}
	}
	l.serving.Store(false)
	var s report.Status
	if l.judge(&s); s.Ready || s.Healthy || len(s.Problems) != 1 {
		t.Errorf("while it starts: %+v", s)
	}
}

// TestZonesDown: an agent of which one server answers names the zones of the others.
func TestZonesDown(t *testing.T) {
	p := peer.Ports(t, 3)
	startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts {\n  192.0.2.1 a.test\n }\n}\n", p[1]))
	socket := filepath.Join(t.TempDir(), "a.sock")
	dead := fmt.Sprintf("127.0.0.1:%d {\n  read_timeout 100ms\n  health_check 20ms\n  max_fails 1\n }\n", p[2])
	corefile := fmt.Sprintf(".:%[1]d {\n bind 127.0.0.1\n forward b.test %[3]s forward . 127.0.0.1:%[2]d\n}\nc.test:%[1]d d.test:%[1]d {\n bind 127.0.0.1\n forward . %[3]s}\n", p[0], p[1], dead)
	r := startAgent(t, corefile, func(o *options.Agent) { o.AdminSocket = socket })
	if s := statusOf(t, socket); !s.Healthy || s.ZonesDown == nil || len(s.ZonesDown) > 0 {
		t.Fatalf("at the start the status is %+v", s)
	}
	r.Await("the zones to be down", func() bool {
		for _, name := range []string{"a.b.test.", "a.c.test."} {
			agenttest.Ask(t, p[0], name)
		}
		return len(statusOf(t, socket).ZonesDown) == 3
	})
	s := statusOf(t, socket)
	want := []string{"b.test.", "c.test.", "d.test."}
	if d := cmp.Diff(want, s.ZonesDown); d != "" || s.Healthy || len(s.Problems) != 1 || s.Problems[0].Text != "all upstreams of b.test., c.test., d.test. are down" {
		t.Errorf("problems %q (-want +got)\n%s", s.Problems, d)
	}
}

// TestAdminSocketOptional: without --admin-socket, an agent that can't listen in its hand-over
// directory serves, and logs why nobody can ask it.
func TestAdminSocketOptional(t *testing.T) {
	port := peer.Ports(t, 1)[0]
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", 110))
	r := startAgent(t, fmt.Sprintf("test:%d {\n bind 127.0.0.1\n hosts {\n  192.0.2.1 a.test\n }\n}\n", port), func(o *options.Agent) {
		o.AdminSocket, o.AdminSocketOptional = filepath.Join(dir, "admin.sock"), true
	})
	agenttest.Expect(t, port, "a.test.", "192.0.2.1")
	if log := r.Log.String(); !strings.Contains(log, "no admin socket") {
		t.Errorf("the log has no reason:\n%s", log)
	}
}

// TestFaultRing: the last warnings and errors are kept, with the fields of With, and bounded.
func TestFaultRing(t *testing.T) {
	ring, out := new(faultRing), new(testlog.Buffer)
	inner := slog.New(slog.NewTextHandler(out, nil))
	log := ring.keepFaults(&agentLog{Logger: inner, queries: inner})
	if list := ring.faults(); list == nil || len(list) > 0 {
		t.Errorf("at first: %v", list)
	}
	log.Info("no fault")
	queryLogger(log).Error("a query failed")
	log.With("part", "x").Warn("a\nmessage", "err", errors.New("two words"))
	log.WithGroup("g").Error(strings.Repeat("é", maxFaultText), "long", strings.Repeat("x", 2*maxFaultText))
	list := ring.faults()
	if len(list) != 2 || list[0].Time.IsZero() {
		t.Fatalf("%d faults: %+v", len(list), list)
	}
	want := report.Fault{Time: list[0].Time, Level: "warn", Message: `a\nmessage`, Fields: `part=x err="two words"`}
	if diff := cmp.Diff(want, list[0]); diff != "" {
		t.Error(diff)
	}
	if long := list[1]; long.Level != "error" || len(long.Message) > maxFaultText+3 || len(long.Fields) > maxFaultText+3 || !utf8.ValidString(long.Message) {
		t.Errorf("a long fault has %d and %d bytes", len(long.Message), len(long.Fields))
	}
	for i := range 50 {
		log.Warn(fmt.Sprint(i))
	}
	if list = ring.faults(); len(list) != keptFaults || list[0].Message != "30" || list[keptFaults-1].Message != "49" {
		t.Errorf("then: %+v", list)
	}
	if n := strings.Count(out.String(), "\n"); n != 54 {
		t.Errorf("%d lines were logged", n)
	}
	if queryLogger(inner) != inner {
		t.Error("a logger without a ring is another one without it")
	}
}

// TestExchangesSince: counters that a reload has reset count from zero.
func TestExchangesSince(t *testing.T) {
	counts := func(servfail uint64, fast, slow uint64) exchangeCounts {
		return exchangeCounts{servfail: servfail, durations: baseline.Histogram{fast, 0, slow}}
	}
	silent := func(unanswered uint64) exchangeCounts {
		return exchangeCounts{unanswered: unanswered, durations: baseline.Histogram{6}}
	}
	for name, c := range map[string]struct {
		before, now exchangeCounts
		want        report.Exchanges
	}{
		"none":         {counts(1, 5, 5), counts(1, 5, 5), report.Exchanges{Seconds: 10}},
		"some":         {counts(1, 5, 5), counts(3, 9, 6), report.Exchanges{Seconds: 10, PerSecond: 0.5, ServfailShare: 0.4, P50Seconds: 0.00025, P99Seconds: 0.001}},
		"silent":       {silent(3), silent(7), report.Exchanges{Seconds: 10, UnansweredShare: 1}},
		"reset silent": {silent(3), silent(2), report.Exchanges{Seconds: 10, PerSecond: 0.6, UnansweredShare: 0.25, P50Seconds: 0.00025, P99Seconds: 0.00025}},
		"reset":        {counts(9, 99, 5), counts(1, 1, 3), report.Exchanges{Seconds: 10, PerSecond: 0.4, ServfailShare: 0.25, P50Seconds: 0.001, P99Seconds: 0.001}},
	} {
		if diff := cmp.Diff(c.want, c.now.since(c.before, 10)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
