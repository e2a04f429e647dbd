//go:build linux

package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/report"
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
