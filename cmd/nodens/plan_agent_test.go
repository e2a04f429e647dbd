//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// planAgent answers /plan with reply, at the socket in the directory that it returns.
func planAgent(t *testing.T, reply report.Plan) string {
	t.Helper()
	dir := t.TempDir()
	serveAdmin(t, filepath.Join(dir, report.DefaultSocketName), func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(reply) })
	return dir
}

// TestPlanOfAgent: without flags about an agent, plan prints the network of the running one, and says so.
func TestPlanOfAgent(t *testing.T) {
	reply := report.Plan{
		Header: report.Header{SchemaVersion: 1, Node: "node-1", Instance: "0a"},
		Network: report.Network{
			Interface: "nodelocaldns", Addresses: []string{"169.254.20.10/32"}, ExternalInterfaces: []string{"eth0"}, OpenInterfaces: []string{"br0 (bridge)"},
			Backend: "nftables", Rules: []string{"first", "second"},
		},
	}
	dir := planAgent(t, reply)
	code, out, stderr := outcome(t, "plan", "--handover-dir", dir)
	want := `agent     running on node-1, asked at ` + dir + `/admin.sock
interface nodelocaldns (dummy)
address   169.254.20.10/32
external  eth0
open      br0 (bridge): pods may use it too; if none does, name it with --external-interfaces
rules     nftables
first
second
`
	if diff := cmp.Diff(want, out); diff != "" || code != 0 {
		t.Errorf("%d %s\n%s", code, stderr, diff)
	}
	var got report.Plan
	_, out, _ = outcome(t, "plan", "--admin-socket", dir+"/admin.sock", "-o", "json")
	check.NoError(t, json.Unmarshal([]byte(out), &got))
	if diff := cmp.Diff(reply, got); diff != "" {
		t.Error(diff)
	}
	if code, out, _ := outcome(t, "plan", "--handover-dir", dir, "--localip", "169.254.20.11", "--netfilter=nftables"); code != 0 || !strings.Contains(out, "169.254.20.11/32") || strings.Contains(out, "running") {
		t.Errorf("with flags: %d\n%s", code, out)
	}
	bad := planAgent(t, report.Plan{Network: report.Network{Interface: "x", Addresses: []string{"nonsense"}}})
	if code, _, stderr := outcome(t, "plan", "--handover-dir", bad); code != 1 || !strings.Contains(stderr, "not valid") {
		t.Errorf("an invalid reply: %d %s", code, stderr)
	}
}

// TestPlanAsks: an agent whose network stays unchanged says so; without an agent the error names the flags.
func TestPlanAsks(t *testing.T) {
	_, dir := adminOf(t, fmt.Sprintf("test:%d {\n bind 127.0.0.1\n hosts\n}\n", peer.Ports(t, 1)[0]))
	code, out, stderr := outcome(t, "plan", "--handover-dir", dir)
	if lines := strings.SplitN(out, "\n", 2); code != 0 || len(lines) != 2 || !strings.HasPrefix(lines[0], "agent     running on ") || lines[1] != networkUnchanged {
		t.Errorf("%d %s\n%s", code, stderr, out)
	}
	none := t.TempDir()
	code, out, stderr = outcome(t, "plan", "--handover-dir", none)
	for _, want := range []string{"give the agent --handover-dir " + none, "or give this command the agent's flags, such as --localip"} {
		if code != 1 || out != "" || !strings.Contains(stderr, want) {
			t.Errorf("without an agent: %d, %q is not in %s", code, want, stderr)
		}
	}
}
