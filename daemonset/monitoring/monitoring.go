// Package monitoring holds what Prometheus and Grafana need to watch the agents: a
// PodMonitor, rules and a dashboard, as files to apply. Its code reads those files the way
// the Prometheus operator and Grafana do, so that tests ask a real Prometheus, of whatever
// cluster, exactly what an operator's Prometheus and Grafana would ask.
package monitoring

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// The files, as they are in this folder.
var (
	//go:embed podmonitor.yaml
	PodMonitor []byte
	//go:embed rules.yaml
	PrometheusRule []byte
	//go:embed dashboard.json
	Dashboard []byte
)

// Job is what the agents are called in the label job, by the rules and the dashboard.
const Job = "node-local-dns"

// Group is a group of rules.
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

// Rules are the groups of a PrometheusRule.
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

// RuleFile is what the Prometheus operator makes of groups: a file that Prometheus and
// promtool read.
func RuleFile(groups []Group) ([]byte, error) {
	return json.Marshal(map[string][]Group{"groups": groups})
}

// objectHeader is the head of an object.
type objectHeader struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string            `json:"name"`
		Namespace string            `json:"namespace"`
		Labels    map[string]string `json:"labels"`
	} `json:"metadata"`
}

// checkKind nil if the object is of the operator's kind of that name.
func (k objectHeader) checkKind(name string) error {
	if k.APIVersion != "monitoring.coreos.com/v1" || k.Kind != name {
		return fmt.Errorf("a %s of %s where a %s of monitoring.coreos.com/v1 is needed", k.Kind, k.APIVersion, name)
	}
	return nil
}

// decodeStrict decodes YAML; an unknown field is an error.
func decodeStrict(text []byte, into any) error {
	text, err := yaml.ToJSON(text)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// Query is one of a dashboard's.
type Query struct {
	// Dashboard and Panel say where it is.
	Dashboard, Panel string
	// Expr is PromQL, with Grafana's variables in it.
	Expr string
}

// Expand is the expression with the variables filled in, as Grafana does it where
// everything is chosen. A variable that nobody knows stays, and Prometheus refuses it.
func (q Query) Expand() string {
	return strings.NewReplacer(
		"$__rate_interval", "1m", "$job", Job,
		"$node", ".*", "$instance", ".*", "$zone", ".*",
	).Replace(q.Expr)
}

// Queries are those of the panels of a Grafana dashboard, and those that fill its
// variables.
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
		// label_values(SERIES, LABEL): the values are those of these series.
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

// panel is a panel, or a row, which has panels itself if it is folded.
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
