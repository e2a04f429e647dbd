package main

import (
	"testing"
)

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
		{"external interfaces", []string{"-localip", "169.254.20.10", "-external-interfaces", "eth1,eth0"}, 0, []string{"external  eth0, eth1\n", "eth1"}},
		{"no external interfaces", []string{"-localip", "169.254.20.10", "-external-interfaces=none"}, 0, []string{"external  none\n"}},
		{"no such interface", []string{"-localip", "169.254.20.10", "-external-interfaces=eth*"}, 1, []string{"-external-interfaces: \"eth*\" is not the name"}},
		{"no address", []string{"-netfilter=none"}, 0, []string{"stays unchanged"}},
		{"nothing", []string{"-localip", "169.254.20.10", "-setupinterface=false", "-setupiptables=false"}, 0, []string{"stays unchanged"}},
		{"no such filter", []string{"-netfilter", "pf"}, 2, []string{"-netfilter", "give auto, iptables, nftables or none"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := outcome(t, append([]string{"plan"}, tt.args...)...)
			if code != tt.code {
				t.Fatalf("code %d, want %d: %s", code, tt.code, stderr)
			}
			hasTexts(t, stdout+stderr, tt.want...)
		})
	}
}
