package prometheus

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// ScrapeConfig is an entry of Prometheus' scrape_configs. It can be marshalled as JSON, which
// Prometheus reads as YAML.
type ScrapeConfig struct {
	Name        string                `json:"job_name"`
	Interval    string                `json:"scrape_interval,omitempty"`
	Path        string                `json:"metrics_path,omitempty"`
	HonorLabels bool                  `json:"honor_labels,omitempty"`
	Static      []StaticConfig        `json:"static_configs,omitempty"`
	Kubernetes  []KubernetesDiscovery `json:"kubernetes_sd_configs,omitempty"`
	Files       []FileDiscovery       `json:"file_sd_configs,omitempty"`
	Relabel     []map[string]any      `json:"relabel_configs,omitempty"`
}

// StaticConfig are fixed targets.
type StaticConfig struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels,omitempty"`
}

// FileDiscovery names files with lists of StaticConfig, in JSON.
type FileDiscovery struct {
	Names []string `json:"files"`
}

// KubernetesDiscovery finds targets in the cluster that Prometheus runs in.
type KubernetesDiscovery struct {
	Role       string          `json:"role"`
	Namespaces *NamespaceNames `json:"namespaces,omitempty"`
}

// NamespaceNames are namespaces.
type NamespaceNames struct {
	Names []string `json:"names"`
}

// podMonitor has the fields of a PodMonitor that this package supports. Others are errors.
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
	HonorLabels bool         `json:"honorLabels"`
	Relabelings []relabeling `json:"relabelings"`
}

type relabeling struct {
	SourceLabels []string `json:"sourceLabels"`
	Regex        string   `json:"regex"`
	Replacement  string   `json:"replacement"`
	TargetLabel  string   `json:"targetLabel"`
	Action       string   `json:"action"`
}

// OperatorScrapeConfigs returns the scrape configs that the Prometheus operator makes from a
// PodMonitor, in YAML.
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
			Interval: e.Interval, Path: e.Path, HonorLabels: e.HonorLabels,
			Kubernetes: []KubernetesDiscovery{{Role: "pod", Namespaces: &NamespaceNames{namespaces}}},
			Relabel:    m.relabel(e),
		})
	}
	return jobs, nil
}

// relabel returns the operator's rules for an endpoint, in its order: selection of pods and of
// their ports, labels of all targets, and the monitor's own rules.
func (m podMonitor) relabel(e endpoint) []map[string]any {
	rules := []map[string]any{filterRule("drop", "(Failed|Succeeded)", "__meta_kubernetes_pod_phase")}
	for _, name := range sortedKeys(m.Spec.Selector.MatchLabels) {
		rules = append(rules, filterRule("keep", "("+regexp.QuoteMeta(m.Spec.Selector.MatchLabels[name])+");true",
			"__meta_kubernetes_pod_label_"+SanitizeLabel(name), "__meta_kubernetes_pod_labelpresent_"+SanitizeLabel(name)))
	}
	// These are the ports that containers declare.
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

// AnnotationScrapeConfigs returns the common scrape configs for pods and Services with the
// annotations prometheus.io/scrape, path and port.
func AnnotationScrapeConfigs() []ScrapeConfig {
	job := func(name, role, object string) ScrapeConfig {
		annotation := "__meta_kubernetes_" + object + "_annotation_prometheus_io_"
		path := copyRule("__metrics_path__", annotation+"path")
		path["regex"] = "(.+)"
		// The annotation replaces a port in the address, as in a Service's endpoint.
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

// filterRule returns a rule that keeps or drops targets whose labels match regex.
func filterRule(action, regex string, labels ...string) map[string]any {
	return map[string]any{"action": action, "regex": regex, "source_labels": labels}
}

// copyRule returns a rule that sets label to the joined values of labels.
func copyRule(label string, labels ...string) map[string]any {
	return map[string]any{"target_label": label, "source_labels": labels}
}

// SanitizeLabel returns the name in Prometheus of a Kubernetes label or annotation.
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
