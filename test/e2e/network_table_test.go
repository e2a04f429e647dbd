package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/rig/load"
)

// TestPlan: which parts run on which networks, and which run beside the others.
func TestPlan(t *testing.T) {
	for _, tt := range []struct {
		selection
		want string
	}{
		{selection{}, "drop-in bridge, install bridge, names bridge, scraping bridge, attribution bridge, incident bridge, rollback bridge beside, chaos bridge beside, egress bridge beside, network ptp ptp beside, dual-stack bridge beside, adoption bridge"},
		{selection{parts: []string{"names"}}, "names bridge"},
		{selection{parts: []string{"network"}, networks: []string{"bridge", "ptp"}}, "network bridge bridge, network ptp ptp"},
		{selection{parts: []string{"names", "network"}, networks: []string{"ptp"}}, "names ptp, network ptp ptp"},
		{selection{parts: []string{"network"}, networks: []string{"ptp"}, proxies: []string{"iptables", "nftables"}, releases: []string{"v1.36", "v1.37"}},
			"network ptp ptp iptables v1.36, network ptp ptp iptables v1.37, network ptp ptp nftables v1.36, network ptp ptp nftables v1.37"},
		{selection{parts: []string{"names"}, releases: []string{"v1.36"}}, "names bridge iptables v1.36"},
		{selection{parts: []string{"nothing"}}, "error"},
		{selection{networks: []string{"nothing"}}, "error"},
		{selection{releases: []string{"v1.1"}}, "error"},
	} {
		t.Run(fmt.Sprint(tt.selection), func(t *testing.T) {
			got := "error"
			planned, err := plan(tt.selection)
			if err == nil {
				var names []string
				for _, p := range planned {
					name := p.name + " " + p.kind.network
					if p.kind.release != "" {
						name += " " + p.kind.proxy + " " + p.kind.release
					}
					if p.beside {
						name += " beside"
					}
					names = append(names, name)
					if len(p.checks) == 0 {
						t.Errorf("%s has no checks", p.name)
					}
				}
				got = strings.Join(names, ", ")
			}
			if got != tt.want {
				t.Errorf("got  %s (%v)\nwant %s", got, err, tt.want)
			}
		})
	}
}

// TestNetworkRow: a row says what failed, or was not reached.
func TestNetworkRow(t *testing.T) {
	row := &networkRow{network: "bridge", proxy: "iptables", kubernetes: "v1.36.3", kernelPath: "off"}
	const failed = "| bridge | iptables | v1.36.3 | off | **failed** | **failed** | **failed** | **failed** |\n"
	if got := row.String(); got != failed {
		t.Errorf("of a run that failed: %s", got)
	}
	row.names = comparison{queries: 10, different: 1}
	row.upgrade.add(load.Counts{Asked: 20})
	row.kill.add(load.Counts{Asked: 20, Lost: 3})
	row.kill.add(load.Counts{Asked: 10, Servfail: 1})
	pass := row.policyCheck("", func(context.Context, *suite) (string, error) { return "", nil })
	for range allPolicyChecks {
		if _, err := pass.run(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := row.String(), "| bridge | iptables | v1.36.3 | off | 9 of 10 | 0 of 20 | 4 of 30 | yes |\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestWriteNetworkTable: only what is between the two lines is replaced, and of it not the rows of other
// clusters.
func TestWriteNetworkTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	const before, after = "# Page\n", "\nEnd.\n"
	kept := []string{"| ptp | iptables | v1.37.2 | off | kept |\n", "| bridge | nftables | v1.37.1 | off | kept |\n", "| bridge | iptables | v1.36.3 | off | kept |\n"}
	old := strings.Join(kept, "") + "| bridge | iptables | v1.37.1 | off | old |\n- bridge: old\n- ptp: 7\n"
	row := &networkRow{network: "bridge", proxy: "iptables", kubernetes: "v1.37.2", kernelPath: "off"}
	s := suite{clusterState: clusterState{networkRows: []*networkRow{row}}}
	if err := os.WriteFile(path, []byte(before+after), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.writeNetworkTable(t.Context(), path); err == nil {
		t.Error("a page without the lines is no error")
	}
	if err := os.WriteFile(path, []byte(before+networkTableBegin+old+networkTableEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
	s.versions = map[string]string{"bridge": "1.2"}
	if err := s.writeNetworkTable(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := string(text)
	for _, want := range append(kept, before+networkTableBegin, networkTableEnd+after, row.String(), "- bridge: 1.2\n- ptp: 7\n") {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	if strings.Contains(got, "old") {
		t.Errorf("the old table is still there:\n%s", got)
	}
}

// TestDNSConnections: only lines about port 53 count.
func TestDNSConnections(t *testing.T) {
	const dns, probe = "udp 17 src=10.0.0.1 dst=10.96.0.10 sport=53000 dport=53 [UNREPLIED]\n", "tcp 6 dst=10.96.0.10 sport=53 dport=8181 use=1\n"
	if got := dnsConnections(probe + dns + probe); !slices.Equal(got, []string{dns}) {
		t.Errorf("got %q", got)
	}
}
