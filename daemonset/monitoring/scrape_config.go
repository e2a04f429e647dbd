package monitoring

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// ScrapeConfig is an entry of Prometheus' scrape_configs. JSON is YAML, so it can be
// marshalled into a configuration file as it is.
type ScrapeConfig struct {
	Name       string                `json:"job_name"`
	Interval   string                `json:"scrape_interval,omitempty"`
	Path       string                `json:"metrics_path,omitempty"`
	Static     []StaticConfig        `json:"static_configs,omitempty"`
	Kubernetes []KubernetesDiscovery `json:"kubernetes_sd_configs,omitempty"`
	Files      []FileDiscovery       `json:"file_sd_configs,omitempty"`
	Relabel    []map[string]any      `json:"relabel_configs,omitempty"`
}

// StaticConfig are targets that are known beforehand.
type StaticConfig struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels,omitempty"`
}

// FileDiscovery have targets, in the form of a list of Static.
type FileDiscovery struct {
	Names []string `json:"files"`
}

// KubernetesDiscovery is how Prometheus finds targets in the cluster that it runs in.
type KubernetesDiscovery struct {
	Role       string          `json:"role"`
	Namespaces *NamespaceNames `json:"namespaces,omitempty"`
}

// NamespaceNames are namespaces.
type NamespaceNames struct {
	Names []string `json:"names"`
}

// podMonitor is what this package knows of one. A field that is not here is an error, since
// nobody would say what the operator makes of it.
type podMonitor struct {
	objectHeader
	Spec struct {
		JobLabel          string `json:"jobLabel"`
		NamespaceSelector struct {
			MatchNames []string `json:"matchNames"`
		} `json:"namespaceSelector"`
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		Endpoints []endpoint `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

type endpoint struct {
	Port        string       `json:"port"`
	PortNumber  int          `json:"portNumber"`
	Path        string       `json:"path"`
	Interval    string       `json:"interval"`
	Relabelings []relabeling `json:"relabelings"`
}

type relabeling struct {
	SourceLabels []string `json:"sourceLabels"`
	Regex        string   `json:"regex"`
	Replacement  string   `json:"replacement"`
	TargetLabel  string   `json:"targetLabel"`
	Action       string   `json:"action"`
}

// OperatorScrapeConfigs are the scrape jobs that the Prometheus operator makes of a PodMonitor.
func OperatorScrapeConfigs(object []byte) ([]ScrapeConfig, error) {
	var m podMonitor
	if err := decodeStrict(object, &m); err != nil {
		return nil, fmt.Errorf("reading a PodMonitor: %w", err)
	}
	if err := m.checkKind("PodMonitor"); err != nil {
		return nil, err
	}
	namespaces := m.Spec.NamespaceSelector.MatchNames
	if len(namespaces) == 0 {
		namespaces = []string{m.Metadata.Namespace}
	}
	var jobs []ScrapeConfig
	for i, e := range m.Spec.Endpoints {
		jobs = append(jobs, ScrapeConfig{
			Name:     fmt.Sprintf("podMonitor/%s/%s/%d", m.Metadata.Namespace, m.Metadata.Name, i),
			Interval: e.Interval, Path: e.Path,
			Kubernetes: []KubernetesDiscovery{{Role: "pod", Namespaces: &NamespaceNames{namespaces}}},
			Relabel:    m.relabel(e),
		})
	}
	return jobs, nil
}

// relabel are the operator's rules for an endpoint, in its order: which pods, which of
// their ports, the labels that every target gets, and then the monitor's own.
func (m podMonitor) relabel(e endpoint) []map[string]any {
	rules := []map[string]any{filterRule("drop", "(Failed|Succeeded)", "__meta_kubernetes_pod_phase")}
	for _, name := range sortedKeys(m.Spec.Selector.MatchLabels) {
		rules = append(rules, filterRule("keep", "("+regexp.QuoteMeta(m.Spec.Selector.MatchLabels[name])+");true",
			"__meta_kubernetes_pod_label_"+SanitizeLabel(name), "__meta_kubernetes_pod_labelpresent_"+SanitizeLabel(name)))
	}
	// Ports are those that containers declare.
	switch {
	case e.Port != "":
		rules = append(rules, filterRule("keep", e.Port, "__meta_kubernetes_pod_container_port_name"))
	case e.PortNumber != 0:
		rules = append(rules, filterRule("keep", fmt.Sprint(e.PortNumber), "__meta_kubernetes_pod_container_port_number"))
	}
	rules = append(rules,
		copyRule("namespace", "__meta_kubernetes_namespace"),
		copyRule("container", "__meta_kubernetes_pod_container_name"),
		copyRule("pod", "__meta_kubernetes_pod_name"),
		map[string]any{"target_label": "job", "replacement": m.Metadata.Namespace + "/" + m.Metadata.Name})
	if m.Spec.JobLabel != "" {
		r := copyRule("job", "__meta_kubernetes_pod_label_"+SanitizeLabel(m.Spec.JobLabel))
		r["regex"] = "(.+)"
		rules = append(rules, r)
	}
	if e.Port != "" {
		rules = append(rules, map[string]any{"target_label": "endpoint", "replacement": e.Port})
	}
	for _, r := range e.Relabelings {
		rules = append(rules, r.config())
	}
	return rules
}

func (r relabeling) config() map[string]any {
	c := map[string]any{"source_labels": r.SourceLabels}
	for key, value := range map[string]string{
		"regex": r.Regex, "replacement": r.Replacement, "target_label": r.TargetLabel, "action": r.Action,
	} {
		if value != "" {
			c[key] = value
		}
	}
	return c
}

// AnnotationScrapeConfigs are the two scrape jobs that go by the annotations prometheus.io/scrape,
// path and port, of pods and of Services, as many clusters have them.
func AnnotationScrapeConfigs() []ScrapeConfig {
	job := func(name, role, object string) ScrapeConfig {
		annotation := "__meta_kubernetes_" + object + "_annotation_prometheus_io_"
		path := copyRule("__metrics_path__", annotation+"path")
		path["regex"] = "(.+)"
		// A port that is there is left out: that of a Service's endpoint.
		address := copyRule("__address__", "__address__", annotation+"port")
		address["regex"], address["replacement"] = `(.+?)(?::\d+)?;(\d+)`, "$1:$2"
		name6 := copyRule("__address__", "__meta_kubernetes_pod_ip", annotation+"port")
		name6["regex"], name6["replacement"] = `(.*:.*);(\d+)`, "[$1]:$2"
		return ScrapeConfig{Name: name, Kubernetes: []KubernetesDiscovery{{Role: role}}, Relabel: []map[string]any{
			filterRule("keep", "true", annotation+"scrape"), path, address, name6,
			copyRule("namespace", "__meta_kubernetes_namespace"),
			copyRule("pod", "__meta_kubernetes_pod_name"),
			copyRule("node", "__meta_kubernetes_pod_node_name"),
		}}
	}
	return []ScrapeConfig{
		job("kubernetes-pods", "pod", "pod"),
		job("kubernetes-service-endpoints", "endpoints", "service"),
	}
}

// filterRule is a rule about the labels' values.
func filterRule(action, regex string, labels ...string) map[string]any {
	return map[string]any{"action": action, "regex": regex, "source_labels": labels}
}

// copyRule copies labels into another one.
func copyRule(label string, labels ...string) map[string]any {
	return map[string]any{"target_label": label, "source_labels": labels}
}

// SanitizeLabel is how a label or annotation of Kubernetes is called in Prometheus.
func SanitizeLabel(label string) string {
	return strings.Map(func(r rune) rune {
		if r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '_'
	}, label)
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
