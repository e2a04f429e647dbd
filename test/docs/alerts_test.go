package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/daemonset/monitoring"
	"github.com/nodens-dns/nodens/test/prometheus"
)

const alertsPage = "docs/reference/alerts.md"

// alertParts are the parts of an alert's section, in this order.
var alertParts = []string{"**Meaning.**", "**Pods notice.**", "**Look.**", "**Do.**"}

// alertRules returns the alerts of rules.yaml by name, and their names in its order. An alert may
// have a rule for each severity.
func alertRules(t *testing.T) (rules map[string][]prometheus.Rule, names []string) {
	t.Helper()
	groups, err := prometheus.Rules(monitoring.PrometheusRule)
	if err != nil {
		t.Fatal(err)
	}
	rules = make(map[string][]prometheus.Rule)
	for _, g := range groups {
		for _, r := range g.Rules {
			if r.Alert == "" {
				continue
			}
			if rules[r.Alert] == nil {
				names = append(names, r.Alert)
			}
			rules[r.Alert] = append(rules[r.Alert], r)
		}
	}
	if len(names) == 0 {
		t.Fatal("rules.yaml has no alerts")
	}
	return rules, names
}

// alertSection is the heading of an alert.
var alertSection = regexp.MustCompile(`(?m)^### (Nodens\w+)$`)

// TestConditions: the page has the conditions of package app that `nodens status` shows, and each that names an alert names one
// of rules.yaml with its severity.
func TestConditions(t *testing.T) {
	rules, _ := alertRules(t)
	const source = "cmd/nodens/app/conditions.go"
	text, _ := document(t, source)
	file, err := parser.ParseFile(token.NewFileSet(), source, text, 0)
	if err != nil {
		t.Fatal(err)
	}
	rows := "| problem of `nodens status` | code | severity | alert |\n|---|---|---|---|\n"
	ast.Inspect(file, func(n ast.Node) bool {
		c, ok := n.(*ast.CompositeLit)
		if !ok || len(c.Elts) != 6 {
			return true
		}
		code, coded := literal(c.Elts[0])
		severity, judged := c.Elts[1].(*ast.Ident) // a constant that is named as its value
		means, explained := literal(c.Elts[2])
		alert, named := literal(c.Elts[3])
		if !coded || !judged || !explained || !named {
			t.Fatalf("%s: a condition has another form", source)
		}
		cell := "none"
		if alert != "" {
			cell = "[" + alert + "](#" + strings.ToLower(alert) + ")"
			if !slices.ContainsFunc(rules[alert], func(r prometheus.Rule) bool { return r.Labels["severity"] == severity.Name }) {
				t.Errorf("%s: %s is %s; rules.yaml has no alert %s of this severity", source, code, severity.Name, alert)
			}
		}
		rows += "| " + means + " | `" + code + "` | " + severity.Name + " | " + cell + " |\n"
		return true
	})
	if strings.Count(rows, "\n") < 10 {
		t.Fatalf("%s declares only these conditions, or others in another form:\n%s", source, rows)
	}
	generated(t, alertsPage, "problems", rows)
}

// TestAlerts: the page has a section for each alert, in the order of rules.yaml, and no other.
// Each has all parts.
func TestAlerts(t *testing.T) {
	_, names := alertRules(t)
	text, _ := document(t, alertsPage)
	var got []string
	for _, m := range alertSection.FindAllStringSubmatch(text, -1) {
		got = append(got, m[1])
	}
	if !slices.Equal(got, names) {
		t.Errorf("%s has sections for\n%q, want\n%q", alertsPage, got, names)
	}
	sections := strings.Split(text, "\n### ")[1:]
	for _, s := range sections {
		name, _, _ := strings.Cut(s, "\n")
		at := 0
		for _, part := range alertParts {
			i := strings.Index(s[at:], "\n"+part)
			if i < 0 {
				t.Errorf("%s: %s has no part %s, or has it in another place", alertsPage, name, part)
				break
			}
			at += i
		}
	}
}

// TestRunbooks: an alert's annotation leads to its section.
func TestRunbooks(t *testing.T) {
	rules, _ := alertRules(t)
	text, _ := document(t, alertsPage)
	known := anchors(text)
	for name, list := range rules {
		for _, r := range list {
			if link, ok := r.Annotations["runbook_url"]; ok {
				file, fragment, err := resolve(alertsPage, link)
				if err != nil || file != alertsPage || !known[fragment] || fragment != strings.ToLower(name) {
					t.Errorf("the runbook of %s is %s: %v", name, link, err)
				}
			}
		}
	}
}

// TestRecordingRules: the page has the recording rules.
func TestRecordingRules(t *testing.T) {
	groups, err := prometheus.Rules(monitoring.PrometheusRule)
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, g := range groups {
		for _, r := range g.Rules {
			if r.Record != "" {
				want = append(want, r.Record)
			}
		}
	}
	text, _ := document(t, alertsPage)
	for _, r := range data(table(text, "recording rule", "meaning")) {
		name, _ := code(r[0])
		got = append(got, name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s has the recording rules\n%q, want\n%q", alertsPage, got, want)
	}
}
