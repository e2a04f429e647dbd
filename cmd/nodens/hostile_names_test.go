//go:build linux

package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"unicode"

	"github.com/nodens-dns/nodens/internal/report"
)

// TestHostileNames: names that tenants choose for their objects add no row and no column to a table, and nothing that a
// terminal obeys to any output.
func TestHostileNames(t *testing.T) {
	const hostile = "web\nnode evil\t\x1b[2J\u009b31m\u202e"
	replies := map[string]any{
		"/clients": report.Clients{By: "workload", Clients: []report.Client{{
			Kind: "pod", Namespace: hostile, WorkloadKind: hostile, Workload: hostile, Pod: hostile, QueriesPerSecond: 1, Share: 1,
			Window: report.ClientCounts{Queries: 10}, TopName: &report.TopName{Name: hostile},
		}}},
		"/names":     report.Names{Topic: "waste", Names: []report.Name{{Name: hostile}}},
		"/status":    report.Status{Healthy: true, Faults: []report.Fault{{Level: hostile, Message: hostile, Fields: hostile}}, ZonesDown: []string{hostile}},
		"/upstreams": report.Upstreams{Forwards: []report.Forward{{Zones: []string{hostile}, From: hostile, Upstreams: []report.Upstream{{To: hostile, Exchanges: map[string]uint64{hostile: 1}}}}}},
		"/tail":      report.TailLine{Query: &report.TailQuery{Namespace: hostile, Pod: hostile, Workload: hostile, Name: hostile, Error: hostile}},
	}
	socket := topAgentFunc(t, func(w http.ResponseWriter, r *http.Request) {
		text, err := json.Marshal(replies[r.URL.Path])
		if err != nil {
			t.Error(err)
		}
		if r.URL.Query().Has("all") { // a tail: a line, and its end
			text = append(text, '\n')
			end, _ := json.Marshal(report.TailLine{End: new(report.TailEnd)})
			text = append(text, end...)
		}
		_, _ = w.Write(append(text, '\n'))
	})
	rows := func(args ...string) int {
		_, out, stderr := outcome(t, append(args, "--admin-socket", socket)...)
		for _, text := range []string{out, stderr} {
			if strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
				t.Errorf("%v: %q", args, text)
			}
			if strings.Contains(text, "\nnode evil") {
				t.Errorf("%v: a forged row:\n%s", args, text)
			}
		}
		return strings.Count(out, "\n")
	}
	for _, args := range [][]string{{"top"}, {"top", "-o", "wide"}, {"status", "-o", "wide"}, {"upstreams", "-o", "wide"}, {"tail", "--all-clients", "-o", "wide"}} {
		if rows(args...) == 0 {
			t.Errorf("%v prints nothing", args)
		}
	}
	for _, args := range [][]string{{"top", "-o", "json"}, {"status", "-o", "yaml"}, {"upstreams", "-o", "json"}, {"tail", "--all-clients", "-o", "json"}} {
		rows(args...)
	}
}
