package firewalls

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/load"
	"github.com/nodens-dns/nodens/test/rig/testbed"
	"github.com/nodens-dns/nodens/test/soak"
)

// removeProxyScripts remove kube-proxy's rules of a mode.
var removeProxyScripts = map[string]string{
	testbed.ProxyNftables:       "nft delete table ip kube-proxy; nft delete table ip6 kube-proxy",
	testbed.ProxyIptablesNft:    removeProxyChains("nft"),
	testbed.ProxyIptablesLegacy: removeProxyChains("legacy"),
}

func removeProxyChains(mode string) string {
	return fmt.Sprintf(`for t in iptables-%[1]s ip6tables-%[1]s; do
for c in KUBE-IPTABLES-HINT KUBE-KUBELET-CANARY KUBE-PROXY-CANARY; do $t -w -t mangle -X $c; done
for c in PREROUTING OUTPUT; do $t -w -t nat -D $c -m comment --comment "kubernetes service portals" -j KUBE-SERVICES; done
$t -w -t nat -F KUBE-SERVICES; $t -w -t nat -X KUBE-SERVICES
done`, mode)
}

// ownRules counts the agent's objects of each back end.
const ownRulesScript = `
echo $(nft list tables | grep -c '^table inet nodens$') $(nft list ruleset 2>/dev/null | grep -c 'chain NODENS-') \
	$( (iptables-legacy-save; ip6tables-legacy-save) 2>/dev/null | grep -c '^:NODENS-')
`

// newCluster are the addresses of the cluster DNS after it has moved.
var newCluster = []string{"10.202.0.3", "fd00:202::3"}

// TestBackEndChange: kube-proxy's mode changes from each to each other one, and an agent takes over that finds
// the new one, under 1,000 queries a second: none is lost, and one back end's rules remain. Then the cluster DNS
// moves and the agent is killed: the cluster DNS answers at its new address.
func TestBackEndChange(t *testing.T) {
	agent := agentPath(t)
	for _, from := range testbed.ProxyModes {
		for _, to := range testbed.ProxyModes {
			if from == to || !soak.Enabled() && (from != testbed.ProxyIptablesNft || to != testbed.ProxyNftables) {
				continue
			}
			t.Run(from+" to "+to, func(t *testing.T) {
				t.Parallel()
				testChange(t, newBed(t, agent, plainCell(BackEnd{"auto", "auto", from})), from, to)
			})
		}
	}
}

func testChange(t *testing.T, b *Bed, from, to string) {
	ctx := t.Context()
	old, err := b.startAgent()
	check.NoError(t, err)
	var now *peer.Process
	load := job(time.Second)
	load.Rate, load.OneShots = soak.Choose(200, 500), 20 // the pod and the node ask
	counts, err := b.during(load, func() error {
		if err := errors.Join(b.KubeProxy(to), onlyError(b.host.sh(ctx, removeProxyScripts[from]))); err != nil {
			return err
		}
		if now, err = b.startAgent(); err != nil {
			return err
		}
		return gone(old)
	})
	t.Logf("hand-over: %d of %d lost, %d SERVFAIL, %d by the cluster DNS", counts.Lost, counts.Asked, counts.Servfail, counts.Cluster)
	check.NoError(t, err)
	if counts.Failed() > 0 {
		t.Errorf("%d of %d queries failed", counts.Failed(), counts.Asked)
	}
	own, err := b.host.sh(ctx, ownRulesScript)
	check.NoError(t, err)
	kinds := 0
	for _, n := range strings.Fields(own) {
		if n != "0" {
			kinds++
		}
	}
	if kinds != 1 {
		t.Errorf("rules of %d back ends; own tables of nftables, chains of iptables-nft and of legacy iptables: %s", kinds, own)
	}
	check.NoError(t, moveClusterDNS(ctx, b, now))
	now.Kill()
	counts, err = b.ask(burst)
	t.Logf("kill: %d of %d lost, %d by the cluster DNS", counts.Failed(), counts.Asked, counts.Cluster)
	if err != nil || counts.Cluster != counts.Asked {
		t.Errorf("after the kill the cluster DNS answers %d of %d: %v", counts.Cluster, counts.Asked, err)
	}
	if err := b.cleanUp(ctx); err != nil {
		t.Error(err)
	}
	all, err := b.objects(ctx, true)
	if left := ownLeft(all); err != nil || left != "" {
		t.Errorf("left after the cleanup: %s, %v", left, err)
	}
}

func onlyError(_ string, err error) error { return err }

// moveClusterDNS gives the cluster DNS other addresses, tells the agent, and removes the old ones.
func moveClusterDNS(ctx context.Context, b *Bed, agent *peer.Process) error {
	was := []string{testbed.ClusterDNS4, testbed.ClusterDNS6}
	if err := b.sh(b.Cluster, "sysctl -qw net.ipv4.conf.all.promote_secondaries=1; ip addr add "+newCluster[0]+"/24 dev eth0; ip addr add "+newCluster[1]+"/64 dev eth0 nodad"); err != nil {
		return err
	}
	conf, err := b.File("Corefile.moved", fmt.Sprintf(".:53 {\n    bind %s %s\n    template IN A %s {\n        answer \"{{ .Name }} 60 IN A %s\"\n    }\n}\n", newCluster[0], newCluster[1], testbed.Zone, testbed.FromCluster))
	if err != nil {
		return err
	}
	p, err := b.Spawn(b.Cluster, nil, b.Agent, "-conf", conf, "-metrics-listen-address=", "-health-port=0", "-handover-dir=")
	if err != nil {
		return err
	}
	for i, a := range newCluster {
		if err := p.Await(ctx, "the moved cluster DNS to answer", b.Answers(b.Pod, testbed.FromCluster, "udp", netip.AddrPortFrom(netip.MustParseAddr(a), 53).String())); err != nil {
			return fmt.Errorf("%d: %w", i, err)
		}
	}
	text := strings.NewReplacer(was[0]+`"`, newCluster[0]+`"`, was[1]+`"`, newCluster[1]+`"`).Replace(testbed.Manifests())
	if _, err := b.File("cluster.yaml", text); err != nil {
		return err
	}
	if err := agent.Await(ctx, "the agent to see the move", testbed.LogContains(agent, newCluster[0]+":53")); err != nil {
		return err
	}
	// The rules follow the log line.
	if err := peer.Await(ctx, "the rules to lead to the new address", func(ctx context.Context) error {
		rules, err := b.host.sh(ctx, listScript+"ip6tables-nft-save 2>/dev/null || true") // nft does not print the addresses of all its rules
		if err == nil && !strings.Contains(rules, newCluster[1]) {
			err = errors.New("not yet")
		}
		return err
	}); err != nil {
		return err
	}
	return b.sh(b.Cluster, "ip addr del "+was[0]+"/24 dev eth0; ip addr del "+was[1]+"/64 dev eth0")
}

// TestRuleWhileAgentRuns: a rule that iptables can't read comes into a chain of iptables while the agent runs. The
// number of rules stays the same, and traffic through the node takes as long as before.
func TestRuleWhileAgentRuns(t *testing.T) {
	if !soak.Enabled() {
		t.Skip("takes minutes; the event arrives of TestMatrix sees the same rule")
	}
	agent := agentPath(t)
	t.Parallel()
	b := newBed(t, agent, plainCell(BackEnd{"iptables-nft", "iptables", testbed.ProxyIptablesNft}))
	if _, err := b.startAgent(); err != nil {
		t.Fatal(err)
	}
	forwarded := func() *load.Report {
		j := job(5*time.Second, testbed.ClusterDNS4)
		j.OneShots, j.Rate = 0, 200
		c, err := b.StartLoad(j, b.Client)
		check.NoError(t, err)
		report, err := c.Wait()
		check.NoError(t, err)
		return report
	}
	count := func() int {
		rules, err := b.host.sh(t.Context(), "nft -a list ruleset")
		check.NoError(t, err)
		return strings.Count(rules, "# handle")
	}
	before := forwarded()
	if _, err := b.host.sh(t.Context(), "nft add rule ip raw PREROUTING udp dport 4789 notrack"); err != nil {
		t.Fatal(err)
	}
	had := count()
	for end := time.Now().Add(soakTime); time.Now().Before(end); time.Sleep(10 * time.Second) {
		if now := count(); now != had {
			t.Fatalf("%d rules, after %d", now, had)
		}
	}
	after := forwarded()
	t.Logf("%d rules for %v; forwarded queries p50 %v before, %v after; p99 %v, %v", had, soakTime, before.UDP.P50, after.UDP.P50, before.UDP.P99, after.UDP.P99)
}

// soakTime is how long the rules are watched.
const soakTime = 3 * time.Minute
