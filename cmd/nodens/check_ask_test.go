package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/rig/agenttest"
)

// TestCheckDiff: the changes between two Corefiles are said for their zones; what no client sees is no change.
func TestCheckDiff(t *testing.T) {
	const was = ". {\ncache 30\nloop\nforward . 192.0.2.1\n}\na.test b.test {\nforward . 192.0.2.9\n}\n"
	for _, c := range []struct {
		name, is string
		want     []string // the changes
	}{
		{"the same", was, nil},
		{"layout", "# text\nb.test a.test {\n\n  forward . 192.0.2.9\n}\n.:53 {\n  forward . 192.0.2.1\n  loop\n  cache 30\n}\n", nil},
		{"split", strings.Replace(was, "a.test b.test {\nforward . 192.0.2.9\n}\n", "a.test {\nforward . 192.0.2.9\n}\nb.test {\nforward . 192.0.2.9\n}\n", 1), nil},
		{"a TTL", strings.Replace(was, "cache 30", "cache 60", 1), []string{".: cache is 9984 answers up to 1m0s, 9984 denials up to 1m0s, for its zones; it was 9984 answers up to 30s, 9984 denials up to 30s, for its zones"}},
		{"an upstream", strings.Replace(was, "192.0.2.9", "192.0.2.9 192.0.2.10", 1), []string{"a.test., b.test.: forward is . to 192.0.2.9:53 192.0.2.10:53; it was . to 192.0.2.9:53"}},
		{"a zone more", was + "c.a.test {\nwhoami\n}\n", []string{"c.a.test.: a new zone: whoami answers all other queries with the client's own address; its names were answered by the zone a.test."}},
		{"a zone less", strings.Replace(was, "a.test b.test", "a.test", 1), []string{"b.test.: no zone any more: forward . to 192.0.2.9:53; its names go to the zone ."}},
		{"no root zone", strings.Replace(was, ". {", "d.test {", 1), []string{
			"d.test.: a new zone: forward . to 192.0.2.1:53", ".: no zone any more: forward . to 192.0.2.1:53; its names are REFUSED",
		}},
		{"a directive less", strings.Replace(was, "loop\n", "", 1), []string{".: gone: loop on"}},
		{"an option", strings.Replace(was, "192.0.2.1\n", "192.0.2.1 {\nforce_tcp\n}\n", 1), []string{".: new: forward with force_tcp"}},
		{"a port", strings.Replace(was, "a.test b.test", "a.test b.test:5353", 1), []string{
			"b.test. (dns port 5353): a new zone: forward . to 192.0.2.9:53", "b.test.: no zone any more: forward . to 192.0.2.9:53; its names go to the zone .",
		}},
		{"a mistake", strings.Replace(was, "cache 30", "cache 30s", 1), []string{"the agent: new: warning cache: \"30s\" is read as a zone"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			paths := []string{filepath.Join(dir, "was"), filepath.Join(dir, "is")}
			agenttest.WriteFile(t, paths[0], was)
			agenttest.WriteFile(t, paths[1], c.is)
			code, stdout, stderr := checkOutput(t, "", append(paths, "--diff")...)
			if code != exitOK {
				t.Fatal(stderr)
			}
			_, body, _ := strings.Cut(stdout, "\n\n")
			body, _, _ = strings.Cut(body, "\n\n")
			if c.want == nil {
				c.want = []string{"nothing changes for clients"}
			}
			hasTexts(t, body+"\n", c.want...)
			if n := strings.Count(body, "\n") + 1; n != len(c.want) && c.name != "a mistake" {
				t.Errorf("%d changes, want %d:\n%s", n, len(c.want), body)
			}
		})
	}
	if code, _, stderr := checkOutput(t, was, "--diff", "-"); code == exitOK || !strings.Contains(stderr, "--diff compares two") {
		t.Errorf("one file: %d %s", code, stderr)
	}
}

// askCorefile has a step of each kind.
const askCorefile = `. {
    rewrite name old.test web.shop.svc.cluster.local
    hosts {
        192.0.2.20 printer.test
        fallthrough
    }
    template IN A apps.test {
        answer "{{ .Name }} 60 IN A 192.0.2.30"
    }
    kubernetes cluster.local in-addr.arpa {
        fallthrough in-addr.arpa
    }
    cache 30
    forward . 192.0.2.1 192.0.2.2
}
corp.test {
    acl {
        block net 198.51.100.1
    }
    forward . 192.0.2.9
}
`

// TestCheckAsk: a query takes the agent's own path, and expectations that are not met are errors with their line.
func TestCheckAsk(t *testing.T) {
	dir := t.TempDir()
	corefile, manifest, expect := filepath.Join(dir, "Corefile"), filepath.Join(dir, "shop.yaml"), filepath.Join(dir, "expect")
	agenttest.WriteFile(t, corefile, askCorefile)
	agenttest.WriteFile(t, manifest, "kind: ConfigMap\napiVersion: v1\nmetadata: {name: node-local-dns}\ndata:\n  Corefile: |\n    "+strings.ReplaceAll(askCorefile, "\n", "\n    ")+
		"\n---\nkind: Service\napiVersion: v1\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.7.1, clusterIPs: [10.96.7.1], ports: [{port: 80}]}\n")
	lines := []struct{ line, unmet string }{
		{"# expectations", ""},
		{"web.shop from=shop/cart answer=10.96.7.1 by=kubernetes rcode=NOERROR zone=.", ""},
		{"old.test answer=10.96.7.1", ""},
		{"printer.test by=hosts answer=192.0.2.20", ""},
		{"a.apps.test by=template answer=192.0.2.30 # a comment", ""},
		{"none.shop.svc.cluster.local. rcode=NXDOMAIN by=kubernetes", ""},
		{"example.org/AAAA by=forward upstream=192.0.2.2 rcode=unknown", ""},
		{"x.corp.test from=shop/other zone=corp.test line=16 upstream=192.0.2.9", ""},
		{"x.corp.test. from=198.51.100.1 rcode=REFUSED by=acl", ""},
		{"printer.test by=forward", "by is hosts, expected forward"},
		{"example.org upstream=192.0.2.9 zone=corp.test", "upstream is 192.0.2.1:53"},
	}
	var text strings.Builder
	for _, l := range lines {
		text.WriteString(l.line + "\n")
	}
	agenttest.WriteFile(t, expect, text.String())
	code, stdout, stderr := checkOutput(t, "", manifest, "--expect", expect)
	for i, l := range lines {
		at := fmt.Sprintf("%s:%d: ", expect, i+1)
		if got := strings.Contains(stderr, at); got != (l.unmet != "") || !strings.Contains(stderr, l.unmet) {
			t.Errorf("%s: %s", l.line, stderr)
		}
	}
	if code != exitError || !strings.Contains(stdout, "8 of 10 expectations are met") {
		t.Errorf("%d %s", code, stdout)
	}
	agenttest.WriteFile(t, expect, "printer.test because=it\n")
	if code, _, stderr = checkOutput(t, "", corefile, "--expect", expect); code != exitError || !strings.Contains(stderr, "expect:1: \"because=it\" is no expectation") {
		t.Errorf("a key that is none: %d %s", code, stderr)
	}
	// One question, as text and as JSON.
	if _, stdout, stderr = checkOutput(t, "", corefile, "--ask", "printer.test", "--from", "shop/cart"); !strings.Contains(stdout, "answered by  hosts") || !strings.Contains(stdout, "not known without a cluster") {
		t.Errorf("%s%s", stdout, stderr)
	}
	var r checkResult
	_, stdout, stderr = checkOutput(t, "", corefile, "--ask", "printer.test", "-o", "json")
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || len(r.Questions) != 1 || r.Questions[0].Explanation.Questions[0].Source != "hosts" {
		t.Errorf("%v %s%s", err, stdout, stderr)
	}
}
