package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/rig/agenttest"
)

// TestMigrateElsewhere: a directive that only another CoreDNS has becomes a forward to the cluster's DNS,
// with notes, and the result passes `nodens check`. The cases have the shapes of the examples in the
// documentation of CoreDNS's plugins.
func TestMigrateElsewhere(t *testing.T) {
	const mark = "# nodens has no "
	for _, c := range []struct {
		name, blocks string
		want         string   // the blocks afterwards
		notes        []string // parts of the notes
	}{
		{
			"etcd", "sky.test {\n    etcd {\n        path /sky\n        endpoint http://127.0.0.1:2379\n    }\n    cache\n    loadbalance\n}\n",
			"sky.test {\n    " + mark + "etcd: its names go to the cluster DNS\n    forward . CLUSTER\n    cache\n    loadbalance\n}\n",
			[]string{"line 5: etcd is replaced by a forward of sky.test to the cluster DNS at CLUSTER", "nodens has no etcd: give sky.test to the CoreDNS of the cluster"},
		},
		{
			"etcd for some names", ". {\n\tetcd sky.test 10.0.0.0/24 {\n\t\tendpoint http://127.0.0.1:2379 # one\n\t}\n\tforward . 192.0.2.9\n}\n",
			". {\n\t" + mark + "etcd: its names go to the cluster DNS\n\tforward sky.test CLUSTER\n\tforward 10.0.0.0/24 CLUSTER\n\tforward . 192.0.2.9\n}\n",
			[]string{"a forward of sky.test, 10.0.0.0/24 to"},
		},
		{
			"etcd that falls through", ". {\n    etcd {\n        fallthrough\n    }\n    forward . 192.0.2.9\n}\n",
			". {\n    " + mark + "etcd: its names go to the cluster DNS\n    forward . CLUSTER {\n        next NXDOMAIN\n    }\n    forward . 192.0.2.9\n}\n", nil,
		},
		{
			"nomad", "service.test.:53 {\n    log\n    nomad service.test {\n        address http://127.0.0.1:4646\n        ttl 10\n    }\n    cache 30\n}\n",
			"service.test.:53 {\n    " + mark + "nomad: its names go to the cluster DNS\n    forward . CLUSTER\n    log\n    cache 30\n}\n", nil,
		},
		{
			"route53", "a.test {\n    route53 a.test.:Z1A2 a.test.:Z3B4 {\n        refresh 3m\n    }\n}\n. {\n    route53 b.test.:Z5 c.test.:Z6 {\n        fallthrough c.test.\n    }\n}\n",
			"a.test {\n    " + mark + "route53: its names go to the cluster DNS\n    forward . CLUSTER\n}\n. {\n    " + mark + "route53: its names go to the cluster DNS\n    forward b.test. CLUSTER\n    forward c.test. CLUSTER\n}\n", nil,
		},
		{
			"azure", "a.test {\n    azure group:a.test group:b.test {\n        tenant one\n        access private\n    }\n}\n",
			"a.test {\n    " + mark + "azure: its names go to the cluster DNS\n    forward . CLUSTER\n}\n", nil,
		},
		{
			"clouddns", "a.test {\n    clouddns a.test.:project:zone\n    forward . 192.0.2.9\n}\n",
			"a.test {\n    " + mark + "clouddns: its names go to the cluster DNS\n    forward . CLUSTER\n}\n",
			[]string{"and forward of the block is removed"},
		},
		{
			"dnssec", "a.test {\n    dnssec {\n        key file Ka.test.+013+1\n    }\n    whoami\n}\n",
			"a.test {\n    " + mark + "dnssec: its names go to the cluster DNS\n    forward . CLUSTER\n}\n",
			[]string{"and whoami of the block is removed"},
		},
		{
			"sign", "a.test {\n    file db.a.test.signed\n    sign db.a.test {\n        key file /keys/Ka.test\n        directory .\n    }\n    errors\n}\n",
			"a.test {\n    " + mark + "sign: its names go to the cluster DNS\n    forward . CLUSTER\n    errors\n}\n", nil,
		},
		{
			"sign for some names", ". {\n    file a.signed a.test\n    sign db.a.test a.test b.test {\n        key directory /keys\n    }\n    forward . 192.0.2.9\n}\n",
			". {\n    " + mark + "sign: its names go to the cluster DNS\n    forward a.test CLUSTER\n    forward b.test CLUSTER\n    forward . 192.0.2.9\n}\n", nil,
		},
		{
			"dynupdate", "a.test b.test {\n    dynupdate {\n        file a.zone\n        allow key.a.test. _x.a.test. TXT\n    }\n}\n",
			"a.test b.test {\n    " + mark + "dynupdate: its names go to the cluster DNS\n    forward . CLUSTER\n}\n", nil,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			manifest, notes := migratedText(t, strings.ReplaceAll(setText, "NAME", "node-local-dns")+confText+indented(c.blocks))
			const address = "__PILLAR__CLUSTER__DNS__"
			if want := indented(strings.ReplaceAll(c.want, "CLUSTER", address)); !strings.Contains(manifest, want) {
				t.Errorf("the manifest lacks\n%s\nit is\n%s", want, manifest)
			}
			for _, want := range c.notes {
				if want = strings.ReplaceAll(want, "CLUSTER", address); !strings.Contains(notes, want) {
					t.Errorf("the notes lack %q; they are\n%s", want, notes)
				}
			}
			file := filepath.Join(t.TempDir(), "out.yaml")
			agenttest.WriteFile(t, file, manifest)
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), []string{"check", "-cluster-dns", "10.0.0.10", file}, &stdout, &stderr); code != 0 {
				t.Errorf("check ends with %d:\n%s%s", code, &stdout, &stderr)
			}
		})
	}
}

// TestMigrateElsewhereAddress: the address is that of the cluster's DNS as the Corefile or an object has it,
// but not one that the agent takes; if it is not known, the notes say so.
func TestMigrateElsewhereAddress(t *testing.T) {
	const service = "---\nkind: Service\nmetadata: {name: NAME, namespace: kube-system, labels: {k8s-app: kube-dns}}\nspec: {clusterIP: ADDRESS}\n"
	upstream := strings.NewReplacer("NAME", "kube-dns-upstream", "ADDRESS", "10.0.0.11").Replace(service)
	taken := strings.NewReplacer("NAME", "kube-dns", "ADDRESS", "169.254.20.10").Replace(service)
	conf := strings.ReplaceAll(confText, "__PILLAR__CLUSTER__DNS__", "192.0.2.9")
	for _, c := range []struct{ text, address, note string }{
		{confText, "__PILLAR__CLUSTER__DNS__", ""},
		{conf, "__PILLAR__CLUSTER__DNS__", "works only if there is a Service kube-dns-upstream"},
		{conf + indented("etcd.test {\n    etcd\n}") + taken + upstream, "10.0.0.11", ""},
	} {
		text := c.text
		if !strings.Contains(text, "etcd") {
			text += indented("etcd.test {\n    etcd\n}")
		}
		manifest, notes := migratedText(t, strings.ReplaceAll(setText, "NAME", "node-local-dns")+text)
		if want := "forward . " + c.address + "\n"; !strings.Contains(manifest[strings.Index(manifest, "etcd.test"):], want) {
			t.Errorf("the manifest lacks %q:\n%s", want, manifest)
		}
		if has := strings.Contains(notes, "works only if"); has != (c.note != "") {
			t.Errorf("notes, with %q wanted:\n%s", c.note, notes)
		}
	}
}

// TestMigrateElsewhereSecondStep: the second step adds no directive kubernetes to a block whose names go
// elsewhere.
func TestMigrateElsewhereSecondStep(t *testing.T) {
	text := strings.ReplaceAll(setText, "NAME", "node-local-dns") +
		strings.ReplaceAll(confText, "        cache 30\n", "        dnssec {\n            key file K\n        }\n")
	first, _ := migratedText(t, text)
	if !strings.Contains(first, "# nodens has no dnssec") {
		t.Fatalf("the first step makes of it\n%s", first)
	}
	second, _ := migratedText(t, first)
	if !strings.Contains(second, "maxSurge: 1") || strings.Contains(second, "kubernetes cluster.local") {
		t.Errorf("the second step makes of it\n%s", second)
	}
}

// indented returns the lines of text as they are in the ConfigMap.
func indented(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n    ") + "\n"
}
