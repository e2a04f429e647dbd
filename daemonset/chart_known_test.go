package daemonset

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// deliveryhero are the keys of the values of deliveryhero's chart node-local-dns with their
// defaults, in JSON.
var deliveryhero = map[string]string{
	"image.repository": `"registry.k8s.io/dns/k8s-dns-node-cache"`, "image.tag": `""`,
	"config.dnsDomain": `"cluster.local"`, "config.dnsServer": `"172.20.0.10"`, "config.localDns": `"169.254.20.25"`,
	"config.customUpstreamsvc": `""`, "config.upstreamServiceSelector": `{"k8s-app": "kube-dns"}`,
	"config.bindIp": `false`, "config.commProtocol": `"force_tcp"`,
	"config.enableLogging": `false`, "config.noIPv6Lookups": `false`, "config.cacheTTL": `30`,
	"config.prefetch.enabled": `false`, "config.prefetch.amount": `3`, "config.prefetch.duration": `"30s"`, "config.prefetch.percentage": `"20%"`,
	"config.serveStale.enabled": `false`, "config.serveStale.duration": `"1h"`, "config.serveStale.mode": `"verify"`,
	"config.healthPort": `8080`, "config.setupInterface": `true`, "config.setupIptables": `true`, "config.skipTeardown": `false`,
	"config.extraServerBlocks": `""`, "config.customConfig": `""`,
	"config.port.number": `53`, "config.port.tcp": `"dns-tcp"`, "config.port.udp": `"dns"`,
	"config.upstreamServers": `"__PILLAR__UPSTREAM__SERVERS__"`, "config.upstreamForwardConfig": `{}`,
	"nameOverride": `""`, "fullnameOverride": `""`,
	"serviceAccount.create": `true`, "serviceAccount.annotations": `{}`, "serviceAccount.name": `""`,
	"service.annotations": `{}`, "podAnnotations": `{}`, "podLabels": `{}`, "configMapAnnotations": `{}`, "configMapLabels": `{}`,
	"daemonsetAnnotations": `{}`, "daemonsetLabels": `{}`,
	"updateStrategy.type": `"RollingUpdate"`, "updateStrategy.rollingUpdate.maxUnavailable": `"10%"`,
	"initContainers": `[]`, "securityContext.capabilities.add": `["NET_ADMIN"]`,
	"serviceMonitor.enabled": `false`, "serviceMonitor.labels": `{}`, "serviceMonitor.path": `"/metrics"`,
	"serviceMonitor.honorLabels": `false`, "serviceMonitor.metricRelabelings": `[]`, "serviceMonitor.relabelings": `[]`,
	"serviceMonitor.namePrefix": `""`, "serviceMonitor.prometheusNamespace": `"kube-system"`,
	"dashboard.enabled": `false`, "dashboard.namespace": `"kube-system"`, "dashboard.label": `"grafana_dashboard"`, "dashboard.annotations": `{}`,
	"resources.requests": `{"cpu": "25m", "memory": "128Mi"}`, "resources.limits": `{"memory": "128Mi"}`,
	"lifecycle": `{}`, "resizePolicy": `[]`, "affinity": `{}`, "imagePullSecrets": `[]`, "prometheusScraping.enabled": `true`,
	"tolerations": `[{"key": "CriticalAddonsOnly", "operator": "Exists"}, {"effect": "NoExecute", "operator": "Exists"}, {"effect": "NoSchedule", "operator": "Exists"}]`,
}

// lablabs are the keys of the values of lablabs' chart node-local-dns with their defaults, in
// JSON, except for config.zones, and with some that it has no default for.
var lablabs = map[string]string{
	"image.repository": `"registry.k8s.io/dns/k8s-dns-node-cache"`, "image.pullPolicy": `"IfNotPresent"`, "image.tag": `"1.23.1"`,
	"image.args.interfaceName": `"nodelocaldns"`, "image.args.healthPort": `8080`, "image.args.setupInterface": `true`,
	"image.args.skipTeardown": `true`, "image.args.setupIptables": `false`, "image.args.syncInterval": `"1ns"`,
	"image.args.quiet": `false`, "image.args.setupEbtables": `false`, "image.args.upstreamSvc": `"kube-dns"`,
	"imagePullSecrets": `[]`, "config.localDnsIp": `"169.254.20.11"`, "config.kubeDnsIp": `""`, "useHostNetwork": `true`,
	"updateStrategy.rollingUpdate.maxUnavailable": `"10%"`, "priorityClassName": `"system-node-critical"`,
	"podAnnotations": `{}`, "podSecurityContext": `{}`, "securityContext.capabilities.add": `["NET_ADMIN"]`, "readinessProbe": `{}`,
	"serviceAccount.create": `true`, "serviceAccount.annotations": `{}`, "serviceAccount.name": `""`,
	"nodeSelector": `{}`, "affinity": `{}`, "tolerations": `[{"operator": "Exists"}]`,
	"resources.requests": `{"cpu": "30m", "memory": "50Mi"}`, "metrics.prometheusScrape": `"true"`, "metrics.port": `9253`,
	"podmonitor.enabled": `false`, "podmonitor.metricRelabelings": `[]`,
	"servicemonitor.enabled": `false`, "servicemonitor.honorLabels": `true`, "servicemonitor.honorTimestamps": `true`,
	"servicemonitor.metricRelabelings": `[]`, "servicemonitor.relabelings": `[]`,
}

// valuesFile returns keys with values in JSON as a file of values, after changes.
func valuesFile(t *testing.T, keys map[string]string, changes map[string]string) string {
	t.Helper()
	all := make(map[string]any)
	for _, list := range []map[string]string{keys, changes} {
		for key, text := range list {
			var value any
			if err := json.Unmarshal([]byte(text), &value); err != nil {
				t.Fatalf("%s: %v", key, err)
			}
			at := all
			parts := strings.Split(key, ".")
			for _, part := range parts[:len(parts)-1] {
				next, ok := at[part].(map[string]any)
				if !ok {
					next = make(map[string]any)
					at[part] = next
				}
				at = next
			}
			at[parts[len(parts)-1]] = value
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestChartDeliveryhero: the chart accepts deliveryhero's own values, and they mean what they
// mean there.
func TestChartDeliveryhero(t *testing.T) {
	set, c, flags, corefile := renderAgent(t, valuesFile(t, deliveryhero, nil))
	want := map[string]string{
		"localip": "169.254.20.25,172.20.0.10", "basecorefile": "/etc/coredns/Corefile.base", "upstreamsvc": "kube-dns-upstream",
		"handover-dir": "/var/lib/nodens", "page": "127.0.0.1:8353", "takeover-service": "kube-dns",
	}
	if d := cmp.Diff(want, flags); d != "" {
		t.Errorf("arguments (-want +got):\n%s", d)
	}
	if u := set.Spec.UpdateStrategy.RollingUpdate; u.MaxUnavailable.String() != "10%" || u.MaxSurge.String() != "0" {
		t.Errorf("maxUnavailable %v and maxSurge %v, want 10%% and 0", u.MaxUnavailable, u.MaxSurge)
	}
	if add := c.SecurityContext.Capabilities.Add; len(add) != 2 {
		t.Errorf("capabilities %v, want NET_ADMIN and NET_BIND_SERVICE", add)
	}
	if b := blockOf(t, parse(t, corefile, flags), "."); b.Cache.Stale.For != 0 {
		t.Errorf("expired answers are used for %v, want not at all", b.Cache.Stale.For)
	}
}

// TestChartDeliveryheroKeys: a value of each key that the chart honours has its effect.
func TestChartDeliveryheroKeys(t *testing.T) {
	values := valuesFile(t, deliveryhero, map[string]string{
		"config.bindIp": `true`, "config.port.number": `5353`, "config.port.udp": `"d"`,
		"config.serveStale.enabled": `true`,
		"initContainers":            `[{"name": "first", "image": "first:1"}]`,
		"lifecycle":                 `{"preStop": {"sleep": {"seconds": 3}}}`,
		"resizePolicy":              `[{"resourceName": "cpu", "restartPolicy": "NotRequired"}]`,
		"serviceMonitor.enabled":    `true`, "serviceMonitor.namePrefix": `"stack"`,
		"nameOverride": `"cache"`,
	})
	set, c, flags, corefile := renderAgent(t, values)
	if first := set.Spec.Template.Spec.InitContainers; len(first) != 1 || first[0].Image != "first:1" {
		t.Errorf("init containers %v", first)
	}
	if c.Lifecycle == nil || c.Lifecycle.PreStop.Sleep == nil || c.Lifecycle.PreStop.Sleep.Seconds != 3 {
		t.Errorf("lifecycle %v", c.Lifecycle)
	}
	policy := []corev1.ContainerResizePolicy{{ResourceName: "cpu", RestartPolicy: "NotRequired"}}
	if d := cmp.Diff(policy, c.ResizePolicy); d != "" {
		t.Errorf("resizePolicy (-want +got):\n%s", d)
	}
	findObject[*unstructured.Unstructured](t, renderChart(t, values), "stack-cache")
	if set.Name != "cache" {
		t.Errorf("the DaemonSet's name is %s, want cache", set.Name)
	}
	b := blockOf(t, parse(t, corefile, flags), ".")
	if got := b.Listen[0].Port(); got != 53 {
		t.Errorf("the agent listens on port %d, want 53", got)
	}
	if b.Cache.Stale.For.Hours() != 1 {
		t.Errorf("expired answers are used for %v, want 1h", b.Cache.Stale.For)
	}
}

// TestChartLablabs: the chart accepts lablabs' own values except for its zones, and they mean
// what they mean there.
func TestChartLablabs(t *testing.T) {
	values := valuesFile(t, lablabs, map[string]string{
		"config.kubeDnsIp": `"10.96.0.10"`, "image.args.setupIptables": `true`, "image.args.healthPort": `8090`, "image.args.interfaceName": `"dns0"`,
		"metrics.prometheusScrape": `"false"`, "metrics.port": `9300`, "servicemonitor.enabled": `true`, "image.args.upstreamSvc": `"kube-dns-upstream"`,
	})
	set, c, flags, corefile := renderAgent(t, values)
	want := map[string]string{
		"localip": "169.254.20.11,10.96.0.10", "basecorefile": "/etc/coredns/Corefile.base", "upstreamsvc": "kube-dns-upstream",
		"handover-dir": "/var/lib/nodens", "page": "127.0.0.1:8353", "takeover-service": "kube-dns", "skipteardown": "", "health-port": "8090", "interfacename": "dns0",
	}
	if d := cmp.Diff(want, flags); d != "" {
		t.Errorf("arguments (-want +got):\n%s", d)
	}
	b := blockOf(t, parse(t, corefile, flags), "cluster.local")
	if b.Health.Addr != "169.254.20.11:8090" || c.LivenessProbe.HTTPGet.Port.IntValue() != 8090 || b.Prometheus.Addr != ":9300" {
		t.Errorf("health is %v, the probe asks %v, metrics are at %v", b.Health, c.LivenessProbe.HTTPGet, b.Prometheus)
	}
	if set.Spec.Template.Annotations["prometheus.io/scrape"] != "" {
		t.Error("metrics.prometheusScrape has no effect")
	}
	monitor, _ := findObject[*unstructured.Unstructured](t, renderChart(t, values), "node-local-dns")
	if monitor.GetKind() != "ServiceMonitor" {
		t.Errorf("a %s, want a ServiceMonitor", monitor.GetKind())
	}
	for _, zones := range []string{`{".:53": {"plugins": {"errors": true}}}`, `[{"zone": ".:53"}]`} {
		_, err := templateChart(t, valuesFile(t, lablabs, map[string]string{"config.zones": zones}))
		if err == nil || !strings.Contains(err.Error(), "write additional zones into config.extraServerBlocks") {
			t.Errorf("%v, want an error that says where zones are", err)
		}
	}
}

// TestChartReusedValues: the chart renders without values that its first version did not have,
// and with the duration that serveStale was: helm upgrade --reuse-values keeps the defaults of
// the chart that was installed.
func TestChartReusedValues(t *testing.T) {
	const values = `
fullnameOverride: node-local-dns
nameOverride: null
image: {digest: null}
config: {serveStale: 1h, dnsService: null, dnsServer: 10.96.0.10}
updateStrategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
securityContext: null
lifecycle: null
resizePolicy: null
initContainers: null
serviceMonitor: {enabled: true, namePrefix: null}
prometheusRule: {enabled: true, runbookURL: null, labels: null}
`
	const same = "{config: {dnsService: '', dnsServer: 10.96.0.10}, serviceMonitor: {enabled: true}, prometheusRule: {enabled: true}}"
	compareObjects(t, renderChart(t, same), renderChart(t, values))
	chartNotes(t, values)
}

// TestChartWarnings: the notes name values that have no effect, or a surprising one, and no
// others.
func TestChartWarnings(t *testing.T) {
	tests := []struct {
		name, values string
		want         []string // starts of the warnings
	}{
		{"defaults", "{}", nil},
		{"deliveryhero", valuesFile(t, deliveryhero, nil), []string{"image.repository=registry.k8s.io/dns/k8s-dns-node-cache is NodeLocal", "config.bindIp=false", "updateStrategy.rollingUpdate.maxUnavailable=10%"}},
		{"lablabs", valuesFile(t, lablabs, map[string]string{"useHostNetwork": `false`, "readinessProbe": `{"timeoutSeconds": 3}`}), []string{
			"image.repository=", "image.args.syncInterval", "image.args.quiet", "image.args.setupEbtables", "useHostNetwork=false", "readinessProbe",
			"servicemonitor.honorTimestamps", "updateStrategy.rollingUpdate.maxUnavailable=10%",
		}},
		{"bindIp", "config: {bindIp: true}", nil},
		{"port", "config: {port: {number: 5353, tcp: a}}", []string{"config.port.number=5353", "config.port.tcp and config.port.udp"}},
		{"lifecycle", "lifecycle: {preStop: {exec: {command: [sleep, '3']}}}", []string{"lifecycle.preStop.exec"}},
		{"takeover", "config: {dnsServer: 10.96.0.10}", nil},
		{"no rules", "config: {dnsServer: 10.96.0.10, setupIptables: false}", []string{"config.dnsServer has no effect: without rules"}},
		{"Cilium", "{config: {dnsServer: 10.96.0.10}, cilium: {localRedirect: true}}", []string{"config.dnsServer has no effect with cilium"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for line := range strings.Lines(chartNotes(t, tt.values)) {
				if text, ok := strings.CutPrefix(strings.TrimSpace(line), "WARNING: "); ok {
					got = append(got, text)
				}
			}
			for i, text := range got {
				if i < len(tt.want) && strings.HasPrefix(text, tt.want[i]) {
					got[i] = tt.want[i]
				}
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("warnings (-want +got):\n%s", d)
			}
		})
	}
}

// chartNotes returns the notes of an installation with these values. helm template does not
// print them, so the test renders a copy of the chart that has them in an object.
func chartNotes(t *testing.T, values string) string {
	t.Helper()
	dir := filepath.Join(tempDir(t), "chart")
	if err := os.CopyFS(dir, os.DirFS("chart")); err != nil {
		t.Fatal(err)
	}
	const object = "kind: Notes\napiVersion: v1\nnotes: {{ tpl (.Files.Get \"files/NOTES.txt\") . | toJson }}\n"
	err := errors.Join(
		os.Rename(filepath.Join(dir, "templates", "NOTES.txt"), filepath.Join(dir, "files", "NOTES.txt")),
		os.WriteFile(filepath.Join(dir, "templates", "notes.yaml"), []byte(object), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	out, err := templateFolder(t, dir, values)
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(out), "\nnotes: ")
	text, _, _ = strings.Cut(text, "\n")
	var notes string
	if err := json.Unmarshal([]byte(text), &notes); err != nil || !ok {
		t.Fatalf("no notes (%v) in:\n%s", err, out)
	}
	return notes
}
