package daemonset

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestChartUpdateStrategy: each strategy is one that Kubernetes accepts, where exactly one of
// maxSurge and maxUnavailable is 0 (ValidateRollingUpdateDaemonSet), or an error.
func TestChartUpdateStrategy(t *testing.T) {
	const refused = "Kubernetes refuses maxSurge %s beside maxUnavailable %s"
	tests := []struct {
		values string
		want   string // maxSurge and maxUnavailable, or the error
		fails  bool
	}{
		{"{}", "1 0", false},
		{"{maxSurge: 2}", "2 0", false},
		{"{maxSurge: 100%}", "100% 0", false},
		{"{maxSurge: 0}", "0 1", false},
		{"{maxSurge: 0%}", "0% 1", false},
		{"{maxUnavailable: 10%}", "0 10%", false},
		{"{maxUnavailable: 0}", "1 0", false},
		{"{maxSurge: null, maxUnavailable: 3}", "0 3", false},
		{"{maxSurge: 0, maxUnavailable: 10%}", "0 10%", false},
		{"{maxSurge: 5%, maxUnavailable: 0%}", "5% 0%", false},
		{"null", "1 0", false},
		{"{maxSurge: 1, maxUnavailable: 10%}", fmt.Sprintf(refused, "1", "10%"), true},
		{"{maxSurge: 1%, maxUnavailable: 1}", fmt.Sprintf(refused, "1%", "1"), true},
		{"{maxSurge: 0, maxUnavailable: 0}", fmt.Sprintf(refused, "0", "0"), true},
		{"{maxSurge: 0%, maxUnavailable: 0}", fmt.Sprintf(refused, "0%", "0"), true},
		{"{maxSurge: 101%}", "/updateStrategy/rollingUpdate/maxSurge", true},
		{"{maxUnavailable: -1}", "/updateStrategy/rollingUpdate/maxUnavailable", true},
		{"{maxUnavailable: '1'}", "/updateStrategy/rollingUpdate/maxUnavailable", true},
		{"{maxUnavailable: some}", "/updateStrategy/rollingUpdate/maxUnavailable", true},
	}
	for _, tt := range tests {
		t.Run(tt.values, func(t *testing.T) {
			values := "updateStrategy: {rollingUpdate: " + tt.values + "}"
			if tt.fails {
				if _, err := templateChart(t, values); err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%v, want an error with %s", err, tt.want)
				}
				return
			}
			set, _, _, _ := renderAgent(t, values)
			u := set.Spec.UpdateStrategy.RollingUpdate
			if u == nil || u.MaxSurge == nil || u.MaxUnavailable == nil {
				t.Fatalf("rolling update %v", u)
			}
			if got := u.MaxSurge.String() + " " + u.MaxUnavailable.String(); got != tt.want {
				t.Errorf("maxSurge and maxUnavailable are %s, want %s", got, tt.want)
			}
		})
	}
	set, _, _, _ := renderAgent(t, "updateStrategy: {type: OnDelete}")
	if u := set.Spec.UpdateStrategy; u.Type != "OnDelete" || u.RollingUpdate != nil {
		t.Errorf("the strategy is %v, want OnDelete", u)
	}
}

// TestChartComparison: the startup probe waits for the comparison.
func TestChartComparison(t *testing.T) {
	for seconds, want := range map[int]string{60: "", 5: "-handover-compare=5s", 600: "-handover-compare=600s", 0: "-handover-compare=0s"} {
		set, _, _, _ := renderAgent(t, fmt.Sprintf("handoverCompareSeconds: %d", seconds))
		c := set.Spec.Template.Spec.Containers[0]
		i := slices.IndexFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, "-handover-compare") })
		if i < 0 && want != "" || i >= 0 && c.Args[i] != want {
			t.Errorf("handoverCompareSeconds: %d gives %q, want %q", seconds, c.Args, want)
		}
		if got := int(c.StartupProbe.PeriodSeconds * c.StartupProbe.FailureThreshold); got < seconds+startSeconds {
			t.Errorf("handoverCompareSeconds: %d gives the agent %d s to start, want %d s more than the comparison", seconds, got, startSeconds)
		}
	}
	for _, value := range []string{"4", "601", "-1", "1m"} {
		if _, err := templateChart(t, "handoverCompareSeconds: "+value); err == nil || !strings.Contains(err.Error(), "handoverCompareSeconds") {
			t.Errorf("handoverCompareSeconds: %s: %v, want an error", value, err)
		}
	}
}

// TestChartAddresses: addresses are checked, as text with commas and as lists.
func TestChartAddresses(t *testing.T) {
	all := []string{"10.96.0.10", "255.249.199.0", "fd00::a", "::1", "fe80::", "2001:db8:0:0:0:0:0:a", "2001:db8:1:2:3:4:5::", "::2:3:4:5:6:7:8"}
	text := strings.Join(all, ",")
	for _, values := range []string{"'" + text + "'", "['" + strings.Join(all, "', '") + "']"} {
		if _, _, flags, _ := renderAgent(t, "config: {dnsServer: "+values+"}"); flags["localip"] != localIP+","+text {
			t.Errorf("%s: -localip %s, want all of them", values, flags["localip"])
		}
	}
	_, c, flags, _ := renderAgent(t, "config: {localDns: ['fd00::10', 169.254.20.10], dnsServer: []}")
	if flags["localip"] != "fd00::10,169.254.20.10" || c.ReadinessProbe.HTTPGet.Host != "fd00::10" {
		t.Errorf("-localip %s, probes ask %s", flags["localip"], c.ReadinessProbe.HTTPGet.Host)
	}
	for _, value := range []string{"''", "[]"} {
		if _, err := templateChart(t, "config: {localDns: "+value+"}"); err == nil || !strings.Contains(err.Error(), "/config/localDns") {
			t.Errorf("localDns %s: %v, want an error", value, err)
		}
	}
}

// TestChartAddressErrors: the error names the setting and the value.
func TestChartAddressErrors(t *testing.T) {
	tests := []struct{ value, bad string }{
		{"10.96.0.300", "10.96.0.300"},
		{"10.96.0", "10.96.0"},
		{"10.96.0.010", "10.96.0.010"},
		{"[10.96.0.10, 10.96.0.300]", "10.96.0.300"},
		{"'10.96.0.10,10.96.0.300'", "10.96.0.300"},
		{"'10.96.0.10, 10.96.0.11'", "10.96.0.11"},
		{"'10.96.0.10,'", "10.96.0.10,"},
		{"kube-dns", "kube-dns"},
		{"'fd00::1::2'", "fd00::1::2"},
		{"'fd00:1:2:3:4:5:6'", "fd00:1:2:3:4:5:6"},
		{"'1:2:3:4:5:6:7:8:9'", "1:2:3:4:5:6:7:8:9"},
		{"'1:2:3:4::5:6:7:8'", "1:2:3:4::5:6:7:8"},
		{"'fd00:::1'", "fd00:::1"},
		{"':1::2'", ":1::2"},
		{"'1:2:3:4:5:6:7:'", "1:2:3:4:5:6:7:"},
		{"'fd00::12345'", "fd00::12345"},
		{"'fd00::g'", "fd00::g"},
	}
	for _, tt := range tests {
		t.Run(tt.value, func(t *testing.T) {
			_, err := templateChart(t, "config: {dnsServer: "+tt.value+"}")
			if err == nil || !strings.Contains(err.Error(), tt.bad) || !strings.Contains(err.Error(), "dnsServer") {
				t.Errorf("%v, want an error with dnsServer and %s", err, tt.bad)
			}
		})
	}
}

// TestChartSecurityContext: capabilities are added to the agent's, other settings replace its
// own, and the result is one that Kubernetes accepts.
func TestChartSecurityContext(t *testing.T) {
	_, usual, _, _ := renderAgent(t, "")
	_, c, _, _ := renderAgent(t, "securityContext: {capabilities: {add: [NET_ADMIN, NET_RAW]}, seLinuxOptions: {level: 's0:c1'}}")
	want := usual.SecurityContext.DeepCopy()
	want.Capabilities.Add = append(want.Capabilities.Add, "NET_RAW")
	want.SELinuxOptions = &corev1.SELinuxOptions{Level: "s0:c1"}
	if d := cmp.Diff(want, c.SecurityContext); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for _, values := range []string{"{privileged: true}", "{capabilities: {add: [SYS_ADMIN]}}", "{capabilities: {add: [CAP_SYS_ADMIN]}}"} {
		if _, c, _, _ := renderAgent(t, "securityContext: "+values); c.SecurityContext.AllowPrivilegeEscalation != nil {
			t.Errorf("%s: Kubernetes refuses allowPrivilegeEscalation beside it", values)
		}
	}
	if _, c, _, _ = renderAgent(t, "securityContext: {capabilities: null}"); !cmp.Equal(c.SecurityContext, usual.SecurityContext) {
		t.Errorf("capabilities null: %v, want the chart's", c.SecurityContext)
	}
	_, c, _, _ = renderAgent(t, "{securityContext: {runAsUser: 7}, cilium: {localRedirect: true}}")
	if got := c.SecurityContext.RunAsUser; got == nil || *got != 7 {
		t.Errorf("runAsUser %v, want 7", got)
	}
}

// TestChartImage: a digest stands in place of the tag.
func TestChartImage(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	for values, want := range map[string]string{
		"{repository: r.example/n}":  "r.example/n:0.1.0",
		"{tag: '2'}":                 "nodens:2",
		"{digest: '" + digest + "'}": "nodens@" + digest,
	} {
		if _, c, _, _ := renderAgent(t, "image: "+values); c.Image != want {
			t.Errorf("%s: the image is %s, want %s", values, c.Image, want)
		}
	}
}

// TestChartNames: fullnameOverride names the objects, or else nameOverride, which is in the
// labels as well.
func TestChartNames(t *testing.T) {
	for values, want := range map[string][2]string{
		"{}":                     {"node-local-dns", "nodens"},
		"{nameOverride: dns}":    {"dns", "dns"},
		"{fullnameOverride: fu}": {"fu", "nodens"},
		"{nameOverride: dns, fullnameOverride: fu}": {"fu", "dns"},
	} {
		text, err := templateChart(t, values)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := decodeObjects(text)
		if err != nil {
			t.Fatal(err)
		}
		set, _ := findObject[*appsv1.DaemonSet](t, objects, "")
		if got := [2]string{set.Name, set.Labels["app.kubernetes.io/name"]}; got != want {
			t.Errorf("%s: name and label %v, want %v", values, got, want)
		}
		if got := set.Spec.Selector.MatchLabels["k8s-app"]; got != "node-local-dns" {
			t.Errorf("%s: the selector is %s; Kubernetes refuses to change it", values, got)
		}
	}
}

// TestChartRunbook: the runbook of each alert is on the page that the value names.
func TestChartRunbook(t *testing.T) {
	text, err := templateChart(t, "prometheusRule: {enabled: true, runbookURL: 'https://wiki.example/dns'}")
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Count(string(readFile(t, "monitoring/rules.yaml")), " runbook_url: ")
	if got := strings.Count(string(text), " runbook_url: https://wiki.example/dns#nodens"); got != want || want == 0 {
		t.Errorf("%d alerts lead there, want %d", got, want)
	}
}

// TestChartTexts: values that YAML takes for something else than text stay text.
func TestChartTexts(t *testing.T) {
	objects := renderChart(t, `
fullnameOverride: "123"
nameOverride: "true"
serviceAccount: {name: "1e3"}
config: {customUpstreamsvc: "456"}
goMemLimit: "268435456"
networkPolicy: {enabled: true, namespaces: ["789"]}
`)
	set, _ := findObject[*appsv1.DaemonSet](t, objects, "")
	pod := set.Spec.Template.Spec
	if got := pod.ServiceAccountName; got != "1e3" {
		t.Errorf("the service account is %q", got)
	}
	if args := pod.Containers[0].Args; !slices.Contains(args, "456") {
		t.Errorf("%q do not have the name of the Service", args)
	}
}

// TestChartForwardOptions: numbers and options without arguments are as the Corefile has them.
func TestChartForwardOptions(t *testing.T) {
	_, _, _, corefile := renderAgent(t, "config: {upstreamForwardConfig: {force_tcp: true, prefer_udp: false, max_concurrent: 1000000, policy: sequential}}")
	for _, line := range []string{"force_tcp", "max_concurrent 1000000", "policy sequential"} {
		if !strings.Contains(corefile, "\n        "+line+"\n") {
			t.Errorf("no line %q in\n%s", line, corefile)
		}
	}
	if strings.Contains(corefile, "prefer_udp") {
		t.Errorf("an option that is false is in\n%s", corefile)
	}
}

// TestChartEnv: a variable of extraEnv replaces the chart's.
func TestChartEnv(t *testing.T) {
	_, c, _, _ := renderAgent(t, `extraEnv: [{name: GOMEMLIMIT, value: 1GiB}, {name: NODE_NAME, value: a}, {name: NODE_ZONE, value: b}, {name: POD_UID, value: c}]`)
	var got []string
	for _, e := range c.Env {
		got = append(got, e.Name+"="+e.Value)
	}
	if want := []string{"GOMEMLIMIT=1GiB", "NODE_NAME=a", "NODE_ZONE=b", "POD_UID=c"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestChartBuild: a version with build metadata, as Flux makes of a Git revision, is a valid label.
func TestChartBuild(t *testing.T) {
	dir := tempDir(t)
	if out, err := runTool(t, "helm", "package", "chart", "--version", "0.1.0+abc", "--destination", dir); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := templateFolder(t, filepath.Join(dir, "nodens-0.1.0+abc.tgz"), "")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := decodeObjects(text)
	if err != nil {
		t.Fatal(err)
	}
	set, _ := findObject[*appsv1.DaemonSet](t, objects, "")
	if got := set.Labels["helm.sh/chart"]; got != "nodens-0.1.0_abc" {
		t.Errorf("the label is %q; Kubernetes refuses a plus sign", got)
	}
}

// TestChartDuplicates: a label or an annotation that the chart has, too, is rendered once, with the given value: kustomize
// and Flux refuse keys that are there twice.
func TestChartDuplicates(t *testing.T) {
	text, err := templateChart(t, `
daemonsetLabels: {app.kubernetes.io/version: mine, k8s-app: node-local-dns}
podLabels: {k8s-app: node-local-dns}
podAnnotations: {prometheus.io/scrape: "false"}
configMapLabels: {app.kubernetes.io/version: mine}
service: {annotations: {prometheus.io/port: "1"}}
`)
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var object any
		if err := yaml.UnmarshalStrict([]byte(document), &object); err != nil {
			t.Errorf("%v in:\n%s", err, document)
		}
	}
	objects, err := decodeObjects(text)
	if err != nil {
		t.Fatal(err)
	}
	set, _ := findObject[*appsv1.DaemonSet](t, objects, "")
	if set.Labels["app.kubernetes.io/version"] != "mine" || set.Spec.Template.Annotations["prometheus.io/scrape"] != "false" {
		t.Errorf("labels %v, annotations of pods %v", set.Labels, set.Spec.Template.Annotations)
	}
}
