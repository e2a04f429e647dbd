// Package prometheus converts the files in daemonset/monitoring as the Prometheus operator and Grafana
// do, so that tests can send the same queries to a real Prometheus.
package prometheus

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// Job is the value of the label job in the rules and the dashboard.
const Job = "node-local-dns"

// Group is a group of rules, in the format of a rule file.
type Group struct {
	Name     string `json:"name"`
	Interval string `json:"interval,omitempty"`
	Rules    []Rule `json:"rules"`
}

// Rule is a recording rule, or an alert if Alert is set.
type Rule struct {
	Record      string            `json:"record,omitempty"`
	Alert       string            `json:"alert,omitempty"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Rules returns the groups of a PrometheusRule, in YAML.
func Rules(object []byte) ([]Group, error) {
	var r struct {
		objectHeader
		Spec struct {
			Groups []Group `json:"groups"`
		} `json:"spec"`
	}
	if err := decodeStrict(object, &r); err != nil {
		return nil, fmt.Errorf("reading a PrometheusRule: %w", err)
	}
	return r.Spec.Groups, r.checkKind("PrometheusRule")
}

// RuleFile returns groups as a rule file for Prometheus and promtool, as the Prometheus
// operator writes it.
func RuleFile(groups []Group) ([]byte, error) {
	return json.Marshal(map[string][]Group{"groups": groups})
}

// objectHeader is the part that all objects have.
type objectHeader struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string            `json:"name"`
		Namespace string            `json:"namespace"`
		Labels    map[string]string `json:"labels"`
	} `json:"metadata"`
}

// checkKind returns an error unless the object is of this kind of the Prometheus operator.
func (k objectHeader) checkKind(name string) error {
	if k.APIVersion != "monitoring.coreos.com/v1" || k.Kind != name {
		return fmt.Errorf("got a %s of %s, want a %s of monitoring.coreos.com/v1", k.Kind, k.APIVersion, name)
	}
	return nil
}

// decodeStrict decodes YAML. An unknown field is an error.
func decodeStrict(text []byte, into any) error {
	text, err := yaml.ToJSON(text)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// Query is a query of a dashboard.
type Query struct {
	// Dashboard and Panel are their titles.
	Dashboard, Panel string
	// Expr is PromQL with Grafana's variables.
	Expr string
}

// Expand returns the expression with the values that Grafana's variables have if everything
// is selected. Unknown variables stay, and Prometheus rejects them.
func (q Query) Expand() string {
	return strings.NewReplacer(
		"$__rate_interval", "1m", "$job", Job,
		"$node", ".*", "$instance", ".*", "$zone", ".*",
	).Replace(q.Expr)
}

// Queries returns the queries of a Grafana dashboard's variables and panels.
func Queries(dashboard []byte) ([]Query, error) {
	var d struct {
		Title      string
		Panels     []panel
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
	}
	if err := json.Unmarshal(dashboard, &d); err != nil {
		return nil, fmt.Errorf("reading a dashboard: %w", err)
	}
	var all []Query
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		// label_values(SERIES, LABEL) lists the values of a label of these series.
		call, ok := strings.CutPrefix(v.Definition, "label_values(")
		series, label, found := cutLast(strings.TrimSuffix(call, ")"), ", ")
		if !ok || !found {
			return nil, fmt.Errorf("the variable %s has the query %q, which is not label_values(SERIES, LABEL)", v.Name, v.Definition)
		}
		all = append(all, Query{d.Title, "variable " + v.Name, fmt.Sprintf("count by (%s) (%s)", label, series)})
	}
	for _, p := range d.Panels {
		for _, q := range append(p.Panels, p) {
			for _, t := range q.Targets {
				all = append(all, Query{d.Title, q.Title, t.Expr})
			}
		}
	}
	return all, nil
}

// panel is a panel or a row. A collapsed row contains its panels.
type panel struct {
	Title   string
	Panels  []panel
	Targets []struct{ Expr string }
}

// cutLast is strings.Cut at the last separator.
func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
