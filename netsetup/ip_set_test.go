// These tests use installedModes and newNftBackend, which are not exported.

package netsetup

// Inside the package: the backends are not exported.

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// addIPSetRules makes rules with an IP set in built-in chains, as kube-router, firewalls and fail2ban do.
func addIPSetRules(t *testing.T) {
	t.Helper()
	if err := netlink.IpsetCreate("pods", "hash:net", netlink.IpsetCreateOptions{}); errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Skip("the kernel has no IP sets:", err)
	} else if err != nil {
		t.Fatal(err)
	}
	sh(t, `
iptables-nft -t nat -A POSTROUTING -s 10.0.0.0/8 -j RETURN
iptables-nft -t nat -A POSTROUTING -m set --match-set pods src -j MASQUERADE
iptables-nft -A INPUT -m set --match-set pods src -j DROP
iptables-nft -A OUTPUT -m set --match-set pods dst -j DROP
iptables-nft -t raw -A PREROUTING -m set --match-set pods src -j RETURN`)
}

// ipSetRule is how nft prints the match of these rules.
const ipSetRule = "xt match "

// TestIPSetsOfOthers: without NET_RAW, iptables cannot print rules with an IP set. An agent that lacks
// the capability, as it does in the manifest, writes, repairs and removes its rules beside them.
func TestIPSetsOfOthers(t *testing.T) {
	inNftNamespace(t, func(t *testing.T) {
		if os.Getenv(unprivilegedEnv) == "" {
			sh(t, "ip link set lo up")
			addIPSetRules(t)
		}
		withoutCapability(t, unix.CAP_NET_RAW, func() {
			if _, err := execute(t.Context(), "", "iptables-nft", "-t", "nat", "-S", "POSTROUTING"); err == nil || !strings.Contains(err.Error(), "ipset") {
				t.Fatalf("reading the chain: %v, want that it fails", err)
			}
			for name, newBackend := range map[string]func() ruleBackend{
				"iptables": func() ruleBackend { return nftModeBackend(t) },
				"nftables": func() ruleBackend { return newNftBackend(make(programSet)) },
			} {
				first := newBackend()
				wantEnsured(t, first, true)
				wantEnsured(t, first, false)
				written := sh(t, "nft -s list ruleset")
				if !strings.Contains(strings.ToLower(written), "nodens") {
					t.Errorf("%s: no rules of ours:\n%s", name, written)
				}
				next := newBackend()
				if _, err := next.ensure(t.Context(), testRules()); err != nil {
					t.Fatalf("%s, the next agent: %v", name, err)
				}
				check.Equal(t, written, sh(t, "nft -s list ruleset"), "%s, the next agent", name)
				if _, err := newBackend().remove(t.Context(), true); err != nil {
					t.Fatalf("%s, removing: %v", name, err)
				}
				left := sh(t, "nft -s list ruleset")
				if strings.Contains(strings.ToLower(left), "nodens") || strings.Count(left, ipSetRule) != 4 {
					t.Errorf("%s, removed:\n%s", name, left)
				}
			}
		})
	})
}

// nftModeBackend returns the backend for iptables in mode nft. The other mode needs NET_RAW.
func nftModeBackend(t *testing.T) ruleBackend {
	t.Helper()
	installed, _ := installedModes(t.Context(), make(programSet), labLocals)
	for _, b := range installed {
		if b.mode == "nft" {
			return b
		}
	}
	t.Fatal("iptables in mode nft cannot be used")
	return nil
}

// wantEnsured writes the rules, and wants changes or none.
func wantEnsured(t *testing.T, b ruleBackend, changes bool) {
	t.Helper()
	if n, err := b.ensure(t.Context(), testRules()); err != nil || n > 0 != changes {
		t.Fatalf("%s: ensure = %d, %v; want changes: %t", b.name(), n, err, changes)
	}
}
