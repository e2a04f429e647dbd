//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// TestExplainCommand: the formats of an explanation.
func TestExplainCommand(t *testing.T) {
	p := peer.Ports(t, 2)
	_, dir := adminOf(t, fmt.Sprintf("test:%d {\n bind 127.0.0.1\n hosts {\n  192.0.2.1 a.test\n  fallthrough\n }\n cache\n forward . 127.0.0.1:%d\n}\n", p[0], p[1]))
	for args, wants := range map[string][]string{
		"a.test":        {"a.test. A\n", "hosts  answers", "answered by  hosts", "a.test. 3600 IN A 192.0.2.1", "reply        NOERROR, TTL 3600 s"},
		"a.test AAAA":   {"a.test. AAAA\n", "NOERROR, no records"},
		"b.test":        {"cache    passes   not cached", "forward  waits", "answered by  forward", "reply        not known", fmt.Sprintf("upstream     127.0.0.1:%d, up, RTT -", p[1])},
		"--tcp b.other": {"dns over tcp", "no server block of the listener takes the name", "answered by  server", "REFUSED"},
	} {
		code, out, stderr := outcome(t, append([]string{"explain", "--handover-dir", dir}, strings.Fields(args)...)...)
		for _, want := range wants {
			if code != 0 || !strings.Contains(out, want) {
				t.Errorf("%s: %d, no %q in\n%s%s", args, code, want, out, stderr)
			}
		}
	}
	var asJSON, asYAML report.Explanation
	_, out, _ := outcome(t, "explain", "a.test", "--handover-dir", dir, "-o", "json")
	if err := json.Unmarshal([]byte(out), &asJSON); err != nil || len(asJSON.Questions) != 1 || asJSON.Questions[0].Source != "hosts" {
		t.Errorf("as JSON: %v\n%s", err, out)
	}
	_, out, _ = outcome(t, "explain", "a.test", "--handover-dir", dir, "-o", "yaml")
	if err := yaml.Unmarshal([]byte(out), &asYAML); err != nil || cmp.Diff(asJSON, asYAML) != "" {
		t.Errorf("as YAML: %v\n%s", err, cmp.Diff(asJSON, asYAML))
	}
	for args, want := range map[string]string{
		"explain --handover-dir " + dir:                      "it got 0 arguments",
		"explain a b c --handover-dir " + dir:                "it got 3 arguments",
		"explain a NOTYPE --handover-dir " + dir:             "give the name of a record type",
		"explain a --from ns/none --handover-dir " + dir:     "of a pod of this node",
		"explain a --server 192.0.2.1 --handover-dir " + dir: "the agent listens at",
	} {
		if code, _, stderr := outcome(t, strings.Fields(args)...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d %s, want %q", args, code, stderr, want)
		}
	}
}

// TestPrintExplanation: the text of a pod's search path.
func TestPrintExplanation(t *testing.T) {
	ttl, age := uint32(5), 12.4
	e := &report.Explanation{
		Listener: report.ExplainedListener{Address: "169.254.20.10:53", Transport: "dns", Protocol: "udp"},
		Client: report.ExplainedClient{
			Address: "10.244.1.7", Namespace: "shop", Pod: "client", Limited: map[string]uint64{"client_limit": 7}, LimitedSeconds: 50, Kernel: &report.KernelClient{Interface: "veth7", Answering: true, Result: "answered"},
		},
		Ndots: 5, Search: []string{"shop.svc.cluster.local.", "corp.test."},
		Questions: []report.ExplainedQuestion{
			{Name: "a.test.shop.svc.cluster.local.", Type: "A", Source: "kubernetes", ExplainedReply: report.ExplainedReply{Rcode: "NXDOMAIN", TTLSeconds: &ttl}},
			{
				Name: "a.test.corp.test.", Type: "A", Source: "forward", Alternatives: []string{"autopath", ""}, Waits: "upstream",
				Forward: &report.ExplainedForward{From: ".", Policy: "fastest", Upstreams: []report.ExplainedUpstream{{To: "192.0.2.1:53", RTTSeconds: 0.0004}, {To: "192.0.2.2:53", Down: true}}},
			},
			{
				Name: "a.test.", Type: "A", Conditional: true, Source: "cache",
				ExplainedReply: report.ExplainedReply{Rcode: "NOERROR", TTLSeconds: &ttl, Answers: []string{"a.test. 5 IN A 192.0.2.7"}, MoreAnswers: 2},
				Steps: []report.ExplainedStep{
					{Name: "a.test.", Type: "A", Step: "zone", Outcome: "takes", Reason: ". (line 3 of the Corefile)"},
					{Name: "b.test.", Type: "A", Depth: 1, Step: "cache", Outcome: "answers", Cached: &report.CacheEntry{TTLSeconds: 5, AgeSeconds: &age, StaleSeconds: 3605}},
				},
				MoreSteps: 1,
				Cached:    []report.CacheEntry{{Type: "A", Rcode: "NXDOMAIN", DNSSEC: true, CheckingDisabled: true, Subtree: true}},
				Kernel:    &report.ExplainedKernel{Copies: []report.KernelCopy{{Flags: []string{"RD"}, Rcode: "NOERROR", State: "valid", TTLSeconds: &age}}},
			},
		},
	}
	var b strings.Builder
	check.NoError(t, printExplanation(&b, e, false))
	want := `listener     169.254.20.10:53, dns over udp
client       10.244.1.7, pod shop/client
limited      client_limit 7 in the last 50 s; more queries may be refused, dropped or shed
interface    veth7; the kernel answers
search path  shop.svc.cluster.local. corp.test. (ndots 5)

QUERY  NAME                            ANSWERED BY                    REPLY      COST
1      a.test.shop.svc.cluster.local.  kubernetes                     NXDOMAIN   none
2      a.test.corp.test.               forward or autopath or server  not known  asks an upstream, about 0.4ms
3?     a.test.                         cache                          NOERROR    none

a.test. A

STEP     OUTCOME  WHY
zone     takes    . (line 3 of the Corefile)
  cache  answers  for b.test. A; 12 s old, 5 s left, may be served for 3605 s
and 1 more steps

answered by  cache
reply        NOERROR, TTL 5 s
             a.test. 5 IN A 192.0.2.7
             and 2 more records
cached       A with DO with CD: NXDOMAIN, 0 records, also for all names below; age not known, expired
kernel       copy for queries with RD: NOERROR, 12 s left; not given yet
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
	b.Reset()
	if err := printExplanation(&b, e, true); err != nil || !strings.Contains(b.String(), "upstream     192.0.2.2:53, down, RTT -\n") {
		t.Errorf("wide: %v\n%s", err, b.String())
	}
}
