package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// TestMigrateDiff: the files with the diff applied have the objects that migrate prints, in both steps, and all other lines.
func TestMigrateDiff(t *testing.T) {
	patch, err := exec.LookPath("patch")
	if err != nil {
		t.Skip("the program patch is missing")
	}
	for _, file := range []string{
		"../../test/e2e/testdata/nodelocaldns.yaml", "testdata/migrate/chart.yaml", "testdata/migrate/kubespray.yaml", "testdata/migrate/pod-network.yaml",
	} {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			check.NoError(t, err)
			was := filepath.Join(t.TempDir(), "dns.yaml")
			agenttest.WriteFile(t, was, "# a comment at the start\n"+string(text))
			for range 2 {
				manifest, _ := migrated(t, "-f", was)
				diff, _ := migrated(t, "--diff", "-f", was)
				cmd := exec.CommandContext(t.Context(), patch, "-p0", "--posix", was)
				cmd.Stdin = strings.NewReader(diff)
				before, _ := os.ReadFile(was)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v: %s\n%s", err, out, diff)
				}
				after, _ := os.ReadFile(was)
				want, got := yamlObjects(t, manifest), yamlObjects(t, string(after))
				for name := range want {
					if d := cmp.Diff(want[name], got[name]); d != "" {
						t.Errorf("%s (-migrate +file):\n%s\n%s", name, d, diff)
					}
				}
				removed := 0
				for line := range strings.Lines(diff) {
					if strings.HasPrefix(line, "-") && !strings.HasPrefix(line, "---") {
						removed++
					}
				}
				if lines := bytes.Count(before, []byte("\n")); removed > lines/4 {
					t.Errorf("the diff removes %d of %d lines:\n%s", removed, lines, diff)
				}
			}
		})
	}
}

// yamlObjects returns the objects of documents and lists by kind and name.
func yamlObjects(t *testing.T, text string) map[string]any {
	t.Helper()
	list := make(map[string]any)
	var add func(obj map[string]any)
	add = func(obj map[string]any) {
		if items, ok := obj["items"].([]any); ok {
			for _, item := range items {
				add(item.(map[string]any))
			}
			return
		}
		if metadata, ok := obj["metadata"].(map[string]any); ok {
			list[obj["kind"].(string)+" "+metadata["name"].(string)] = obj
		}
	}
	for doc := range strings.SplitSeq(text, "\n---") {
		var obj map[string]any
		if err := yaml.Unmarshal([]byte(doc+"\n"), &obj); err != nil {
			t.Fatalf("%v in:\n%s", err, doc)
		}
		add(obj)
	}
	return list
}

// TestMigrateDiffLayout: comments, order, quotes and flow style stay where nothing changes.
func TestMigrateDiffLayout(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dns.yaml")
	agenttest.WriteFile(t, file, strings.NewReplacer("VERSION", "apps/v1", "NAMESPACE", "namespace: kube-system", "LABELS", "c: d", ", SAVED", "", "STATUS\n", "", "IMMUTABLE", "false",
		"DOMAIN", "cluster.local", "SELECTOR", "selector: {matchLabels: {a: b}} # why", "image: old", "image: 'old' # ours").Replace(migrateManifest))
	diff, _ := migrated(t, "--diff", "-f", file)
	hasTexts(t, diff,
		"-        image: 'old' # ours\n", "+        image: example.test/nodens:1 # ours\n", "+        startupProbe:\n", "+      serviceAccountName: node-local-dns\n", "+kind: ServiceAccount\n",
	)
	for _, not := range []string{"-  selector", "-metadata", "-      hostNetwork", "-      - name"} {
		if strings.Contains(diff, "\n"+not) {
			t.Errorf("the diff changes %q:\n%s", not, diff)
		}
	}
	if code := run(t.Context(), []string{"migrate", "--diff"}, new(bytes.Buffer), new(bytes.Buffer)); code != exitUsage {
		t.Errorf("--diff without files: exit code %d", code)
	}
}

// TestMigrateHelmValues: the values have names that the chart knows, and the Corefile answers what its probes ask.
func TestMigrateHelmValues(t *testing.T) {
	text, err := os.ReadFile("../../daemonset/chart/values.yaml")
	check.NoError(t, err)
	var known, values map[string]any
	check.NoError(t, yaml.Unmarshal(text, &known))
	for _, file := range []string{"../../test/e2e/testdata/nodelocaldns.yaml", "testdata/migrate/chart.yaml", "testdata/migrate/kubespray.yaml"} {
		got, _ := migrated(t, "--helm-values", "-f", file)
		values = nil
		check.NoError(t, yaml.Unmarshal([]byte(got), &values))
		config := values["config"].(map[string]any)
		for key := range values {
			if _, ok := known[key]; !ok {
				t.Errorf("%s: the chart has no value %s", file, key)
			}
		}
		for key := range config {
			if _, ok := known["config"].(map[string]any)[key]; !ok {
				t.Errorf("%s: the chart has no value config.%s", file, key)
			}
		}
		corefile, _ := config["customConfig"].(string)
		if !strings.Contains(corefile, "ready ") || !strings.Contains(corefile, "kubernetes ") || config["localDns"] == nil {
			t.Errorf("%s:\n%s", file, got)
		}
	}
}

// TestMigrateHelmValuesOfPod: what the pod has beside the usual is in the values, or has a note.
func TestMigrateHelmValuesOfPod(t *testing.T) {
	text := strings.NewReplacer(
		"a: b}}", `k8s-app: node-local-dns, team: dns}, annotations: {prometheus.io/port: "1", note: x}}`,
		"image: old", "image: old\n        env: [{name: CORP, value: 192.0.2.3}, {name: NODE_NAME, value: a}]\n        securityContext: {privileged: false, seLinuxOptions: {type: dns_t}, capabilities: {add: [NET_ADMIN, NET_RAW]}}\n        stdin: true",
		"containers:", "imagePullSecrets: [{name: r}]\n      hostAliases: [{ip: 192.0.2.4}]\n      containers:\n      - name: other",
		`/etc/Corefile]`, `/etc/Corefile, -setupiptables=false, -syncinterval, "30s"]`,
		"volumeMounts: [", "volumeMounts: [{name: handover, mountPath: /etc/tls}, ",
		"volumes: [", "volumes: [{name: handover, secret: {secretName: s}}, ",
		"path: Corefile.base}", "path: Corefile.base}, {key: hosts, path: hosts}",
		"forward . 192.0.2.1", "hosts /etc/coredns/hosts\n        forward . tls://{$CORP} {\n            tls /etc/tls/ca.crt\n        }",
		"  Corefile: |", "  hosts: 192.0.2.9 a.test\n  Corefile: |",
		"VERSION", "apps/v1", "NAMESPACE", "namespace: kube-system", "LABELS", "", ", SAVED", "", "SELECTOR", "selector: {}", "STATUS", "", "IMMUTABLE", "false", "DOMAIN", "cluster.local",
	).Replace(migrateManifest)
	got, notes := migratedText(t, text, "--helm-values")
	var values map[string]any
	check.NoError(t, yaml.Unmarshal([]byte(got), &values))
	delete(values["config"].(map[string]any), "customConfig")
	var want map[string]any
	check.NoError(t, yaml.Unmarshal([]byte(`
config: {localDns: 169.254.20.10, setupIptables: false, skipTeardown: true, dnsDomain: cluster.local}
extraArgs: [-syncinterval=30s]
extraEnv: [{name: CORP, value: 192.0.2.3}]
extraVolumes: [{name: old-handover, secret: {secretName: s}}, {name: custom, configMap: {name: coredns-custom, optional: true}}]
extraVolumeMounts: [{name: old-handover, mountPath: /etc/tls}, {name: custom, mountPath: /etc/custom}]
image: {repository: example.test/nodens, tag: "1"}
imagePullSecrets: [{name: r}]
podAnnotations: {note: x}
podLabels: {team: dns}
securityContext: {seLinuxOptions: {type: dns_t}, capabilities: {add: [NET_RAW]}}
`), &want))
	if d := cmp.Diff(want, values); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	hasTexts(t, notes, "it has no values for: container other, hostAliases, stdin", "ConfigMap kube-system/dns, hosts: /etc/coredns/hosts", "/etc/tls/ca.crt is not checked")
}

// TestMigrateHelmValuesOfImage: the values have the whole image.
func TestMigrateHelmValuesOfImage(t *testing.T) {
	text := strings.ReplaceAll(setText, "NAME", "node-local-dns") + confText
	for image, want := range map[string]map[string]any{
		"r.test:5000/n":              {"repository": "r.test:5000/n"},
		"r.test:5000/n:2":            {"repository": "r.test:5000/n", "tag": "2"},
		"r.test/n:2@sha256:0a1b2c3d": {"repository": "r.test/n", "digest": "sha256:0a1b2c3d"},
	} {
		got, _ := migratedText(t, text, "--helm-values", "--image", image)
		var values map[string]any
		check.NoError(t, yaml.Unmarshal([]byte(got), &values))
		if d := cmp.Diff(any(want), values["image"]); d != "" {
			t.Errorf("%s (-want +got):\n%s", image, d)
		}
	}
}

// TestMigrateHelmValuesOfPodNetwork: an agent in the network of a pod stays there.
func TestMigrateHelmValuesOfPodNetwork(t *testing.T) {
	got, notes := migrated(t, "--helm-values", "-f", "testdata/migrate/pod-network.yaml")
	hasTexts(t, got, "cilium:\n  localRedirect: true\n", "        health :8080\n        ready :8181\n")
	hasTexts(t, notes, "to do: DaemonSet dns/node-local-dns, hostNetwork: ")
}

// TestMigrateHelmValuesOfProbes: the chart's probes ask what the Corefile serves.
func TestMigrateHelmValuesOfProbes(t *testing.T) {
	text := strings.ReplaceAll(setText, "NAME", "node-local-dns") + confText
	got, _ := migratedText(t, text, "--helm-values")
	hasTexts(t, got, "        health 169.254.20.10:8080\n        ready 169.254.20.10:8181\n")
	got, _ = migratedText(t, strings.Replace(text, "cache 30", "ready 169.254.20.10:8282\n        cache 30", 1), "--helm-values")
	hasTexts(t, got, "readyPort: 8282\n", "        health 169.254.20.10:8080\n")
	lacksTexts(t, got, "8181")
}
