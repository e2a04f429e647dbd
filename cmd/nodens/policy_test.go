//go:build linux

package main

import (
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
)

// TestPolicyCommand: the table has a row for each policy of an address, and says what is not known.
func TestPolicyCommand(t *testing.T) {
	two := []report.PolicyPod{
		{Address: "10.0.0.1", Namespace: "shop", Pod: "web-0", Policies: []report.BoundPolicy{{Name: "api", Mode: "Enforce", Default: "Deny", Names: 3, Denied: 7}, {Name: "try", Mode: "Audit", Default: "Allow", Names: 1}}},
		{Address: "10.0.0.2", Policies: []report.BoundPolicy{{Name: "api", Mode: "Enforce", Default: "Deny", Names: 3, Denied: 7}}},
	}
	for name, c := range map[string]struct {
		reply report.Policies
		want  string
	}{
		"off":       {report.Policies{Unknown: "off"}, "The agent watches no DNSPolicies; it has to run with --dns-policies=open or closed.\n"},
		"none":      {report.Policies{Unknown: "open", Known: true}, "No policy binds a pod of this node.\n"},
		"not known": {report.Policies{Unknown: "closed"}, "The agent does not know all policies and pods yet. Clients that it does not know: get no answers.\nNo policy binds a pod of this node.\n"},
		"two": {report.Policies{Unknown: "open", Known: true, Pods: two, More: 5}, "NAMESPACE POD ADDRESS POLICY MODE DEFAULT NAMES DENIED\n" +
			"shop web-0 10.0.0.1 api Enforce Deny 3 7\nshop web-0 10.0.0.1 try Audit Allow 1 0\n- - 10.0.0.2 api Enforce Deny 3 7\nand 5 more addresses\n"},
	} {
		t.Run(name, func(t *testing.T) {
			socket := topAgentFunc(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/policies" {
					t.Errorf("asked for %s", r.URL)
				}
				_ = json.NewEncoder(w).Encode(c.reply)
			})
			code, out, stderr := outcome(t, "policy", "--admin-socket", socket)
			if code != 0 || squeeze(out) != c.want {
				t.Errorf("exit code %d, %s\n%s\nwant\n%s", code, stderr, squeeze(out), c.want)
			}
			if _, out, _ := outcome(t, "policy", "--admin-socket", socket, "-o", "json"); !strings.Contains(out, `"unknown": "`+c.reply.Unknown) {
				t.Errorf("as JSON: %s", out)
			}
		})
	}
}

// draftReply is the reply of a node to a draft.
func draftReply(node string, queries uint64) report.DraftPolicy {
	return report.DraftPolicy{Header: report.Header{SchemaVersion: report.SchemaVersion, Node: node}, Draft: report.Draft{
		WindowSeconds: 1800, Floor: 2, KernelSample: 64, Addresses: 2, Queries: 10 * queries, Denied: 2 * queries, More: 1,
		Names: []report.DraftDenial{
			{Namespace: "shop", Pod: "web-" + node, Address: "10.0.0.1", Name: "a.test.", Queries: queries, Policy: "p"},
			{Namespace: "shop", Pod: "web-" + node, Address: "10.0.0.1", Name: "b.test.", Queries: queries - 1, Policy: "q", DeniedNow: true},
		},
	}}
}

const noDraftPods = "The policy would bind no pod that an agent knows: see its namespace and its podSelector.\n"

// TestPolicyDraft: the agent gets the draft from a file or the standard input, and the table shows what it says.
func TestPolicyDraft(t *testing.T) {
	reply, got := draftReply("1", 7), ""
	socket := topAgentFunc(t, func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		got = r.Method + " " + r.URL.Path + " " + string(text)
		_ = json.NewEncoder(w).Encode(reply)
	})
	file := filepath.Join(t.TempDir(), "draft.yaml")
	agenttest.WriteFile(t, file, "kind: DNSPolicy\n")
	const want = `2 addresses of pods: 14 of 70 queries of the last 30m0s would be denied; of the answers from the kernel, 1 in 64 is sampled; names that are not counted have at most 2 queries each

POD QUERIES NAME POLICY NOW
shop/web-1 7 a.test. p allowed
shop/web-1 6 b.test. q denied
and 1 more names
`
	if code, out, stderr := outcome(t, "policy", "--admin-socket", socket, "--draft", file); code != 0 || squeeze(out) != want || got != "POST /policies/draft kind: DNSPolicy\n" {
		t.Errorf("exit code %d, %s\n%s\nwant\n%s\nthe agent got %q", code, stderr, squeeze(out), want, got)
	}
	reply = report.DraftPolicy{}
	if _, out, _ := outcome(t, "policy", "--admin-socket", socket, "--draft", file); out != noDraftPods {
		t.Errorf("without pods: %s", out)
	}
	if code, _, stderr := outcome(t, "policy", "--admin-socket", socket, "--draft", file+".none"); code != 1 || !strings.Contains(stderr, "--draft: ") {
		t.Errorf("a file that is not there: exit code %d, %s", code, stderr)
	}
	agenttest.WriteFile(t, file, strings.Repeat("#", report.MaxDraft+1))
	if code, _, stderr := outcome(t, "policy", "--admin-socket", socket, "--draft", file); code != 1 || !strings.Contains(stderr, "more than 3 MiB") {
		t.Errorf("a large file: exit code %d, %s", code, stderr)
	}
}

// TestPluginPolicy: the policies of the pods of two nodes, and what a draft would deny on both, of which the agents get all.
func TestPluginPolicy(t *testing.T) {
	k := newFakeKubectl(t)
	for i, node := range []string{"node-1", "node-2"} {
		k.agent(node, node, report.Policies{Header: report.Header{SchemaVersion: report.SchemaVersion}, Unknown: "open", Known: true, Pods: []report.PolicyPod{
			{Address: "10.0.0.1", Namespace: "shop", Pod: "web-" + node, Policies: []report.BoundPolicy{{Name: "api", Mode: "Enforce", Default: "Deny", Names: 3, Denied: uint64(i)}}},
		}})
	}
	const want = `NODE NAMESPACE POD ADDRESS POLICY MODE DEFAULT NAMES DENIED
node-1 shop web-node-1 10.0.0.1 api Enforce Deny 3 0
node-2 shop web-node-2 10.0.0.1 api Enforce Deny 3 1
`
	if code, out, stderr := pluginOutcome(t, "policy --timeout 1m"); code != 0 || squeeze(out) != want {
		t.Errorf("exit code %d, %s\n%s\nwant\n%s", code, stderr, squeeze(out), want)
	}
	file := filepath.Join(t.TempDir(), "draft.yaml")
	agenttest.WriteFile(t, file, "kind: DNSPolicy\n")
	k.agent("node-1", "node-1", draftReply("1", 7))
	k.agent("node-2", "node-2", draftReply("2", 9))
	const drafted = `4 addresses of pods: 32 of 160 queries of the last 30m0s would be denied; of the answers from the kernel, 1 in 64 is sampled; names that are not counted have at most 2 queries each

POD QUERIES NAME POLICY NOW
shop/web-2 9 a.test. p allowed
shop/web-2 8 b.test. q denied
shop/web-1 7 a.test. p allowed
shop/web-1 6 b.test. q denied
and 2 more names
`
	if code, out, stderr := pluginOutcome(t, "policy --timeout 1m --draft "+file); code != 0 || squeeze(out) != drafted {
		t.Errorf("exit code %d, %s\n%s\nwant\n%s", code, stderr, squeeze(out), drafted)
	}
	if asked := strings.Join(k.Asked(), "\n"); !strings.Contains(asked, "exec node-1 --stdin -- nodens policy --draft - -o json") {
		t.Errorf("kubectl was asked %s", asked)
	}
}
