package app

import (
	"bytes"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
)

// outcome runs a command to its end in this process.
func outcome(args ...string) (code int, stdout, stderr string) {
	var out, fault bytes.Buffer
	code = Run(args, &out, &fault)
	return code, out.String(), fault.String()
}

// TestPlan: the plan names link, addresses and rules; what there is none of is said.
func TestPlan(t *testing.T) {
	tests := []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"nftables", []string{"-localip", "169.254.20.10,fd00::10", "-netfilter", "nftables"}, 0, []string{"nodelocaldns", "169.254.20.10/32", "fd00::10/128", "table inet nodens"}},
		{"iptables", []string{"-localip", "169.254.20.10", "-netfilter=iptables"}, 0, []string{"nodelocaldns", "NODENS-PREROUTING"}},
		{"only the link", []string{"-localip", "169.254.20.10", "-netfilter=none"}, 0, []string{"nodelocaldns"}},
		{"only rules", []string{"-localip", "169.254.20.10", "-setupinterface=false", "-netfilter=nftables"}, 0, []string{"169.254.20.10"}},
		{"external interfaces", []string{"-localip", "169.254.20.10", "-external-interfaces", "eth1,eth0"}, 0, []string{"external eth0, eth1\n", "eth1"}},
		{"no external interfaces", []string{"-localip", "169.254.20.10", "-external-interfaces=none"}, 0, []string{"external none\n"}},
		{"no such interface", []string{"-localip", "169.254.20.10", "-external-interfaces=eth*"}, 1, []string{"-external-interfaces: \"eth*\" is not the name"}},
		{"no address", nil, 0, []string{"left alone"}},
		{"nothing", []string{"-localip", "169.254.20.10", "-setupinterface=false", "-setupiptables=false"}, 0, []string{"left alone"}},
		{"no such filter", []string{"-netfilter", "pf"}, 2, []string{"-netfilter", "give auto, iptables, nftables or none"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := outcome(append([]string{"plan"}, tt.args...)...)
			if code != tt.code {
				t.Fatalf("code %d, want %d: %s", code, tt.code, stderr)
			}
			for _, text := range tt.want {
				if !strings.Contains(stdout+stderr, text) {
					t.Errorf("%q is not in it:\n%s%s", text, stdout, stderr)
				}
			}
		})
	}
}

// TestReadyCommand: it tells whether there is an agent, and whether that one is ready.
func TestReadyCommand(t *testing.T) {
	if code, _, stderr := outcome("ready"); code != 1 || !strings.Contains(stderr, "-handover-dir") {
		t.Errorf("without a folder: code %d, %s", code, stderr)
	}
	dir := filepath.Join(t.TempDir(), "handover")
	if code, _, stderr := outcome("ready", "-handover-dir", dir); code != 1 || !strings.Contains(stderr, dir) {
		t.Errorf("without an agent: code %d, %s", code, stderr)
	}
	p := peer.Ports(t, 2)
	startAgent(t, withCache(p[0], p[1], p[1]), "-handover-dir", dir)
	if code, _, stderr := outcome("ready", "-handover-dir", dir); code != 0 {
		t.Errorf("with an agent: code %d, %s", code, stderr)
	}
	if code, _, stderr := outcome("cleanup", "-handover-dir", dir); code != 1 || !strings.Contains(stderr, "stop it first") {
		t.Errorf("cleaning up beside an agent: code %d, %s", code, stderr)
	}
	if got := ask(t, p[0], "x.test."); got != "SERVFAIL" {
		t.Errorf("the agent answers with %s after that", got)
	}
}

// TestWait: it does nothing until it is asked to end, which is no failure.
func TestWait(t *testing.T) {
	p := startProcess(t, "agent", nil, "wait")
	p.awaitLog("waiting")
	p.signal(syscall.SIGTERM)
	p.awaitExit(0)
}
