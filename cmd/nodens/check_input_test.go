package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/daemonset"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// checkOutput runs `nodens check` with that standard input.
func checkOutput(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	root := newRootCommand()
	root.SetIn(strings.NewReader(stdin))
	code = execute(t.Context(), root, append([]string{"check"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

// TestCheckInputs: check reads what operators have, off the cluster.
func TestCheckInputs(t *testing.T) {
	dir := t.TempDir()
	official, err := os.ReadFile(filepath.Join("..", "..", "daemonset", "testdata", "iptables", "Corefile.base"))
	check.NoError(t, err)
	corefile, manifest := filepath.Join(dir, "Corefile"), filepath.Join(dir, "nodens.yaml")
	agenttest.WriteFile(t, corefile, string(official))
	agenttest.WriteFile(t, manifest, string(daemonset.Manifest))
	configMap := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: node-local-dns, namespace: kube-system}\ndata:\n  Corefile: |\n    " +
		strings.ReplaceAll(string(official), "\n", "\n    ") + "\n"
	const unknown = "note: cluster DNS address unknown off the cluster: __PILLAR__CLUSTER__DNS__ is shown as CLUSTER-DNS; give --cluster-dns IP\n"
	for _, tt := range []struct {
		name, stdin string
		args        []string
		code        int
		want        []string // in the output
	}{
		{"--conf", "", []string{"--conf", corefile, "--localip", "169.254.20.10,10.96.0.10"}, 0, []string{corefile + ": 4 server blocks, hash ", unknown, "  forward        . to CLUSTER-DNS:53\n"}},
		{"argument", "", []string{corefile}, 0, []string{unknown, "/etc/resolv.conf\n"}},
		{"--cluster-dns", "", []string{corefile, "--cluster-dns", "10.96.0.11"}, 0, []string{"  forward        . to 10.96.0.11:53\n"}},
		{"invalid --cluster-dns", "", []string{corefile, "--cluster-dns", "kube-dns"}, 2, []string{"--cluster-dns", "is no IP address"}},
		{"standard input", string(official), []string{"-"}, 0, []string{"standard input: 4 server blocks", unknown}},
		{"ConfigMap", configMap, []string{"-f", "-"}, 0, []string{"ConfigMap kube-system/node-local-dns, Corefile: 4 server blocks\n", unknown}},
		{"manifest", "", []string{"-f", manifest}, 0, []string{
			"ConfigMap kube-system/nodens, Corefile, with the flags of DaemonSet kube-system/node-local-dns: 2 server blocks\n",
			"  listens on     udp and tcp 169.254.20.10:53\n", "handover:\n  from the previous agent and to the next one, through /var/lib/nodens\n",
			"  forward        . to the name servers in /etc/resolv.conf\n",
		}},
		{"flag instead of the DaemonSet's", "", []string{"--localip", "192.0.2.7", "-f", manifest}, 0, []string{"  address   192.0.2.7/32\n"}},
		{"JSON after JSON", `{"kind":"Namespace","metadata":{"name":"a"}}` + "\n" + `{"kind":"ConfigMap","metadata":{"name":"dns","namespace":"a"},"data":{"Corefile":". {\nwhoami\n}\n"}}`, []string{"-"}, 0, []string{"ConfigMap a/dns, Corefile: 1 server blocks\n"}},
		{"empty", "", []string{"-"}, 1, []string{"standard input is empty"}},
		{"no Corefile", "kind: Service\nmetadata: {name: a}\n", []string{"-"}, 1, []string{"no ConfigMap has a key Corefile"}},
		{"mistake in a ConfigMap", strings.Replace(configMap, "    reload", "    relaod", 1), []string{"-"}, 1, []string{
			`ConfigMap kube-system/node-local-dns, Corefile:7: unknown directive "relaod" (did you mean "reload"?)`,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := checkOutput(t, tt.stdin, tt.args...)
			if code != tt.code {
				t.Fatalf("exit code %d, want %d: %s", code, tt.code, stderr)
			}
			hasTexts(t, stdout+stderr, tt.want...)
		})
	}
	code, stdout, stderr := checkOutput(t, "", "-f", dir) // a folder: the manifest in it
	if code != 0 || !strings.Contains(stdout, "2 server blocks") {
		t.Errorf("folder: %d, %s%s", code, stdout, stderr)
	}
}

// TestCheckWarnings: warnings name line and remedy, and --strict makes them failures.
func TestCheckWarnings(t *testing.T) {
	const text = ".:53 {\nbind 169.254.25.10\nhealth 169.254.20.10:8081\ncache 30s\nforward . 192.0.2.1\ntrace zipkin 192.0.2.9\n}\n"
	want := []string{
		"warning: standard input:2: bind: 169.254.25.10 is not an address of --localip",
		"warning: standard input:6: trace: nodens has no exporter for zipkin and datadog, so no spans are sent; write `trace otlp http://HOST:4318`",
		`warning: standard input:4: cache: "30s" is read as a zone`,
		"warning: standard input:1: health: it listens on port 8081, and the rules are for --health-port 8080",
		", for 30s.\n",
	}
	code, stdout, stderr := checkOutput(t, text, "--localip", "169.254.20.10", "-")
	if code != exitOK {
		t.Fatal(stderr)
	}
	hasTexts(t, stdout, want...)
	if code, _, stderr := checkOutput(t, text, "--strict", "-"); code != exitError || !strings.Contains(stderr, "--strict") {
		t.Errorf("--strict: exit code %d: %s", code, stderr)
	}
	if code, _, stderr := checkOutput(t, ". {\nforward . 192.0.2.1\n}\n", "--strict", "-"); code != exitOK {
		t.Errorf("--strict without warnings: exit code %d: %s", code, stderr)
	}
}

// TestCheckDaemonSet: check compares the DaemonSet with its Corefile.
func TestCheckDaemonSet(t *testing.T) {
	manifest := strings.NewReplacer("        reload\n", "", ":8080\n        ready", ":8082\n        ready").Replace(string(daemonset.Manifest))
	code, stdout, stderr := checkOutput(t, manifest, "-")
	if code != exitOK {
		t.Fatal(stderr)
	}
	hasTexts(t, stdout,
		"Corefile: no block has `reload`: a change of the ConfigMap takes effect when a pod starts",
		"the DaemonSet's livenessProbe asks /health on port 8080, where no `health` listens",
	)
	if _, stdout, _ := checkOutput(t, string(daemonset.Manifest), "-"); strings.Contains(stdout, "warning:") {
		t.Errorf("warnings about nodens' own manifest:\n%s", stdout)
	}
	apart := strings.Replace(string(daemonset.Manifest), "- -localip\n", "- -setupinterface\n            - \"false\"\n            - -localip\n", 1)
	if code, _, stderr := checkOutput(t, apart, "-"); code != exitError || !strings.Contains(stderr, `args: unexpected argument "false"`) {
		t.Errorf("a value apart from its flag: exit code %d: %s", code, stderr)
	}
}

// TestCheckJSON: errors and results as JSON.
func TestCheckJSON(t *testing.T) {
	for text, wantCode := range map[string]int{". {\ncache 30s\n}\n": exitOK, ". {\ncahce\n}\n": exitError} {
		code, stdout, stderr := checkOutput(t, text, "-o", "json", "-")
		if code != wantCode {
			t.Errorf("exit code %d, want %d: %s", code, wantCode, stderr)
		}
		var r checkResult
		if err := json.Unmarshal([]byte(stdout), &r); err != nil || len(r.Configurations) != 1 {
			t.Fatalf("%v:\n%s", err, stdout)
		}
		c := r.Configurations[0]
		if wantCode == exitOK && (len(c.Warnings) != 1 || c.Warnings[0].Line != 2 || len(c.Blocks) != 1) {
			t.Errorf("%+v", c)
		}
		if wantCode == exitError && (len(c.Errors) != 1 || c.Errors[0].Nearest != "cache" || c.Errors[0].Line != 2) {
			t.Errorf("%+v", c)
		}
	}
	code, stdout, stderr := outcome(t, "plan", "-o", "json", "--localip", "169.254.20.10", "--netfilter=none")
	var p report.Network
	if err := json.Unmarshal([]byte(stdout), &p); code != exitOK || err != nil || p.Interface != "nodelocaldns" || len(p.Addresses) != 1 {
		t.Errorf("plan: %d, %v, %s%s", code, err, stdout, stderr)
	}
}
