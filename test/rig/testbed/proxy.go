package testbed

import (
	"fmt"
	"strings"
)

// The modes of kube-proxy. The rules here are those that matter to the agent: the chains by which
// other programs detect the mode, and the translation of the cluster DNS's ClusterIPs.
const (
	ProxyIptablesNft    = "iptables-nft"
	ProxyIptablesLegacy = "iptables-legacy"
	ProxyNftables       = "nftables"
)

// ProxyModes has all modes.
var ProxyModes = []string{ProxyIptablesNft, ProxyIptablesLegacy, ProxyNftables}

// KubeProxy adds kube-proxy's rules to the node.
func (l *Network) KubeProxy(way string) error {
	if way == ProxyNftables {
		_, err := l.InWithInput(l.Node, proxyTable("ip", Service4, ClusterDNS4)+proxyTable("ip6", Service6, "["+ClusterDNS6+"]"), "nft", "-f", "-")
		return err
	}
	flavour := strings.TrimPrefix(way, "iptables-")
	for _, f := range []struct{ tool, text string }{
		{"iptables-" + flavour + "-restore", proxyRules(Service4, ClusterDNS4)},
		{"ip6tables-" + flavour + "-restore", proxyRules(Service6, "["+ClusterDNS6+"]")},
	} {
		if _, err := l.InWithInput(l.Node, f.text, f.tool, "-w", "5", "--noflush"); err != nil {
			return err
		}
	}
	return nil
}

func proxyRules(service, endpoint string) string {
	var b strings.Builder
	b.WriteString("*mangle\n:KUBE-IPTABLES-HINT - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n" +
		"*nat\n:KUBE-SERVICES - [0:0]\n" +
		"-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n" +
		"-A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n")
	for _, proto := range []string{"udp", "tcp"} {
		fmt.Fprintf(&b, "-A KUBE-SERVICES -d %s -p %s -m %s --dport 53 -j DNAT --to-destination %s:53\n", service, proto, proto, endpoint)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

func proxyTable(family, service, endpoint string) string {
	rule := fmt.Sprintf("%s daddr %s meta l4proto { tcp, udp } th dport 53 dnat to %s:53", family, service, endpoint)
	return fmt.Sprintf(`table %s kube-proxy {
	chain services { %s; }
	chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
}
`, family, rule)
}

// SetNodeLocalRules adds NodeLocal DNSCache's rules for the IPv4 addresses, or deletes them.
func (l *Network) SetNodeLocalRules(add bool, addrs ...string) error {
	how := "-D"
	if add {
		how = "-A"
	}
	var raw, filter strings.Builder
	const skip, allow = `-m comment --comment "NodeLocal DNS Cache: skip conntrack" -j NOTRACK`, `-m comment --comment "NodeLocal DNS Cache: allow DNS traffic" -j ACCEPT`
	for _, a := range addrs {
		for _, p := range []string{"udp", "tcp"} {
			fmt.Fprintf(&raw, "%s PREROUTING -d %s -p %s -m %s --dport 53 %s\n", how, a, p, p, skip)
			fmt.Fprintf(&raw, "%s OUTPUT -s %s -p %s -m %s --sport 53 %s\n", how, a, p, p, skip)
			fmt.Fprintf(&raw, "%s OUTPUT -d %s -p %s -m %s --dport 53 %s\n", how, a, p, p, skip)
			fmt.Fprintf(&filter, "%s INPUT -d %s -p %s -m %s --dport 53 %s\n", how, a, p, p, allow)
			fmt.Fprintf(&filter, "%s OUTPUT -s %s -p %s -m %s --sport 53 %s\n", how, a, p, p, allow)
		}
	}
	_, err := l.InWithInput(l.Node, "*filter\n"+filter.String()+"COMMIT\n*raw\n"+raw.String()+"COMMIT\n", "iptables-restore", "-w", "5", "--noflush")
	return err
}
