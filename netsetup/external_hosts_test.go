package netsetup

// Inside the package: the tests use kernelNode and helpers that are not exported.

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// connect connects one more place to the node, whose end of the link has the name, and is a port
// of the bridge if that is not "".
func (l *nftTestbed) connect(t *testing.T, name, bridge string, n int) netns {
	t.Helper()
	p := newNetns(t)
	at := name
	if bridge != "" {
		at = bridge
		sh(t, "ip link add "+bridge+" type bridge; ip link set "+bridge+" up")
	}
	script := strings.NewReplacer("NAME", name, "AT", at, "N", strconv.Itoa(n), "PLACE", p.path)
	sh(t, script.Replace(`ip link add NAME type veth peer name farN
ip link set farN netns PLACE
ip link set NAME up`))
	if bridge != "" {
		sh(t, "ip link set "+name+" master "+bridge)
	}
	sh(t, script.Replace(`ip addr add 10.9.N.1/24 dev AT
ip addr add fd09:N::1/64 dev AT nodad`))
	p.sh(t, script.Replace(`ip link set lo up
ip addr add 10.9.N.2/24 dev farN
ip addr add fd09:N::2/64 dev farN nodad
ip link set farN up
ip route add default via 10.9.N.1
ip -6 route add default via fd09:N::1`))
	return p
}

// externalTestbed is a lab with pods behind a veth and behind a bridge, and two hosts of which one
// is behind the node's default routes.
type externalTestbed struct {
	*nftTestbed
	bridged, first, second netns
	dropCounters           []string // programs that print what rules have counted
}

func newExternalTestbed(t *testing.T) *externalTestbed {
	t.Helper()
	l := &externalTestbed{nftTestbed: newNftTestbed(t), dropCounters: []string{"nft list ruleset"}}
	if isLegacy(t) { // nft lists the rules of the other build
		l.dropCounters = append(l.dropCounters, "iptables-save -c", "ip6tables-save -c")
	}
	l.first, l.second = l.connect(t, "eth0", "", 3), l.connect(t, "eth1", "", 4)
	l.bridged = l.connect(t, "port0", "cni0", 5)
	// All tables and hooks: the first rule makes them, and nobody ever removes them.
	sh(t, `for tool in iptables ip6tables; do
	for hook in "raw PREROUTING" "raw OUTPUT" "filter INPUT" "filter OUTPUT" "nat PREROUTING" "nat OUTPUT" "nat POSTROUTING"; do
		for how in -A -D; do $tool -w -t ${hook% *} $how ${hook#* } -p udp --dport 9 -j ACCEPT; done
	done
done`)
	return l
}

// setDefaultRoute has the node's default routes lead over an interface, that of net n.
func (l *externalTestbed) setDefaultRoute(t *testing.T, n int) {
	t.Helper()
	sh(t, fmt.Sprintf("ip route replace default via 10.9.%d.2; ip -6 route replace default via fd09:%d::2", n, n))
}

// firewalls drop, and count, DNS that nobody has let in before.
var firewalls = map[Netfilter]string{
	NetfilterIptables: `
for tool in iptables ip6tables; do
	$tool -w -A INPUT -i lo -j ACCEPT
	$tool -w -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
	$tool -w -A INPUT -p udp --dport 53 -j DROP
	$tool -w -A INPUT -p tcp --dport 53 -j DROP
	$tool -w -P INPUT DROP
done
ip6tables -w -I INPUT -p ipv6-icmp -j ACCEPT`,
	NetfilterNftables: `nft 'table inet fw { chain in { type filter hook input priority 0; policy drop; iif lo accept;
	ct state established,related accept; meta l4proto ipv6-icmp accept; meta l4proto { tcp, udp } th dport 53 counter drop; }; }'`,
}

// noFirewall takes the firewalls away.
const noFirewall = `nft delete table inet fw 2>/dev/null || true
for tool in iptables ip6tables; do $tool -w -P INPUT ACCEPT; $tool -w -F INPUT; done`

// drops is how a rule that drops is printed with its count, by iptables and by nft.
var drops = regexp.MustCompile(`(?m)^\[(\d+):\d+\] .* -j DROP$|counter packets (\d+) bytes \d+ drop(?: comment ".*")?$`)

// droppedPackets is how many packets all rules that drop have counted.
func (l *externalTestbed) droppedPackets(t *testing.T) (n int) {
	t.Helper()
	for _, program := range l.dropCounters {
		for _, found := range drops.FindAllStringSubmatch(run(t, strings.Fields(program)...), -1) {
			count, err := strconv.Atoi(found[1] + found[2])
			check.NoError(t, err)
			n += count
		}
	}
	return n
}

// wantDropped asks from a place, and wants the query dropped by a rule, and no answer.
func (l *externalTestbed) wantDropped(t *testing.T, from netns, network string, at netip.AddrPort) {
	t.Helper()
	before := l.droppedPackets(t)
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	answers := make(chan string, 1)
	go from.do(func() { answers <- askUntil(ctx, network, at) })
	for l.droppedPackets(t) == before {
		select {
		case got := <-answers:
			t.Errorf("%s to %v: answer %q; nobody has dropped it", network, at, got)
			return
		case <-time.After(time.Millisecond): // until the next look
		}
	}
	cancel()
	if got := <-answers; got != "" {
		t.Errorf("%s to %v: answer %q", network, at, got)
	}
}

// askUntil sends one query and returns the answer, or "" if ctx is done before there is one.
func askUntil(ctx context.Context, network string, at netip.AddrPort) string {
	conn, err := new(net.Dialer).DialContext(ctx, network, at.String())
	if err != nil {
		return ""
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	_, _ = io.WriteString(conn, "?")
	answer := make([]byte, 64)
	n, _ := conn.Read(answer)
	return string(answer[:n])
}

// wantNoAnswers has a place ask at every local address over UDP and TCP, and wants all dropped.
func (l *externalTestbed) wantNoAnswers(t *testing.T, from netns) {
	t.Helper()
	for _, local := range labLocals {
		for _, network := range []string{"udp", "tcp"} {
			l.wantDropped(t, from, network, netip.AddrPortFrom(local, 53))
		}
	}
}

// wantPodAnswers has pods and the node itself ask.
func (l *externalTestbed) wantPodAnswers(t *testing.T, answer string) {
	t.Helper()
	for _, from := range []netns{l.pod, l.bridged, {}} {
		l.wantAnswers(t, from, answer)
	}
}

// agent is a Setup whose rules stand, and which runs until stop is called.
func (l *externalTestbed) agent(t *testing.T, by Netfilter) (s *Setup, stop func()) {
	t.Helper()
	s = newSetup(t, Config{Addresses: labLocals, DNSPort: 53, HealthPort: 8080, SetupIptables: true,
		Netfilter: by, Interval: 24 * time.Hour}, nil)
	check.NoError(t, s.Divert(t.Context(), labDiversion))
	check.NoError(t, s.EnsureRules(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx) }()
	waitUntil(t, func() bool { return s.Stats().Checks > 0 }) // it listens to the kernel then
	return s, func() { cancel(); <-ended }
}

// ruleSets are the rules there are, without counts.
func ruleSets(t *testing.T) string {
	t.Helper()
	return dumpRules(t, IPv4) + dumpRules(t, IPv6) + sh(t, "nft -s list ruleset")
}

// namedInterfaces returns those of eth0, eth1 and cni0 that rules of the agent name.
func namedInterfaces(t *testing.T) (names string) {
	t.Helper()
	rules := ruleSets(t)
	for _, name := range []string{"eth0", "eth1", "cni0"} {
		if strings.Contains(rules, "-i "+name+" ") || strings.Contains(rules, strconv.Quote(name)) {
			names += name + " "
		}
	}
	return names
}

// waitForExternal waits until the rules of s name the interfaces, in every table and family.
func waitForExternal(t *testing.T, s *Setup, names string) {
	t.Helper()
	waitUntil(t, func() bool { return namedInterfaces(t) == names })
	// The tables are written one after the other. Describe waits for the last one.
	if _, err := s.Describe(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestExternalHosts: a host on the node's network that routes the agent's addresses by way of the
// node does not get past the node's firewall, whether the agent listens or not, and pods and the
// node itself do.
func TestExternalHosts(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		l := newExternalTestbed(t)
		for _, way := range []struct{ rules, firewall Netfilter }{
			{NetfilterIptables, NetfilterIptables},
			{NetfilterNftables, NetfilterNftables},
			{NetfilterNftables, NetfilterIptables},
		} {
			if way.rules == NetfilterNftables && way.firewall == NetfilterNftables && isLegacy(t) {
				continue // no rule is made by iptables, so one build is enough
			}
			t.Run(fmt.Sprintf("%s behind %s", way.rules, way.firewall), func(t *testing.T) {
				l.setDefaultRoute(t, 3)
				sh(t, firewalls[way.firewall])
				before := ruleSets(t)
				s, stop := l.agent(t, way.rules)
				quit := l.listen(t)
				l.wantNoAnswers(t, l.first)
				l.wantPodAnswers(t, "local")
				quit()
				l.wantNoAnswers(t, l.first)
				l.wantAnswers(t, l.pod, "cluster")
				l.wantAnswers(t, l.bridged, "cluster")
				stop()
				tearDown(t, s)
				check.Equal(t, before, ruleSets(t), "teardown")
				sh(t, noFirewall)
			})
		}
	})
}

// TestExternalHostsOfOpenNode: where the node lets everything in, a link-local address is closed
// to hosts outside all the same, at all ports; about others it is the node who decides.
func TestExternalHostsOfOpenNode(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		l := newExternalTestbed(t)
		l.setDefaultRoute(t, 3)
		defer l.listen(t)()
		for _, way := range []Netfilter{NetfilterIptables, NetfilterNftables} {
			s, stop := l.agent(t, way)
			l.wantDropped(t, l.first, "udp", netip.AddrPortFrom(labLocals[0], 53))
			l.wantDropped(t, l.first, "tcp", netip.AddrPortFrom(labLocals[0], 53))
			l.wantDropped(t, l.first, "tcp", netip.AddrPortFrom(labLocals[0], 8080))
			for _, local := range labLocals[1:] {
				for _, network := range []string{"udp", "tcp"} {
					if got := askFrom(l.first, network, netip.AddrPortFrom(local, 53)); got != "local" {
						t.Errorf("%s: %s to %v: %q", way, network, local, got)
					}
				}
			}
			l.wantPodAnswers(t, "local")
			stop()
			tearDown(t, s)
		}
	})
}

// TestExternalHostsFollowRoutes: when the default routes move the rules follow. A bridge that they lead
// over is left alone, as pods may be behind it, and the log says so once.
func TestExternalHostsFollowRoutes(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		l := newExternalTestbed(t)
		defer l.listen(t)()
		ways := []Netfilter{NetfilterIptables, NetfilterNftables}
		if isLegacy(t) {
			ways = ways[:1] // TestExternalHosts combines nft with both builds
		}
		for _, way := range ways {
			sh(t, firewalls[NetfilterIptables])
			l.setDefaultRoute(t, 3)
			before := ruleSets(t)
			s, stop := l.agent(t, way)
			l.wantNoAnswers(t, l.first)

			l.setDefaultRoute(t, 4)
			waitForExternal(t, s, "eth1 ")
			l.wantNoAnswers(t, l.second)
			l.wantAnswers(t, l.first, "local") // it is behind a link like a pod's now
			l.wantPodAnswers(t, "local")

			sh(t, "ip route append default via 10.9.3.2 metric 9")
			waitForExternal(t, s, "eth0 eth1 ")
			l.wantNoAnswers(t, l.first)
			l.wantNoAnswers(t, l.second)
			l.wantPodAnswers(t, "local")

			l.setDefaultRoute(t, 5)
			sh(t, "ip route del default metric 9")
			var names string
			waitUntil(t, func() bool { names = namedInterfaces(t); return !strings.Contains(names, "eth") })
			if names != "" {
				t.Errorf("a bridge is closed:\n%s", ruleSets(t))
			}
			l.wantPodAnswers(t, "local")

			stop()
			if got := s.Stats(); got.Repairs != 0 {
				t.Errorf("%d repairs counted", got.Repairs)
			}
			tearDown(t, s)
			check.Equal(t, before, ruleSets(t), "teardown")
			sh(t, noFirewall)
		}
	})
}
