package prometheus

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/daemonset/monitoring"
)

// readRules returns the rules of rules.yaml.
func readRules(t *testing.T) []Group {
	t.Helper()
	groups, err := Rules(monitoring.PrometheusRule)
	if err != nil {
		t.Fatal(err)
	}
	return groups
}

// readAlerts returns the alerts of rules.yaml.
func readAlerts(t *testing.T) []Rule {
	t.Helper()
	var all []Rule
	for _, g := range readRules(t) {
		for _, r := range g.Rules {
			if r.Alert != "" {
				all = append(all, r)
			}
		}
	}
	if len(all) == 0 {
		t.Fatal("rules.yaml has no alerts")
	}
	return all
}

// writeJSON writes v as JSON to a file and returns its path.
func writeJSON(t *testing.T, dir, name string, v any) string {
	t.Helper()
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, name)
	writeFile(t, file, string(text))
	return file
}

func writeFile(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// runPromtool runs promtool and fails the test if it fails. It skips the test if there is no
// promtool.
func runPromtool(t *testing.T, args ...string) {
	t.Helper()
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("promtool is missing; `make test` installs it")
	}
	if out, err := exec.CommandContext(t.Context(), "promtool", args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// TestAlerts: promtool evaluates the rules; each alert fires in the expected minutes only.
func TestAlerts(t *testing.T) {
	dir := t.TempDir()
	file := writeJSON(t, dir, "rules.json", map[string]any{"groups": readRules(t)})
	runPromtool(t, "check", "rules", "--lint-fatal", file)
	var tests []any
	for _, a := range allAlertCases() {
		var input, asked []any
		for _, name := range slices.Sorted(maps.Keys(a.series)) {
			input = append(input, map[string]string{"series": name, "values": a.series[name]})
		}
		expr := fmt.Sprintf("ALERTS{alertname=%q, severity=%q, alertstate=\"firing\"}", a.alert, a.severity)
		ask := func(minutes []int, samples []any) {
			for _, m := range minutes {
				asked = append(asked, map[string]any{"expr": expr, "eval_time": fmt.Sprintf("%dm", m), "exp_samples": samples})
			}
		}
		ask(a.inactive, []any{})
		ask(a.firing, []any{map[string]any{"labels": a.expectedSeries(), "value": 1}})
		ask(a.resolved, []any{})
		tests = append(tests, map[string]any{"interval": "1m", "input_series": input, "promql_expr_test": asked})
	}
	runPromtool(t, "test", "rules", writeJSON(t, dir, "tests.json", map[string]any{
		"rule_files": []string{file}, "evaluation_interval": "1m", "tests": tests,
	}))
}

// expectedSeries returns the series that Prometheus has while the alert fires.
func (a alertCase) expectedSeries() string {
	labels := map[string]string{"alertname": a.alert, "alertstate": "firing", "severity": a.severity}
	maps.Copy(labels, a.labels)
	var pairs []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		pairs = append(pairs, fmt.Sprintf("%s=%q", k, labels[k]))
	}
	return "ALERTS{" + strings.Join(pairs, ", ") + "}"
}

// TestSummaries: the summary of an alert says which zone or upstream it is about, if the metrics have that.
func TestSummaries(t *testing.T) {
	const zone, upstream = `,server="dns://:53",zone="cluster.local.",plugin="forward"`, `,to="192.0.2.53:53"`
	series := map[string]string{
		"coredns_dns_requests_total{" + agentLabels + "}":                                                  "0+1000x40",
		"coredns_dns_responses_total{" + agentLabels + zone + `,rcode="NOERROR"}`:                          "0+900x40",
		"coredns_dns_responses_total{" + agentLabels + zone + `,rcode="SERVFAIL"}`:                         "0+90x40",
		"coredns_dns_responses_total{" + agentLabels + `,zone=".",plugin="cache",rcode="SERVFAIL"}`:        "0+10x40",
		"coredns_dns_request_duration_seconds_bucket{" + agentLabels + `,le="1"}`:                          "0+90x40",
		"coredns_dns_request_duration_seconds_bucket{" + agentLabels + `,le="2"}`:                          "0+100x40",
		"coredns_dns_request_duration_seconds_bucket{" + agentLabels + `,le="+Inf"}`:                       "0+100x40",
		"coredns_proxy_request_duration_seconds_bucket{" + agentLabels + upstream + `,le="0"}`:             "0x40",
		"coredns_proxy_request_duration_seconds_bucket{" + agentLabels + upstream + `,le="2"}`:             "0+100x40",
		"coredns_proxy_request_duration_seconds_bucket{" + agentLabels + upstream + `,le="+Inf"}`:          "0+100x40",
		"coredns_forward_healthcheck_broken_total{" + agentLabels + "}":                                    "0+10x40",
		"nodens_upstream_down{" + agentLabels + upstream + "}":                                             "1x40",
		"nodens_upstream_down{" + agentLabels + `,to="192.0.2.54:53"}`:                                     "1x40",
		"coredns_cache_served_stale_total{" + agentLabels + `,zones="example.org."}`:                       "0+60x40",
		"coredns_cache_requests_total{" + agentLabels + "}":                                                "0+1000x40",
		"coredns_cache_hits_total{" + agentLabels + "}":                                                    "0+100x40",
		"coredns_cache_misses_total{" + agentLabels + "}":                                                  "0+900x40",
		"coredns_cache_evictions_total{" + agentLabels + `,type="success",zones="."}`:                      "0+840x40",
		"coredns_cache_evictions_total{" + agentLabels + `,type="success",zones="example.org."}`:           "0+60x40",
		`nodens_upstream_down{job="node-local-dns",node="b",instance="192.0.2.2:9253",to="192.0.2.55:53"}`: "1x40",
	}
	var input, asked []any
	for _, name := range slices.Sorted(maps.Keys(series)) {
		input = append(input, map[string]string{"series": name, "values": series[name]})
	}
	for _, r := range readAlerts(t) {
		want, ok := map[string]string{
			"NodensErrorsHigh":       "a (192.0.2.1:9253) answers 10% of all queries with SERVFAIL (most of them in the zone cluster.local., by forward).",
			"NodensLatencyHigh":      "One query in a hundred to a (192.0.2.1:9253) takes 1.9s; of those to the upstream 192.0.2.53:53, it takes 1.98s.",
			"NodensUpstreamsAllDown": "a (192.0.2.1:9253) has a zone whose upstreams are all down: 192.0.2.53:53, 192.0.2.54:53.",
			"NodensServingStale":     "a (192.0.2.1:9253) serves expired answers: 1 per second (most of them in the zones example.org.).",
			"NodensCacheThrashing":   "The cache of a (192.0.2.1:9253) evicts 15 entries per second (most of them of the zones .).",
		}[r.Alert]
		if !ok || r.Alert == "NodensErrorsHigh" && r.Labels["severity"] == "critical" {
			continue
		}
		annotations := maps.Clone(r.Annotations)
		annotations["summary"] = want
		labels := maps.Clone(alertLabels)
		labels["severity"] = r.Labels["severity"]
		asked = append(asked, map[string]any{"eval_time": "30m", "alertname": r.Alert, "exp_alerts": []any{map[string]any{"exp_labels": labels, "exp_annotations": annotations}}})
	}
	dir := t.TempDir()
	file := writeJSON(t, dir, "rules.json", map[string]any{"groups": readRules(t)})
	runPromtool(t, "test", "rules", writeJSON(t, dir, "tests.json", map[string]any{
		"rule_files": []string{file}, "evaluation_interval": "1m", "tests": []any{map[string]any{"interval": "1m", "input_series": input, "alert_rule_test": asked}},
	}))
}

// TestAlertCasesComplete: every alert has a case in which it fires and resolves.
func TestAlertCasesComplete(t *testing.T) {
	tried := make(map[string]bool)
	for _, a := range allAlertCases() {
		if len(a.inactive) > 0 && len(a.firing) > 0 && len(a.resolved) > 0 {
			tried[a.alert+" "+a.severity] = true
		}
	}
	for _, r := range readAlerts(t) {
		name := r.Alert + " " + r.Labels["severity"]
		if !tried[name] {
			t.Errorf("%s has no case in which it fires and resolves", name)
		}
		delete(tried, name)
	}
	for name := range tried {
		t.Errorf("rules.yaml has no alert %s", name)
	}
}

// TestRunbook: docs/reference/alerts.md has a section for every alert and for no other, and
// the alert's runbook_url leads to it. So does a heading of README.md, to which earlier versions
// of the rules lead.
func TestRunbook(t *testing.T) {
	known := make(map[string]bool)
	for _, r := range readAlerts(t) {
		known[r.Alert] = true
		for _, key := range []string{"summary", "description"} {
			if r.Annotations[key] == "" {
				t.Errorf("%s has no %s", r.Alert, key)
			}
		}
		const page = "https://github.com/nodens-dns/nodens/blob/main/docs/reference/alerts.md#"
		if want := page + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
			t.Errorf("the runbook of %s is %q, want %q", r.Alert, r.Annotations["runbook_url"], want)
		}
		if s := r.Labels["severity"]; s != "warning" && s != "critical" {
			t.Errorf("%s has the severity %q", r.Alert, s)
		}
	}
	for _, page := range []string{"../../docs/reference/alerts.md", "../../daemonset/monitoring/README.md"} {
		told := alertHeadings(t, page)
		for name := range known {
			if !told[name] {
				t.Errorf("%s has no heading %s", page, name)
			}
		}
		for name := range told {
			if !known[name] {
				t.Errorf("%s has a section %s, which is not an alert of rules.yaml", page, name)
			}
		}
	}
}

// alertHeadings returns the headings of a page that name an alert.
func alertHeadings(t *testing.T, page string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	headings := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^### (Nodens\w+)$`).FindAllStringSubmatch(string(text), -1) {
		headings[m[1]] = true
	}
	return headings
}

// TestDashboardRows: on a cluster with many nodes the dashboard opens with what is wrong, and no panel has a line for each
// node.
func TestDashboardRows(t *testing.T) {
	var d struct {
		Panels []struct {
			Type, Title string
			Collapsed   bool
			Panels      []panel
		}
	}
	if err := json.Unmarshal(monitoring.Dashboard, &d); err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Panels {
		if open := p.Title == "Agents" || p.Title == "Worst nodes"; p.Type == "row" && (p.Collapsed == open || open != (len(p.Panels) == 0)) {
			t.Errorf("the row %s is collapsed: %t, with %d panels", p.Title, p.Collapsed, len(p.Panels))
		}
	}
	queries, err := Queries(monitoring.Dashboard)
	if err != nil {
		t.Fatal(err)
	}
	bounded := regexp.MustCompile(`^(topk|bottomk)\(10, `)
	summed := regexp.MustCompile(`^(sum|max|min|count)( by \((\w+, )*\w+\))? ?\(|^histogram_quantile\(`)
	for _, q := range queries {
		byNode := strings.Contains(q.Expr, "by (node, instance") || !summed.MatchString(q.Expr)
		if byNode && !bounded.MatchString(q.Expr) && !strings.HasPrefix(q.Panel, "variable ") && !strings.HasPrefix(q.Expr, "count(") {
			t.Errorf("%s: a line for each node: %s", q.Panel, q.Expr)
		}
	}
}
