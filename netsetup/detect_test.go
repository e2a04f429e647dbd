// These tests use chooseBackend, kernelNode and name, which are not exported.

package netsetup

// Inside the package: choosing a backend is not exported.

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// backendNames are the filters of a choice, the chosen one first.
func backendNames(c backendChoice) []string {
	all := []string{c.backend.name()}
	for _, f := range c.others {
		all = append(all, f.name())
	}
	slices.Sort(all[1:])
	return all
}

// TestChooseBackend: what kubelet and kube-proxy have left says which filter it is.
func TestChooseBackend(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		for _, program := range []string{"iptables-nft-restore", "iptables-legacy-restore", "nft"} {
			if _, err := exec.LookPath(program); err != nil {
				t.Skip("needs both builds of iptables, and nft:", err)
			}
		}
		plain := "iptables (nft)"
		if out := run(t, "iptables", "--version"); strings.Contains(out, "legacy") {
			plain = "iptables (legacy)"
		}
		for _, tt := range []struct {
			name string
			how  Netfilter
			node [][]string
			want string
		}{
			{"nothing", NetfilterAuto, nil, plain},
			{"nothing, zero value", "", nil, plain},
			{"nothing, nftables", NetfilterNftables, nil, "nftables"},
			{"old kube-proxy", NetfilterAuto, [][]string{{"ip6tables-legacy", "-t", "nat", "-N", "KUBE-SERVICES"}}, "iptables (legacy)"},
			{"kubelet by nft", NetfilterAuto, [][]string{{"iptables-nft", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT"}}, "iptables (nft)"},
			{"kube-proxy in nftables mode", NetfilterAuto, [][]string{{"nft", "add", "table", "ip6", "kube-proxy"}, {"nft", "add chain ip6 kube-proxy nat-prerouting { type nat hook prerouting priority dstnat; }"}}, "nftables"},
			{"the flag wins", NetfilterIptables, nil, "iptables (nft)"},
		} {
			for _, words := range tt.node {
				run(t, words...)
			}
			c, err := (&kernelNode{}).chooseBackend(t.Context(), tt.how, dualStack().Addresses)
			check.NoError(t, err)
			got := backendNames(c)
			if got[0] != tt.want || len(slices.Compact(slices.Sorted(slices.Values(got)))) != 3 {
				t.Errorf("%s: chose %q, want %q and two others", tt.name, got, tt.want)
			}
		}
	})
}

// TestChooseBackendLeavesNoTraces: looking for traces makes none.
func TestChooseBackendLeavesNoTraces(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		state := func() string {
			text := dumpNode(t)
			for _, f := range []string{"/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"} {
				b, _ := os.ReadFile(f)
				text += string(b)
			}
			if _, err := exec.LookPath("nft"); err == nil {
				text += run(t, "nft", "list", "ruleset")
			}
			return text
		}
		before := state()
		if _, err := Preview(t.Context(), dualStack()); err != nil {
			t.Fatal(err)
		}
		if r, err := Clean(t.Context(), dualStack()); err != nil || r.Removed != nil || r.Left != nil {
			t.Errorf("Clean of nothing: %+v, %v", r, err)
		}
		if after := state(); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	})
}

// TestChooseBackendNeedsProgram: only iptables needs one, and it is named.
func TestChooseBackendNeedsProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, how := range []Netfilter{NetfilterAuto, NetfilterNftables} {
		if c, err := chooseBackend(t.Context(), how, nil); err != nil || c.backend.name() != "nftables" {
			t.Errorf("%s: %v, %v", how, c, err)
		}
	}
	if _, err := chooseBackend(t.Context(), NetfilterIptables, nil); !errors.Is(err, ErrNoTool) || !strings.Contains(err.Error(), "iptables:") {
		t.Errorf("iptables: %v", err)
	}
}

// TestChooseModeByVersion: programs without a flavour in their names are of
// the one that their version says, legacy if it says nothing.
func TestChooseModeByVersion(t *testing.T) {
	for version, want := range map[string]string{
		"iptables v1.8.9 (nf_tables)": "nft", "iptables v1.8.9 (legacy)": "legacy", "iptables v1.6.1": "legacy",
	} {
		dir := t.TempDir()
		t.Setenv("PATH", dir)
		for _, name := range []string{"iptables", "iptables-restore"} {
			script(t, dir, name, "echo '"+version+"'")
		}
		found, err := installedModes(t.Context(), make(programSet), nil)
		if len(found) != 1 || found[0].mode != want || found[0].programs[IPv6] != nil || err != nil {
			t.Fatalf("%s: %+v, %v", version, found, err)
		}
		p, ok := found[0].programs[IPv4].(*iptablesProgram)
		if n, nft := found[0].programs[IPv4].(nftProgram); nft {
			p, ok = n.iptablesProgram, want == "nft"
		}
		if !ok || p.name != "iptables" {
			t.Errorf("%s: the program is %+v", version, found[0].programs[IPv4])
		}
	}
}

// TestChooseUnusableProgram: a program that is installed and does not run is named.
func TestChooseUnusableProgram(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	for _, name := range []string{"ip6tables-legacy", "ip6tables-legacy-restore"} {
		script(t, dir, name, "exit 126")
	}
	if c, err := chooseBackend(t.Context(), NetfilterAuto, nil); err != nil || !strings.Contains(c.reason, "ip6tables-legacy") {
		t.Errorf("auto: because %s, %v", c.reason, err)
	}
	_, err := chooseBackend(t.Context(), NetfilterIptables, nil)
	if !errors.Is(err, ErrNoTool) || !strings.Contains(err.Error(), "ip6tables-legacy") || !strings.Contains(err.Error(), "126") {
		t.Errorf("%v does not say that ip6tables-legacy fails", err)
	}
}

// script puts a program of one line into dir.
func script(t *testing.T, dir, name, line string) {
	t.Helper()
	check.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+line+"\n"), 0o755))
}
