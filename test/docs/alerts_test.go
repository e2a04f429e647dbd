package docs

import (
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
