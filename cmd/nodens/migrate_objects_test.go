package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/rig/agenttest"
)

// migrateManifest is NodeLocal DNSCache with what cases change: the API version, labels of both objects, and fields.
const migrateManifest = `apiVersion: VERSION
kind: DaemonSet
metadata: {name: node-local-dns, NAMESPACE, labels: {LABELS}, SAVED}
spec:
  SELECTOR
  template:
    metadata: {labels: {a: b}}
    spec:
      hostNetwork: true
      containers:
      - name: node-cache
        image: old
        args: [-localip, "169.254.20.10", -conf, /etc/Corefile]
        volumeMounts: [{name: c, mountPath: /etc/coredns}, {name: custom, mountPath: /etc/custom}]
      volumes: [{name: c, configMap: {name: dns, items: [{key: Corefile, path: Corefile.base}]}}, {name: custom, configMap: {name: coredns-custom, optional: true}}]
STATUS
---
apiVersion: v1
kind: ConfigMap
metadata: {name: dns, NAMESPACE, SAVED}
immutable: IMMUTABLE
data:
  Corefile: |
    DOMAIN:53 {
        bind 169.254.20.10
        reload
        forward . 10.96.0.11
    }
    .:53 {
        bind 169.254.20.10
        forward . 192.0.2.1
    }
    import custom/*.server
`

// TestMigrateObjects: both steps with objects as tools make and save them.
func TestMigrateObjects(t *testing.T) {
	saved := strings.NewReplacer("SAVED", `uid: u-1, resourceVersion: "5", generation: 3, creationTimestamp: "2026-01-01T00:00:00Z", selfLink: /x, managedFields: [{manager: kubectl}], annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}", note: kept}`,
		"STATUS", "status: {observedGeneration: 3, desiredNumberScheduled: 1, updatedNumberScheduled: 1}")
	custom := "---\nkind: ConfigMap\napiVersion: v1\nmetadata: {name: coredns-custom, namespace: kube-system}\ndata: {a.server: \"corp.test:53 {\\nbind 169.254.20.10\\nrewrite name a.test b.test\\nforward . 192.0.2.3\\n}\\n\"}\n"
	coredns := "---\nkind: ConfigMap\napiVersion: v1\nmetadata: {name: coredns, namespace: kube-system}\ndata: {Corefile: \".:53 {\\nkubernetes cluster.local\\nimport custom/*.override\\n}\\n\"}\n" +
		"---\nkind: ConfigMap\napiVersion: v1\nmetadata: {name: coredns-custom, namespace: kube-system}\ndata: {r.override: \"rewrite name a.test b.test\\n\"}\n"
	for _, c := range []struct {
		name           string
		change         *strings.Replacer
		more           string
		first, second  []string // parts of the manifests
		notes, without []string // parts of the notes of both steps; what neither manifest has
	}{
		{"a saved object", saved, "", []string{"note: kept"}, []string{"kubernetes cluster.local"}, nil,
			[]string{"uid:", "resourceVersion:", "managedFields", "status:", "selfLink", "generation", "last-applied", "creationTimestamp"}},
		{"immutable", strings.NewReplacer("IMMUTABLE", "true"), "", []string{"name: dns\n"}, []string{"immutable: true", "name: dns-nodens\n", "          name: dns-nodens\n"}, []string{"its changed copy is dns-nodens"}, nil},
		{"no namespace", strings.NewReplacer("NAMESPACE", "x: y"), "", nil, []string{"kind: ClusterRoleBinding", "  namespace: kube-system"}, []string{"the service account is expected in kube-system"}, nil},
		{"another namespace", strings.NewReplacer("NAMESPACE", "namespace: dns-system"), "", nil, []string{"  namespace: dns-system\n---"}, nil, []string{"kube-system"}},
		{"gardener", strings.NewReplacer("LABELS", "resources.gardener.cloud/managed-by: gardener"), "", nil, nil, []string{"managed by Gardener: set spec.systemComponents.nodeLocalDNS.enabled to false"}, nil},
		{"kops", strings.NewReplacer("LABELS", "app.kubernetes.io/managed-by: kops"), "", nil, nil, []string{"managed by kOps"}, nil},
		{"custom files", strings.NewReplacer(), custom, nil, []string{"kubernetes cluster.local"}, nil, []string{"kubernetes corp.test"}},
		{"rewrites of CoreDNS", strings.NewReplacer(), coredns, nil, []string{"kubernetes cluster.local"}, []string{"it has `rewrite` beside `kubernetes`"}, nil},
		{"an old API version", strings.NewReplacer("VERSION", "extensions/v1beta1", "SELECTOR", "templateGeneration: 4"), "", []string{"apiVersion: apps/v1\n", "    matchLabels:\n      a: b\n"}, nil,
			[]string{"apiVersion: apps/v1 instead of extensions/v1beta1, which API servers since Kubernetes 1.16 refuse", "spec.selector: the labels of the template"}, []string{"templateGeneration"}},
		{"a domain that is a variable", strings.NewReplacer("DOMAIN", "{$CLUSTER_ZONE}:53 in-addr.arpa"), "", nil, nil, []string{"read CLUSTER_ZONE as example.org"}, []string{"kubernetes example.org"}},
		{"warnings of check", strings.NewReplacer("bind 169.254.20.10\n        reload", "cache 30s\n        bind 169.254.20.10"), "", nil, nil, []string{
			`warning: ConfigMap kube-system/dns, Corefile:2: cache: "30s" is read as a zone`, "warning: ConfigMap kube-system/dns, Corefile: no block has `reload`",
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			usual := strings.NewReplacer("VERSION", "apps/v1", "NAMESPACE", "namespace: kube-system", "LABELS", "c: d", ", SAVED", "", "STATUS\n", "", "IMMUTABLE", "false", "DOMAIN", "cluster.local", "SELECTOR", "selector: {matchLabels: {a: b}}")
			file := filepath.Join(t.TempDir(), "old.yaml")
			agenttest.WriteFile(t, file, usual.Replace(c.change.Replace(migrateManifest)+c.more))
			var texts [2]string
			notes := ""
			args := []string{"-f", file}
			for i := range texts {
				var more string
				texts[i], more = migrated(t, args...)
				notes += more
				next := filepath.Join(t.TempDir(), "next.yaml")
				agenttest.WriteFile(t, next, texts[i])
				args = append(args, "-f", next)
			}
			for i, wants := range [][]string{c.first, c.second} {
				hasTexts(t, texts[i], wants...)
			}
			hasTexts(t, notes, c.notes...)
			lacksTexts(t, texts[0]+texts[1], c.without...)
		})
	}
}

// TestMigrateByteOrderMark: objects of a file that begins with a byte order mark, as Windows programs write.
func TestMigrateByteOrderMark(t *testing.T) {
	text := strings.ReplaceAll(setText, "NAME", "node-local-dns") + confText
	for name, before := range map[string]string{"before an object": "", "before a comment": "# ours\n---\n"} {
		want, _ := migratedText(t, before+text)
		if got, _ := migratedText(t, "\ufeff"+before+text); got != want {
			t.Errorf("%s: it prints\n%s\nand not\n%s", name, got, want)
		}
	}
}

// TestMigrateRKE2: the note for RKE2's release, which has CoreDNS too, does not say to uninstall it.
func TestMigrateRKE2(t *testing.T) {
	set := strings.Replace(setText, "name: NAME, ", "name: node-local-dns, labels: {app.kubernetes.io/managed-by: Helm}, annotations: {meta.helm.sh/release-name: rke2-coredns}, ", 1)
	_, notes := migratedText(t, set+confText)
	hasTexts(t, notes, "managed by RKE2's chart rke2-coredns: set nodelocal.enabled to false")
	lacksTexts(t, notes, "uninstall the release")
}
