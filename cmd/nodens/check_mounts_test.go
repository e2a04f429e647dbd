package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// mountsManifest is a DaemonSet with ConfigMaps for its Corefile and for imports.
const mountsManifest = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: node-local-dns, namespace: kube-system}
spec:
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec:
      hostNetwork: true
      containers:
      - name: node-cache
        args: [-localip, "169.254.20.10", -conf, /etc/Corefile]
        env:
        - {name: GIVEN, value: 192.0.2.7}
        - {name: REF, valueFrom: {configMapKeyRef: {name: dns-env, key: ref}}}
        - {name: SECRET, valueFrom: {secretKeyRef: {name: s, key: k}}}
        envFrom: [{prefix: ALL_, configMapRef: {name: dns-env}}]
        volumeMounts:
        - {name: base, mountPath: /etc/coredns}
        - {name: MOUNT, mountPath: DIR}
      volumes:
      - {name: base, configMap: {name: node-local-dns, items: [{key: Corefile, path: Corefile.base}]}}
      - {name: custom, configMap: {name: coredns-custom, optional: true}}
      - {name: projected, projected: {sources: [{secret: {name: s}}, {configMap: {name: coredns-custom, items: [{key: corp.server, path: deep/corp.server}]}}]}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: dns-env, namespace: kube-system}, data: {ref: 192.0.2.8, ttl: "77"}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: node-local-dns, namespace: kube-system}
data:
  Corefile: |
    import IMPORT
    .:53 {
        bind 169.254.20.10
        reload
        forward . {$GIVEN} {%REF%}
    }
`

const customConfigMap = `---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns-custom, namespace: kube-system}
data:
  corp.server: |
    corp.test:53 {
        bind 169.254.20.10
        cache {$ALL_ttl}
        forward . {$SECRET}
    }
`

// TestCheckMounts: imports are read from the ConfigMaps that are mounted where they point, and environment variables have
// the container's values, or a stand-in that the report names.
func TestCheckMounts(t *testing.T) {
	for _, c := range []struct{ name, mount, dir, pattern string }{
		{"below the Corefile", "custom", "/etc/coredns/custom", "/etc/coredns/custom/*.server"},
		{"beside --conf", "custom", "/etc/custom", "custom/*.server"},
		{"elsewhere", "custom", "/opt/dns", "/opt/dns/corp.server"},
		{"projected", "projected", "/etc/coredns/p", "/etc/coredns/p/deep/*"},
		{"one file", "custom, subPath: corp.server", "/etc/one.server", "/etc/one.server"},
		{"with a slash", "custom", "/etc/custom/", "/etc/custom/c*"},
	} {
		t.Run(c.name, func(t *testing.T) {
			manifest := strings.NewReplacer("MOUNT", c.mount, "DIR", c.dir, "IMPORT", c.pattern).Replace(mountsManifest)
			code, stdout, stderr := checkOutput(t, manifest+customConfigMap, "-")
			hasTexts(t, stdout,
				"2 server blocks", "zone corp.test. (ConfigMap kube-system/coredns-custom, corp.server, line 1)", "up to 1m17s",
				"forward        . to 192.0.2.7:53 192.0.2.8:53\n", "not known here: read SECRET as 192.0.2.1\n", "  ConfigMap kube-system/coredns-custom, corp.server\n",
			)
			if code != exitOK || t.Failed() {
				t.Fatalf("%d\n%s%s", code, stdout, stderr)
			}
			// An error names the ConfigMap, and a ConfigMap that is missing is named.
			_, _, stderr = checkOutput(t, manifest+strings.Replace(customConfigMap, "cache", "cahce", 1), "-")
			if !strings.Contains(stderr, `ConfigMap kube-system/coredns-custom, corp.server:3: unknown directive "cahce"`) {
				t.Errorf("an error in an import: %s", stderr)
			}
			if _, stdout, _ = checkOutput(t, manifest, "-"); !strings.Contains(stdout, "ConfigMap coredns-custom: not among the objects, so the files in "+strings.TrimSuffix(c.dir, "/")) {
				t.Errorf("a missing ConfigMap: %s", stdout)
			}
		})
	}
}

// TestCheckCoreDNS: the Corefile of CoreDNS has its imports, too, from the Deployment or, without one, from where the
// Corefile imports.
func TestCheckCoreDNS(t *testing.T) {
	corefile := func(pattern string) string {
		return "kind: ConfigMap\napiVersion: v1\nmetadata: {name: coredns, namespace: kube-system}\ndata:\n  Corefile: |\n    import " + pattern + "\n    .:53 {\n        forward . {$UP}\n    }\n"
	}
	const deployment = `---
kind: Deployment
apiVersion: apps/v1
metadata: {name: coredns, namespace: kube-system}
spec:
  template:
    spec:
      containers:
      - {name: coredns, command: [/coredns], args: [-conf, /etc/coredns/Corefile, -dns.port, "1053"], env: [{name: UP, value: 192.0.2.66}], volumeMounts: [{name: a, mountPath: /etc/coredns}, {name: b, mountPath: /mnt/extra}]}
      volumes: [{name: a, configMap: {name: coredns}}, {name: b, configMap: {name: coredns-custom}}]
`
	custom := strings.NewReplacer("{$SECRET}", "192.0.2.5", "{$ALL_ttl}", "9").Replace(customConfigMap)
	for name, c := range map[string]struct{ manifest, up string }{
		"relative":   {corefile("custom/*.server"), "192.0.2.1"},
		"absolute":   {corefile("/etc/coredns/custom/*.server"), "192.0.2.1"},
		"Deployment": {corefile("/mnt/extra/*.server") + deployment, "192.0.2.66"},
	} {
		code, stdout, stderr := checkOutput(t, c.manifest+custom, "-")
		if code != exitOK || !strings.Contains(stdout, "zone corp.test. (ConfigMap kube-system/coredns-custom, corp.server, line 1)") || !strings.Contains(stdout, "to "+c.up+":53") {
			t.Errorf("%s: %d %s%s", name, code, stdout, stderr)
		}
	}
	if _, stdout, _ := checkOutput(t, corefile("/mnt/other/*.server"), "-"); !strings.Contains(stdout, "note: imports that no file matches: /mnt/other/*.server") {
		t.Errorf("an import of nothing is not named: %s", stdout)
	}
}

// TestCheckVariables: a variable without a value is read as what parses in its place.
func TestCheckVariables(t *testing.T) {
	for text, want := range map[string]string{
		". {\nforward . {$NODENS_T_A}\n}\n":                                     "NODENS_T_A as 192.0.2.1",
		". {\ncache {%NODENS_T_A%}\nforward . 192.0.2.9\n}\n":                   "NODENS_T_A as 30",
		". {\nreload {$NODENS_T_A}\nforward . 192.0.2.9\n}\n":                   "NODENS_T_A as 30s",
		"{$NODENS_T_A} {\nwhoami\n}\n":                                          "NODENS_T_A as example.org",
		". {\nkubernetes {$NODENS_T_A} in-addr.arpa\n}\n":                       "NODENS_T_A as example.org",
		".:{$NODENS_T_A} {\nwhoami\n}\n":                                        "NODENS_T_A as 30",
		". {\nhealth {$NODENS_T_A}:8080\nforward . {$NODENS_T_B}:5353\n}\n":     "NODENS_T_A as nothing, NODENS_T_B as 192.0.2.1",
		". {\ncache {\nnxdomain_cut {$NODENS_T_A}\n}\nforward . 192.0.2.9\n}\n": "NODENS_T_A as on",
		"# {$NODENS_T_C}\n. {\nforward . {$NODENS_T_A} # {$NODENS_T_C}\n}\n":    "NODENS_T_A as 192.0.2.1\n",
		". {\nforward . 192.0.2.9 {\npolicy {$NODENS_T_A}\n}\n}\n":              "NODENS_T_A as nothing",
	} {
		code, stdout, stderr := checkOutput(t, text, "-")
		if !strings.Contains(stdout, "read "+want) || (code == exitOK) == strings.Contains(text, "policy") {
			t.Errorf("%q: %d %s%s", text, code, stdout, stderr)
		}
	}
	t.Setenv("NODENS_T_A", "192.0.2.77")
	if _, stdout, _ := checkOutput(t, ". {\nforward . {$NODENS_T_A}\n}\n", "-"); !strings.Contains(stdout, "to 192.0.2.77:53") || strings.Contains(stdout, "not known here") {
		t.Errorf("a variable of the environment: %s", stdout)
	}
}

// TestCheckSilent: no directive and no option is left out of the report.
func TestCheckSilent(t *testing.T) {
	text := `. {
    errors {
        consolidate 5m ".* timeout"
    }
    bufsize 1232
    debug
    nsid a
    any
    minimal
    loop
    reload 10s
    loadbalance
    chaos v1
    local
    metadata
    rewrite name a.test b.test
    rewrite stop type A AAAA
    header {
        response set ra
    }
    timeouts {
        read 5s
    }
    hosts {
        192.0.2.1 in-the-block.test
        no_reverse
        fallthrough
    }
    tsig {
        secret key.test. c2VjcmV0
    }
    health {
        lameduck 5s
    }
    cache {
        prefetch 10 1m
        serve_stale 1h
    }
    forward . 192.0.2.1 192.0.2.2 {
        force_tcp
        policy random
        health_check 5s
        max_concurrent 1000
    }
}
`
	code, stdout, stderr := checkOutput(t, text, "-")
	if code != exitOK {
		t.Fatal(stderr)
	}
	for line := range strings.Lines(text) {
		words := strings.Fields(strings.Trim(strings.TrimSpace(line), "{}"))
		if len(words) == 0 || strings.Contains(line, "192.0.2.1 in-the") || words[0] == "secret" {
			continue
		}
		if want := strings.ReplaceAll(strings.Join(words[min(1, len(words)-1):], " "), `"`, ""); !slices.Contains(config.Directives(), words[0]) && !strings.Contains(stdout, strings.ReplaceAll(strings.Join(words, " "), `"`, "")) ||
			slices.Contains(config.Directives(), words[0]) && (!strings.Contains(stdout, "  "+words[0]+" ") || len(words) > 1 && words[0] != "forward" && !strings.Contains(stdout, want)) {
			t.Errorf("the report has no %q", strings.TrimSpace(line))
		}
	}
	lacksTexts(t, stdout, "c2VjcmV0", "in-the-block")
	hasTexts(t, stdout, "`lameduck` is shortened to 2s, or to 30s", "`loop` stops forwarding", "`serve_stale` asks the upstreams first")
	if t.Failed() {
		t.Log(stdout)
	}
}

// TestCheckHashes: the hash of each file is that of its bytes, imports included.
func TestCheckHashes(t *testing.T) {
	dir := t.TempDir()
	texts := map[string]string{"Corefile": "import sub/*\n", "sub/a": ".:53 {\r\n whoami\r\n}\n"}
	for name, text := range texts {
		path := filepath.Join(dir, name)
		check.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		agenttest.WriteFile(t, path, text)
	}
	for _, args := range [][]string{{filepath.Join(dir, "Corefile")}, {"--conf", filepath.Join(dir, "Corefile")}} {
		_, stdout, stderr := checkOutput(t, "", args...)
		for name, text := range texts {
			if want := fmt.Sprintf("  %x  %s\n", sha256.Sum256([]byte(text)), filepath.Join(dir, name)); strings.Count(stdout, want) != 1 {
				t.Errorf("no %q in:\n%s%s", want, stdout, stderr)
			}
		}
	}
	manifest := strings.NewReplacer("MOUNT", "custom", "DIR", "/etc/custom", "IMPORT", "custom/*").Replace(mountsManifest) + customConfigMap
	if _, stdout, _ := checkOutput(t, manifest, "-"); !strings.Contains(stdout, fmt.Sprintf("  %x  standard input\n", sha256.Sum256([]byte(manifest)))) {
		t.Errorf("no hash of standard input: %s", stdout)
	}
}
