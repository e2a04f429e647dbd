package netsetup

// Inside the package: newSetup and the backends' names are not exported.

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// TestLegacyTablesOfOthers: an agent without NET_RAW, which the manifest does not grant, sets up the rules of the mode that
// kube-proxy uses, and tears them down, although another program has loaded the tables of iptables' legacy mode.
func TestLegacyTablesOfOthers(t *testing.T) {
	inNftNamespace(t, func(t *testing.T) {
		if os.Getenv(unprivilegedEnv) == "" {
			sh(t, "ip link set lo up; iptables-nft -t mangle -N KUBE-PROXY-CANARY")
			sh(t, "iptables-legacy -t nat -L; ip6tables-legacy -L; iptables-legacy -L; iptables-legacy -t raw -L")
		}
		withoutCapability(t, unix.CAP_NET_RAW, func() {
			if _, err := execute(t.Context(), "", "iptables-legacy", "-t", "nat", "-S"); err == nil {
				t.Fatal("iptables' legacy mode can be used without NET_RAW")
			}
			for _, netfilter := range []Netfilter{NetfilterAuto, NetfilterIptables, NetfilterNftables} {
				s := newSetup(t, Config{Addresses: labLocals, DNSPort: 53, SetupIptables: true, Netfilter: netfilter}, &kernelNode{})
				check.NoError(t, s.EnsureRules(t.Context()))
				written := sh(t, "nft -s list ruleset")
				if !strings.Contains(strings.ToLower(written), "nodens") {
					t.Errorf("%s: no rules of ours:\n%s", netfilter, written)
				}
				s.recheck(t.Context())
				for kind, count := range s.Stats().Errors {
					if count > 0 {
						t.Errorf("%s: %d errors of type %s", netfilter, count, kind)
					}
				}
				tearDown(t, s)
				if left := sh(t, "nft -s list ruleset"); strings.Contains(strings.ToLower(left), "nodens") {
					t.Errorf("%s: left after the teardown:\n%s", netfilter, left)
				}
			}
		})
	})
}
