package main

import (
	"bytes"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/rig/agenttest"
)

// The parts of manifests that the cases below are made of.
const (
	setText = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: NAME, namespace: kube-system}
spec:
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec:
      hostNetwork: true
      containers:
      - name: node-cache
        image: old
        args: [-localip, "169.254.20.10", -conf, /etc/Corefile]
        volumeMounts:
        - {name: config, mountPath: /etc/coredns}
      volumes:
      - name: config
        configMap: {name: conf, items: [{key: Corefile, path: Corefile.base}]}
`
	confText = `---
apiVersion: v1
kind: ConfigMap
metadata: {name: conf, namespace: kube-system}
data:
  Corefile: |
    cluster.local:53 {
        cache 30
        forward . __PILLAR__CLUSTER__DNS__
    }
`
)

// TestMigrateRefuses: what can't be migrated, and whether the error says what to do.
func TestMigrateRefuses(t *testing.T) {
	set := strings.ReplaceAll(setText, "NAME", "node-local-dns")
	for _, c := range []struct {
		name, text string
		args       []string
		want       []string
	}{
		{"no image", set + confText, nil, []string{"--image is not set"}},
		{"an image with a scheme", set + confText, []string{"--image", "docker://r.test/n:1"}, []string{`--image "docker://r.test/n:1"`}},
		{"an image with a space", set + confText, []string{"--image", "r.test/n:1 "}, []string{"--image", "YOUR-REGISTRY"}},
		{"nothing", "", []string{"--image", "i"}, []string{"no object"}},
		{"not YAML", "a: [", []string{"--image", "i"}, []string{"in.yaml, document 1"}},
		{"no object", "- a\n", []string{"--image", "i"}, []string{"not a Kubernetes object"}},
		{"no kind", "metadata: {name: a}\n", []string{"--image", "i"}, []string{"has no kind"}},
		{"another DaemonSet", strings.ReplaceAll(strings.ReplaceAll(setText, "NAME", "proxy"), "-localip", "-x"), []string{"--image", "i"},
			[]string{"argument --localip", "DaemonSets there: proxy", "-n"}},
		{"two", set + "---\n" + strings.ReplaceAll(setText, "NAME", "second") + confText, []string{"--image", "i"},
			[]string{"several DaemonSets", "kube-system/node-local-dns", "kube-system/second", "--daemonset"}},
		{"no such name", set + confText, []string{"--image", "i", "--daemonset", "x"}, []string{"no DaemonSet x", "node-local-dns"}},
		{"no such namespace", set + confText, []string{"--image", "i", "-n", "x"}, []string{"in namespace x"}},
		{"no ConfigMap", set, []string{"--image", "i"}, []string{"ConfigMap kube-system/conf with the Corefile of", "-f"}},
		{"no key", set + strings.ReplaceAll(confText, "Corefile:", "Other:"), []string{"--image", "i"}, []string{`no key "Corefile"`}},
		{"binary data", set + strings.NewReplacer("\ndata:", "\nbinaryData:", "|", "Lg==", "    cluster.local:53 {\n", "", "        cache 30\n", "", "        forward . __PILLAR__CLUSTER__DNS__\n", "", "    }\n", "").Replace(confText),
			[]string{"--image", "i"}, []string{"ConfigMap kube-system/conf, binaryData", "UTF-8"}},
		{"nothing mounted", strings.ReplaceAll(set, "/etc/coredns", "/etc/other") + confText, []string{"--image", "i"}, []string{"volumeMounts", "/etc/Corefile, /etc/coredns/Corefile.base"}},
		{"no ConfigMap's volume", strings.ReplaceAll(set, "configMap: {name: conf, items: [{key: Corefile, path: Corefile.base}]}", "emptyDir: {}") + confText,
			[]string{"--image", "i"}, []string{"volume config", "is not a ConfigMap"}},
		{"a Corefile with faults", set + strings.ReplaceAll(confText, "cache 30", "cachee 30\n        forwart . 192.0.2.1"), []string{"--image", "i"},
			[]string{"would not start", "ConfigMap kube-system/conf, Corefile:2: ", "cachee", "Corefile:3: ", "forwart"}},
		{"a bad argument", strings.ReplaceAll(set, "169.254.20.10", "169.254.20.1000") + confText, []string{"--image", "i"}, []string{"args", "localip", "169.254.20.1000"}},
		{"another program", strings.ReplaceAll(set, "image: old", "command: [sh, -c]") + confText, []string{"--image", "i"}, []string{"command", `"sh"`}},
		{"a bad domain", set + confText, []string{"--image", "i", "--domain", "a..b"}, []string{"--domain"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "in.yaml")
			agenttest.WriteFile(t, file, c.text)
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), append([]string{"migrate", "-f", file}, c.args...), &stdout, &stderr); code != 1 {
				t.Errorf("ends with %d", code)
			}
			hasTexts(t, stderr.String(), c.want...)
			if stdout.Len() > 0 {
				t.Errorf("it prints a manifest all the same:\n%s", &stdout)
			}
		})
	}
}

// TestMigrateArguments: what the command itself refuses, and its help.
func TestMigrateArguments(t *testing.T) {
	if code, stdout, stderr := outcome(t, "migrate", "-help"); code != 0 || !strings.Contains(stdout, "kubectl apply -f -") || stderr != "" {
		t.Errorf("migrate -help: exit code %d, %q, %q", code, stdout, stderr)
	}
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"migrate -x", 2, "migrate --help"},
		{"migrate a.yaml", 2, "given with -f"},
		{"migrate -f a --kubeconfig b", 2, "exclude each other"},
		{"migrate -f /nonexistent/a.yaml", 1, "-f /nonexistent/a.yaml"},
		{"migrate --kubeconfig /nonexistent/a", 1, "--kubeconfig"},
	} {
		var stderr bytes.Buffer
		if code := run(t.Context(), strings.Fields(c.args), io.Discard, &stderr); code != c.code || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%s: exit code %d, %q; want %d, %q", c.args, code, &stderr, c.code, c.want)
		}
	}
}

// TestMigrateMinimal: with --minimal the image changes and nothing else.
func TestMigrateMinimal(t *testing.T) {
	text := strings.ReplaceAll(setText, "NAME", "node-local-dns") + confText
	plain, _ := migratedText(t, text, "--minimal", "--image", "old")
	manifest, _ := migratedText(t, text, "--minimal", "--image", "new")
	if want := strings.Replace(plain, "image: old", "image: new", 1); manifest != want {
		t.Errorf("it prints\n%s\nand not\n%s", manifest, want)
	}
	lacksTexts(t, manifest, "handover", "NODE_NAME", "startupProbe", "kind: ConfigMap", "kind: ClusterRole")
}

// TestMigrateTrace: a note names the remedy for CoreDNS's `trace`.
func TestMigrateTrace(t *testing.T) {
	conf := strings.Replace(confText, "cache 30\n", "cache 30\n        trace zipkin 192.0.2.9:9411\n", 1)
	_, notes := migratedText(t, strings.ReplaceAll(setText, "NAME", "node-local-dns")+conf)
	if strings.Count(notes, "write `trace otlp http://HOST:4318`") != 1 {
		t.Errorf("notes:\n%s", notes)
	}
}

// TestMigrateOtherDomain: a --domain that is not forwarded gets no names, reverse names included.
func TestMigrateOtherDomain(t *testing.T) {
	conf := strings.Replace(confText, "cluster.local:53 {", "in-addr.arpa:53 {\n        forward . __PILLAR__CLUSTER__DNS__\n    }\n    cluster.local:53 {", 1)
	for _, domain := range []string{"cluster.locl", "a b", "."} {
		values, notes := migratedText(t, strings.ReplaceAll(setText, "NAME", "node-local-dns")+conf, "--helm-values", "--domain", domain)
		lacksTexts(t, values, "kubernetes ")
		hasTexts(t, notes, "to do: ConfigMap kube-system/conf, Corefile: no block forwards --domain "+domain, "forwarded there: cluster.local")
	}
	values, _ := migratedText(t, strings.ReplaceAll(setText, "NAME", "node-local-dns")+conf, "--helm-values", "--domain", "Cluster.Local.")
	hasTexts(t, values, "kubernetes Cluster.Local {", "kubernetes Cluster.Local in-addr.arpa")
}
