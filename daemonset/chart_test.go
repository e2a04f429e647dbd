package daemonset

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/nodens-dns/nodens/internal/config"
)

// templateChart renders the chart with these values.
func templateChart(t *testing.T, values string) ([]byte, error) {
	t.Helper()
	return templateFolder(t, "chart", values)
}

// templateFolder renders the chart in a folder. helm needs the version of the cluster. It does
// not accept each file name, such as one with a comma or a percent sign.
func templateFolder(t *testing.T, dir, values string) ([]byte, error) {
	t.Helper()
	file := filepath.Join(tempDir(t), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	return runTool(t, "helm", "template", "any", dir, "--namespace", "kube-system", "--kube-version", "1.36.0", "--values", file)
}

// tempDir is t.TempDir without the test's name in the path.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nodens-chart-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// renderChart renders and decodes the chart, without the labels for helm.
func renderChart(t *testing.T, values string) []runtime.Object {
	t.Helper()
	text, err := templateChart(t, values)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := decodeObjects(text)
	if err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	for _, o := range objects {
		meta := o.(metav1.Object)
		marks := meta.GetLabels()
		for _, label := range []string{"name", "instance", "version", "managed-by"} {
			if marks["app.kubernetes.io/"+label] == "" {
				t.Errorf("%T %s has no label %s", o, meta.GetName(), label)
			}
			delete(marks, "app.kubernetes.io/"+label)
		}
		delete(marks, "helm.sh/chart")
		if len(marks) == 0 {
			marks = nil
		}
		meta.SetLabels(marks)
	}
	return objects
}

// TestChart: with these values the chart renders the objects of nodens.yaml and of the
// overlays.
func TestChart(t *testing.T) {
	tests := []struct{ overlay, values string }{
		{"link-local", ""},
		{"takeover", "config: {dnsServer: 10.96.0.10}"},
		{"nftables", "config: {netfilter: nftables}"},
		{"kernel-path", "config: {kernelPath: auto}"},
		{"dual-stack", "config: {localDns: '169.254.20.10,fd00:169:254:20::10', ipFamilyPolicy: PreferDualStack}"},
		{"host", "config: {hostListen: 169.254.20.11, hostResolver: auto}"},
		{"cilium", "cilium: {localRedirect: true}"},
		{"opt-in", "optIn: {enabled: true, clusterDns: 10.96.0.10}"},
		{"node-condition", "nodeCondition: {enabled: true}"},
		{"dns-policy", "dnsPolicies: {mode: open}"},
		{"first-rollout", "updateStrategy: {rollingUpdate: {maxUnavailable: 1}}"},
	}
	for _, tt := range tests {
		t.Run(tt.overlay, func(t *testing.T) {
			objects := renderChart(t, tt.values)
			compareObjects(t, renderOverlay(t, tt.overlay), objects)
			checkAccepted(t, objects)
		})
	}
}

// TestChartCleanup: the clean-up of the chart is that of daemonset/cleanup.yaml, in place of the agent.
func TestChartCleanup(t *testing.T) {
	want, err := decodeObjects(readFile(t, "cleanup.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	got := slices.DeleteFunc(renderChart(t, "cleanup: {enabled: true}"), func(o runtime.Object) bool { _, is := o.(*appsv1.DaemonSet); return !is })
	compareObjects(t, want, got)
	set, _ := findObject[*appsv1.DaemonSet](t, renderChart(t, "{cleanup: {enabled: true}, image: {repository: r, tag: '1'}, config: {localDns: 169.254.1.1, interfaceName: dns0}}"), "")
	clean := set.Spec.Template.Spec.InitContainers[0]
	if args := []string{"cleanup", "-localip", "169.254.1.1", "-handover-dir", "/var/lib/nodens", "-interfacename=dns0"}; !slices.Equal(clean.Args, args) || clean.Image != "r:1" {
		t.Errorf("image %s, arguments %q, want r:1 and %q", clean.Image, clean.Args, args)
	}
}

// TestChartResources: without resources there is no limit, of Go's runtime neither.
func TestChartResources(t *testing.T) {
	_, c, _, _ := renderAgent(t, "resources: null")
	if len(c.Resources.Limits) > 0 || c.Env[0].Name == "GOMEMLIMIT" {
		t.Errorf("resources %v, first variable %s", c.Resources, c.Env[0].Name)
	}
}

// TestChartKernelPath: on and off are what the flag takes, in YAML a boolean or a word. In
// a pod's own network there are no pods' links.
func TestChartKernelPath(t *testing.T) {
	compareObjects(t, renderOverlay(t, "link-local"), renderChart(t, "config: {kernelPath: off}"))
	compareObjects(t, renderOverlay(t, "cilium"), renderChart(t, "{cilium: {localRedirect: true}, config: {kernelPath: on}}"))
	for _, value := range []string{"on", `"on"`, "true"} {
		_, c, flags, _ := renderAgent(t, "config: {kernelPath: "+value+"}")
		if flags["kernel-path"] != "on" || !slices.Contains(c.SecurityContext.Capabilities.Add, "BPF") {
			t.Errorf("%s: -kernel-path=%s, capabilities %v", value, flags["kernel-path"], c.SecurityContext.Capabilities.Add)
		}
	}
}

// TestChartHost: the addresses may be a list, and off is a boolean in YAML. In a pod's own network there is no node.
func TestChartHost(t *testing.T) {
	_, _, flags, _ := renderAgent(t, "config: {hostListen: [169.254.20.11, 'fd00::11'], hostResolver: off}")
	if flags["host-listen"] != "169.254.20.11,fd00::11" || flags["host-resolver"] != "off" {
		t.Errorf("got %v", flags)
	}
	compareObjects(t, renderOverlay(t, "cilium"), renderChart(t, "{cilium: {localRedirect: true}, config: {hostListen: 169.254.20.11}}"))
}

// renderAgent is the chart's container with these values, its arguments, and the Corefile.
func renderAgent(t *testing.T, values string) (*appsv1.DaemonSet, *corev1.Container, map[string]string, string) {
	t.Helper()
	objects := renderChart(t, values)
	set, _ := findObject[*appsv1.DaemonSet](t, objects, "")
	maps, _ := findObject[*corev1.ConfigMap](t, objects, "")
	c := &set.Spec.Template.Spec.Containers[0]
	return set, c, flagsOf(t, c.Args), maps.Data["Corefile"]
}

// TestChartPage: the page's address, and off in both ways of writing it.
func TestChartPage(t *testing.T) {
	for value, want := range map[string]string{`"[::1]:9000"`: "[::1]:9000", `"off"`: "", "off": ""} {
		if _, _, flags, _ := renderAgent(t, "config: {page: "+value+"}"); flags["page"] != want {
			t.Errorf("page %s: -page is %q, want %q", value, flags["page"], want)
		}
	}
}

// TestChartKnown: a file of values for the known charts of NodeLocal DNSCache is taken,
// and means what it means there.
func TestChartKnown(t *testing.T) {
	text, err := os.ReadFile("testdata/chart/known.yaml")
	if err != nil {
		t.Fatal(err)
	}
	set, c, flags, corefile := renderAgent(t, string(text))
	conf := parse(t, corefile, flags)
	want := map[string]string{
		// Without rules nothing leads to dnsServer's address, there as here.
		"localip": "169.254.20.25", "basecorefile": "/etc/coredns/Corefile.base", "upstreamsvc": "kube-dns-upstream",
		"handover-dir": "/var/lib/nodens", "page": "127.0.0.1:8353", "health-port": "8090", "interfacename": "dns0", "setupiptables": "false",
	}
	if d := cmp.Diff(want, flags); d != "" {
		t.Errorf("arguments (-want +got):\n%s", d)
	}
	b, rest := blockOf(t, conf, "corp.example"), blockOf(t, conf, ".")
	if b.Health == nil || b.Health.Addr != "169.254.20.25:8090" || c.LivenessProbe.HTTPGet.Port.String() != "8090" || c.LivenessProbe.HTTPGet.Host != "169.254.20.25" {
		t.Errorf("health is %v, the probe asks %v", b.Health, c.LivenessProbe.HTTPGet)
	}
	if b.Forward.ForceTCP || !b.Forward.PreferUDP {
		t.Error("commProtocol is not prefer_udp")
	}
	if b.Log == nil || rest.Log == nil || b.Template == nil || b.Cache.Prefetch != (config.Prefetch{Amount: 5, Within: time.Minute, Percent: 10}) {
		t.Errorf("log %v, templates %v, prefetch %v: want all of them", b.Log, b.Template, b.Cache.Prefetch)
	}
	if seconds := rest.Cache.Success.MaxTTL.Seconds(); seconds != 60 {
		t.Errorf("answers are kept for %v s, want 60", seconds)
	}
	if d := cmp.Diff([]string{"192.0.2.1:53", "192.0.2.2:53"}, stringsOf(rest.Forward.To)); d != "" {
		t.Errorf("the rest goes to (-want +got):\n%s", d)
	}
	blockOf(t, conf, "other.example")
	if c.Image != "mirror.example/nodens:1.2.3" || c.Env[0].Value != "100MiB" {
		t.Errorf("image %s, GOMEMLIMIT %s: want 25/32 of 128 MiB", c.Image, c.Env[0].Value)
	}
	marks := []string{set.Annotations["a"], set.Labels["b"], set.Spec.Template.Annotations["c"], set.Spec.Template.Labels["d"]}
	if !slices.Equal(marks, []string{"1", "2", "3", "4"}) {
		t.Errorf("labels and annotations %q", marks)
	}
	if set.Spec.Template.Annotations["prometheus.io/scrape"] != "" {
		t.Error("annotations and ServiceMonitor: every agent is scraped twice")
	}
	monitor, _ := findObject[*unstructured.Unstructured](t, renderChart(t, string(text)), "node-local-dns")
	if got := monitor.GetNamespace(); got != "monitoring" {
		t.Errorf("the ServiceMonitor is in namespace %s", got)
	}
}

// Without the directive there are no rights, and no autopath; a Corefile of one's own is taken as it is.
func TestChartWithoutView(t *testing.T) {
	objects := renderChart(t, "config: {kubernetes: false}")
	maps, _ := findObject[*corev1.ConfigMap](t, objects, "")
	if strings.Contains(maps.Data["Corefile"], "kubernetes") {
		t.Error("the Corefile has the directive")
	}
	if len(objects) != 5 {
		t.Errorf("%d objects, want 5: all but the role and its binding", len(objects))
	}
	maps, _ = findObject[*corev1.ConfigMap](t, renderChart(t, "config: {autopath: true, dnsDomain: corp.example}"), "")
	if !strings.Contains(maps.Data["Corefile"], "\n    autopath corp.example @kubernetes\n    kubernetes corp.example ") {
		t.Errorf("with config.autopath the Corefile is\n%s", maps.Data["Corefile"])
	}
	maps, _ = findObject[*corev1.ConfigMap](t, renderChart(t, "config: {autopath: true, kubernetes: false}"), "")
	if strings.Contains(maps.Data["Corefile"], "autopath") {
		t.Error("the Corefile has autopath without kubernetes")
	}
	_, _, _, corefile := renderAgent(t, "config: {customConfig: \".:53 {\\n    whoami\\n}\"}")
	if want := ".:53 {\n    whoami\n}\n"; corefile != want {
		t.Errorf("the Corefile is %q, want %q", corefile, want)
	}
}

// TestChartRefuses: the error names the value.
func TestChartRefuses(t *testing.T) {
	tests := []struct{ name, values, want string }{
		{"a name that is not", "config: {localDNS: 169.254.20.10}", "'localDNS' not allowed"},
		{"at the top", "hostNetwork: true", "'hostNetwork' not allowed"},
		{"no address", "config: {localDns: here}", "/config/localDns"},
		{"spaces in a list", "config: {localDns: '169.254.20.10, 10.96.0.10'}", "/config/localDns"},
		{"no port", "config: {healthPort: 80800}", "/config/healthPort"},
		{"text for yes or no", "config: {setupInterface: 'yes'}", "/config/setupInterface"},
		{"another protocol", "config: {commProtocol: udp}", "/config/commProtocol"},
		{"another netfilter", "config: {netfilter: ipvs}", "/config/netfilter"},
		{"a kernel path that is not", "config: {kernelPath: maybe}", "/config/kernelPath"},
		{"no address for the node", "config: {hostListen: here}", "/config/hostListen"},
		{"another way with the node's files", "config: {hostResolver: on}", "/config/hostResolver"},
		{"a page for other hosts", `config: {page: "0.0.0.0:8353"}`, "/config/page"},
		{"no duration", "config: {serveStale: {duration: 1 hour}}", "/config/serveStale/duration"},
		{"no duration for stale answers", "config: {serveStale: 1 hour}", "/config/serveStale"},
		{"no digest", "image: {digest: 'sha256:12'}", "/image/digest"},
		{"no percentage", "config: {prefetch: {percentage: 20}}", "/config/prefetch/percentage"},
		{"no DNS pods", "config: {upstreamServiceSelector: {k8s-app: null}}", "/config/upstreamServiceSelector"},
		{"another strategy", "updateStrategy: {type: Recreate}", "/updateStrategy/type"},
		{"no second server", "optIn: {enabled: true}", "optIn.clusterDns"},
		{"two second servers", "optIn: {enabled: true, clusterDns: '10.96.0.10,fd00::a'}", "optIn.clusterDns"},
		{"no name of a domain", "optIn: {searches: ['a b']}", "/optIn/searches"},
		{"text for ndots", "optIn: {ndots: '5'}", "/optIn/ndots"},
		{"opt-in to an agent in a pod's network", "{optIn: {enabled: true, clusterDns: 10.96.0.10}, cilium: {localRedirect: true}}", "cilium.localRedirect"},
		{"Go's memory in the API's units", "goMemLimit: 200Mi", "/goMemLimit"},
		{"a name that no Service may have", "fullnameOverride: a.b", "/fullnameOverride"},
		{"a class with a colon", "priorityClassName: 'a: b'", "/priorityClassName"},
		{"an interface with a colon", "config: {interfaceName: 'dns:'}", "/config/interfaceName"},
		{"no namespace", "networkPolicy: {namespaces: [A_b]}", "/networkPolicy/namespaces/0"},
		{"a label with a colon", "dashboard: {label: 'a: b'}", "/dashboard/label"},
		{"a path with a space", "serviceMonitor: {path: '/a: b'}", "/serviceMonitor/path"},
		{"the label of the selector", "podLabels: {k8s-app: dns}", "/podLabels/k8s-app"},
		{"no port of the page", "config: {page: '127.0.0.1:99999'}", "/config/page"},
		{"null for a part", "podMonitor: null", "'podMonitor'"},
		{"null for a setting", "config: {page: null}", "'page'"},
		{"null for the image", "image: {repository: null}", "'repository'"},
		{"null for a duration", "config: {serveStale: {duration: null}}", "'duration'"},
		{"null for an amount", "config: {prefetch: {amount: null}}", "'amount'"},
		{"null for the resolver", "config: {hostResolver: null}", "'hostResolver'"},
		{"null for a mode", "dnsPolicies: {mode: null}", "'mode'"},
		{"null for the second server", "optIn: {clusterDns: null}", "'clusterDns'"},
		{"null for a label", "dashboard: {label: null}", "'label'"},
		{"a variable without a name", "extraEnv: [{value: x}]", "/extraEnv/0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := templateChart(t, tt.values); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want an error with %s", err, tt.want)
			}
		})
	}
	_, err := runTool(t, "helm", "template", "any", "chart", "--kube-version", "1.36.0")
	if err == nil || !strings.Contains(err.Error(), "-n kube-system") {
		t.Errorf("in the namespace default: %v, want an error that says where to", err)
	}
}

// TestChartSchema: schema and default values have the same names.
func TestChartSchema(t *testing.T) {
	var values, schema map[string]any
	for file, into := range map[string]*map[string]any{"chart/values.yaml": &values, "chart/values.schema.json": &schema} {
		text, err := os.ReadFile(file)
		if err == nil {
			text, err = yaml.ToJSON(text)
		}
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	// Helm puts global into every chart's values; described ones are of other charts; the rest
	// may be left out.
	optional := []string{"/global", "/resources/claims", "/updateStrategy/rollingUpdate/maxSurge", "/updateStrategy/rollingUpdate/maxUnavailable"}
	for key := range describedValues(nil, schema) {
		optional = append(optional, "/"+strings.ReplaceAll(key, ".", "/"))
	}
	checkSchema(t, "", schema, values, optional)
	if out, err := runTool(t, "helm", "lint", "--strict", "chart", "--namespace", "kube-system"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func checkSchema(t *testing.T, at string, schema, values map[string]any, optional []string) {
	t.Helper()
	properties, _ := schema["properties"].(map[string]any)
	if properties == nil {
		return
	}
	if schema["additionalProperties"] != false {
		t.Errorf("%s: names that are not known are taken", at)
	}
	for name, inner := range properties {
		path := at + "/" + name
		value, ok := values[name]
		if !ok && !slices.Contains(optional, path) {
			t.Errorf("values.yaml has no %s", path)
		}
		if next, ok := value.(map[string]any); ok {
			checkSchema(t, path, inner.(map[string]any), next, optional)
		}
	}
	for name := range values {
		if properties[name] == nil {
			t.Errorf("the schema has no %s/%s", at, name)
		}
	}
}

// TestChartMonitoring: what the chart has for Prometheus and Grafana is what stands in
// daemonset/monitoring.
func TestChartMonitoring(t *testing.T) {
	objects := renderChart(t, "podMonitor: {enabled: true, labels: {release: p}}\nprometheusRule: {enabled: true}\ndashboard: {enabled: true, namespace: grafana}")
	var want []runtime.Object
	for _, name := range []string{"podmonitor.yaml", "rules.yaml"} {
		text, err := os.ReadFile(filepath.Join("monitoring", name))
		if err != nil {
			t.Fatal(err)
		}
		list, err := decodeObjects(text)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, list...)
	}
	want[0].(metav1.Object).SetLabels(map[string]string{"k8s-app": "node-local-dns", "release": "p"})
	var got []runtime.Object
	for _, o := range objects {
		if _, ok := o.(*unstructured.Unstructured); ok {
			got = append(got, o)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("objects (-monitoring +chart):\n%s", d)
	}
	text, err := os.ReadFile("monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	board, _ := findObject[*corev1.ConfigMap](t, objects, "node-local-dns-dashboard")
	if strings.TrimSpace(board.Data["nodens.json"]) != strings.TrimSpace(string(text)) {
		t.Error("the dashboard is not that of daemonset/monitoring")
	}
	if board.Namespace != "grafana" || board.Labels["grafana_dashboard"] != "1" {
		t.Errorf("the dashboard is in namespace %s with the labels %v", board.Namespace, board.Labels)
	}
	if set, _ := findObject[*appsv1.DaemonSet](t, objects, ""); set.Spec.Template.Annotations["prometheus.io/scrape"] != "" {
		t.Error("annotations and PodMonitor: every agent is scraped twice")
	}
}

// TestNetworkPolicy: the plain policy is the chart's, and names where the agent and the
// cluster's DNS are.
func TestNetworkPolicy(t *testing.T) {
	text, err := os.ReadFile("network-policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	plain, err := decodeObjects(text)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := findObject[*networkingv1.NetworkPolicy](t, plain, "")
	want.Namespace = "shop"
	got, _ := findObject[*networkingv1.NetworkPolicy](t, renderChart(t, "networkPolicy: {enabled: true, namespaces: [shop]}"), "")
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("network-policy.yaml and the chart's (-file +chart):\n%s", d)
	}
	var blocks []string
	objects := renderChart(t, "networkPolicy: {enabled: true, namespaces: [shop]}\nconfig: {localDns: '169.254.20.10,fd00::10', dnsServer: 10.96.0.10}")
	both, _ := findObject[*networkingv1.NetworkPolicy](t, objects, "")
	for _, to := range both.Spec.Egress[0].To {
		if to.IPBlock != nil {
			blocks = append(blocks, to.IPBlock.CIDR)
		}
	}
	if d := cmp.Diff([]string{localIP + "/32", "fd00::10/128", kubeDNS + "/32"}, blocks); d != "" {
		t.Errorf("addresses (-want +got):\n%s", d)
	}
}

// TestNetworkPolicyOfPods: an agent with a pod's network may be asked and may ask.
func TestNetworkPolicyOfPods(t *testing.T) {
	objects := renderChart(t, "networkPolicy: {enabled: true}\ncilium: {localRedirect: true}")
	policy, _ := findObject[*networkingv1.NetworkPolicy](t, objects, "")
	set, _ := findObject[*appsv1.DaemonSet](t, objects, "")
	if d := cmp.Diff(set.Spec.Selector.MatchLabels, policy.Spec.PodSelector.MatchLabels); d != "" {
		t.Errorf("its pods (-agent +policy):\n%s", d)
	}
	open := make(map[string]bool)
	for _, p := range policy.Spec.Ingress[0].Ports {
		open[p.Port.String()+string(*p.Protocol)] = true
	}
	for _, p := range []string{"53UDP", "53TCP", "9253TCP", "8080TCP", "8181TCP"} {
		if !open[p] {
			t.Errorf("%s is shut", p)
		}
	}
	if len(policy.Spec.Egress) != 1 || len(policy.Spec.Egress[0].To) != 0 {
		t.Errorf("it may send to %v, want anywhere", policy.Spec.Egress)
	}
}
