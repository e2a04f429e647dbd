package lookups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

const (
	hostAddr = "169.254.20.11"
	// zone is the test bed's, in which the address says which server has answered, and agentZone a part of it that
	// the agent answers itself.
	zone, agentZone = testbed.Zone, "agent." + testbed.Zone
	fromAgent       = "192.0.2.77"
)

// manager is a program that writes the node's resolv.conf.
type manager struct {
	name string
	// start starts it, with a server.
	start func(n *node, server string)
	// set gives the node another server, as a DHCP server does.
	set func(n *node, server string)
}

var managers = []manager{
	{"systemd-resolved", startResolved, setResolved},
	{"NetworkManager, file", func(n *node, server string) { startNetworkManager(n, server, false) }, setNetworkManager},
	{"NetworkManager, link", func(n *node, server string) { startNetworkManager(n, server, true) }, setNetworkManager},
	{"plain file", setFile, setFile},
}

func startResolved(n *node, server string) {
	n.startBus()
	n.sh("ln -s ../run/systemd/resolve/stub-resolv.conf /etc/resolv.conf")
	n.mu.Lock()
	n.resolved = n.start("systemd-resolved", "/usr/lib/systemd/systemd-resolved")
	n.mu.Unlock()
	n.holder.Must(n.t, "systemd-resolved", func(context.Context) error {
		_, err := n.try("resolvectl dns vup " + server)
		return err
	})
	n.sh("resolvectl dnssec vup no; resolvectl llmnr vup no")
}

func setResolved(n *node, server string) { n.sh("resolvectl dns vup " + server) }

func startNetworkManager(n *node, server string, link bool) {
	n.startBus()
	n.sh(`rm -f /usr/sbin/resolvconf # of systemd-resolved, which does not run
		ip link add nm0 type veth peer name nm0p
		mkdir -p /etc/NetworkManager/system-connections
		printf '[main]\nplugins=keyfile\nno-auto-default=*\nauth-polkit=root-only\n[keyfile]\nunmanaged-devices=except:interface-name:nm0\n' > /etc/NetworkManager/NetworkManager.conf
		printf '[connection]\nid=nm0\nuuid=11111111-1111-1111-1111-111111111111\ntype=ethernet\ninterface-name=nm0\n[ipv4]\nmethod=manual\naddress1=198.51.100.10/24\ndns=` + server + `;\ndns-search=lan;\n[ipv6]\nmethod=disabled\n' > /etc/NetworkManager/system-connections/nm0.nmconnection
		chmod 600 /etc/NetworkManager/system-connections/nm0.nmconnection
		ip link set nm0p up
		: > /etc/resolv.conf`)
	if link {
		n.sh("ln -sfn /run/NetworkManager/resolv.conf /etc/resolv.conf")
	}
	p := n.start("NetworkManager", "/usr/sbin/NetworkManager", "--no-daemon")
	p.Must(n.t, "NetworkManager to write /etc/resolv.conf", func(context.Context) error {
		_, err := n.try("grep -qx 'nameserver " + server + "' /etc/resolv.conf")
		return err
	})
}

func setNetworkManager(n *node, server string) {
	n.sh("nmcli connection modify nm0 ipv4.dns " + server + "; nmcli device reapply nm0")
}

func setFile(n *node, server string) {
	n.sh("printf '# by DHCP\\nsearch lan\\nnameserver " + server + "\\n' > /etc/resolv.conf.new; mv /etc/resolv.conf.new /etc/resolv.conf")
}

// startAgent starts an agent that answers the node's own look-ups, and names below agentZone itself.
func (n *node) startAgent(more ...string) *peer.Process {
	n.t.Helper()
	args, err := n.AgentArgs([]string{testbed.Local4}, append([]string{"-syncinterval=1s", "-netfilter=nftables",
		"-host-listen=" + hostAddr, "-host-resolver=auto"}, more...)...)
	check.NoError(n.t, err)
	conf := filepath.Join(n.dir, "Corefile")
	text, err := os.ReadFile(conf)
	check.NoError(n.t, err)
	block := fmt.Sprintf(".:53 {\n bind %s\n errors\n cache 30\n template IN A %s {\n answer \"{{ .Name }} 60 IN A %s\"\n }\n forward . /etc/resolv.conf\n}\n", hostAddr, agentZone, fromAgent)
	check.NoError(n.t, os.WriteFile(conf, append(text, block...), 0o644))
	p := n.start("nodens", append([]string{"/usr/local/bin/nodens"}, args...)...)
	p.Must(n.t, "the agent to serve", testbed.LogContains(p, "msg=serving"))
	return p
}

// pointsToAgent is a probe for the command, which exits with 0 if look-ups go to the agent first.
func (n *node) pointsToAgent(context.Context) error {
	_, err := n.try("nodens host status --host-listen " + hostAddr)
	return err
}

// TestManagers: with each manager, look-ups of programs go to the agent and by it to the node's servers, also after these
// change; to these servers, when the agent is killed; and the files are as before when it has ended.
func TestManagers(t *testing.T) {
	t.Parallel()
	for _, r := range releases() {
		for _, m := range managers {
			t.Run("Debian "+r.number+", "+m.name, func(t *testing.T) {
				t.Parallel()
				testManager(t, newNode(t, r), m)
			})
		}
	}
}

func testManager(t *testing.T, n *node, m manager) {
	m.start(n, testbed.UpstreamIP)
	n.holder.Must(t, "look-ups without an agent", n.looksUp(agentZone, testbed.FromAgent.String()))
	before := n.files()

	p := n.startAgent()
	p.Must(t, "look-ups to go to the agent", n.pointsToAgent)
	p.Must(t, "the agent's answer", n.looksUp(agentZone, fromAgent))
	check.NoError(t, n.looksUp(zone, testbed.FromAgent.String())(t.Context()))

	m.set(n, testbed.ClusterDNS4)
	p.Must(t, "the agent to ask the new server", n.looksUp(zone, testbed.FromCluster.String()))
	p.Must(t, "look-ups to go to the agent", n.pointsToAgent)

	p.Kill()
	for range 3 {
		if err := n.looksUp(agentZone, testbed.FromCluster.String())(t.Context()); err != nil {
			t.Errorf("after the agent was killed: %v", err)
		}
	}
	p = n.startAgent()
	p.Must(t, "the agent's answer", n.looksUp(agentZone, fromAgent))
	m.set(n, testbed.UpstreamIP)
	p.Must(t, "the agent to ask the first server", n.looksUp(zone, testbed.FromAgent.String()))
	p.Must(t, "look-ups to go to the agent", n.pointsToAgent)
	p.Stop()
	if err := p.Err(); err != nil {
		t.Errorf("the agent ended with %v\n%s", err, p.Tail())
	}
	n.holder.Must(t, "the files to be as before", func(context.Context) error {
		if got := n.files(); got != before {
			return fmt.Errorf("they are\n%s\nand were\n%s", got, before)
		}
		return nil
	})
	n.holder.Must(t, "look-ups without an agent", n.looksUp(agentZone, testbed.FromAgent.String()))
}

// TestCommands: install and remove without an agent's help, while one answers.
func TestCommands(t *testing.T) {
	t.Parallel()
	for _, m := range managers {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, releases()[1])
			m.start(n, testbed.UpstreamIP)
			before := n.files()
			p := n.startAgent("-host-resolver=off", "-skipteardown")
			check.NoError(t, n.looksUp(agentZone, testbed.FromAgent.String())(t.Context()))
			plan := n.sh("nodens plan --host-listen " + hostAddr + " --host-resolver=auto --netfilter=nftables")
			if !strings.Contains(plan, "write /") || n.files() != before {
				t.Errorf("the plan:\n%s", plan)
			}
			n.sh("nodens host install --host-listen " + hostAddr)
			p.Must(t, "the agent's answer", n.looksUp(agentZone, fromAgent))
			if out := n.sh("nodens host install --host-listen " + hostAddr); strings.Contains(out, "write") {
				t.Errorf("the second time:\n%s", out)
			}
			p.Stop()
			check.NoError(t, n.pointsToAgent(t.Context()))
			n.sh("nodens cleanup --localip " + testbed.Local4 + " --host-listen " + hostAddr)
			n.holder.Must(t, "the files to be as before", func(context.Context) error {
				if got := n.files(); got != before {
					return errors.New(got)
				}
				return nil
			})
		})
	}
}
