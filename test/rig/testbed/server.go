package testbed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
)

// answerTemplate returns the part of a server block that answers all names below Zone.
func answerTemplate(a netip.Addr) string {
	return fmt.Sprintf(`    template IN A %s {
        answer "{{ .Name }} 3600 IN A %s"
    }
`, Zone, a)
}

// startServers starts the upstream, which also answers on port 53 for queries that bypass the agent, and
// the substitute for the cluster DNS.
func (l *Network) startServers() error {
	up, err := l.File("Corefile.upstream", `.:`+UpstreamPort+` .:53 {
    bind `+UpstreamIP+`
    hosts {
        192.0.2.80 www.example.org
        2001:db8::80 www.example.org
        192.0.2.90 web.shop.svc.cluster.local
        fallthrough
    }
`+answerTemplate(FromAgent)+"}\n")
	if err != nil {
		return err
	}
	cluster, err := l.File("Corefile.cluster", ".:53 {\n    bind "+ClusterDNS4+" "+ClusterDNS6+"\n"+answerTemplate(FromCluster)+"}\n")
	if err != nil {
		return err
	}
	if l.upstream, err = l.Spawn(l.Upstream, nil, l.Nodens, "-conf", up, "-metrics-listen-address="); err != nil {
		return err
	}
	if l.cluster, err = l.Spawn(l.Cluster, nil, l.Nodens, "-conf", cluster, "-metrics-listen-address="); err != nil {
		return err
	}
	ctx := context.Background()
	return errors.Join(
		l.upstream.Await(ctx, "the upstream to answer", l.Answers(l.Upstream, FromAgent, "udp", net.JoinHostPort(UpstreamIP, UpstreamPort))),
		l.cluster.Await(ctx, "the cluster's DNS to answer", l.Answers(l.Cluster, FromCluster, "udp", net.JoinHostPort(ClusterDNS4, "53"))),
		l.cluster.Await(ctx, "the cluster's DNS to answer over IPv6", l.Answers(l.Pod, FromCluster, "udp", net.JoinHostPort(ClusterDNS6, "53"))),
	)
}

// Dig runs dig +short with one try in a namespace and returns its output.
func (l *Network) Dig(ns string, args ...string) (string, error) {
	out, err := l.In(ns, append([]string{"dig", "+short", "+tries=1", "+time=2"}, args...)...)
	return strings.TrimSpace(out), err
}

// Ask sends one query for a name below Zone from a namespace to a server, over UDP or TCP, and returns the
// addresses of the answer, one a line. It costs a fraction of the processor time of Dig.
func (l *Network) Ask(ns, network, server string) (string, error) {
	conn, err := Dial(ns, network, server)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	client := dns.Client{Net: network, Timeout: askTimeout}
	m, _, err := client.ExchangeWithConn(new(dns.Msg).SetQuestion("who."+Zone+".", dns.TypeA), &dns.Conn{Conn: conn})
	if err != nil {
		return "", err
	}
	var addrs []string
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			addrs = append(addrs, a.A.String())
		}
	}
	return strings.Join(addrs, "\n"), nil
}

// askTimeout bounds an exchange of Ask. A lost packet fails at any length; a server that waits for the
// disk of a busy machine takes seconds.
const askTimeout = 10 * time.Second

// Answers returns a probe that succeeds when Ask returns the address from.
func (l *Network) Answers(ns string, from netip.Addr, network, server string) peer.Probe {
	return func(context.Context) error {
		out, err := l.Ask(ns, network, server)
		if err == nil && out != from.String() {
			err = fmt.Errorf("the answer is %q, want %s", out, from)
		}
		return err
	}
}

// Tracked returns the node's tracked connections of port 53, one a line.
func (l *Network) Tracked() (string, error) {
	var lines strings.Builder
	for _, family := range []string{"ipv4", "ipv6"} {
		for _, proto := range []string{"udp", "tcp"} {
			out, err := l.In(l.Node, "conntrack", "-L", "-f", family, "-p", proto)
			if err != nil {
				return "", err
			}
			for line := range strings.Lines(out) {
				if strings.Contains(line, "port=53 ") {
					lines.WriteString(line)
				}
			}
		}
	}
	return lines.String(), nil
}

// Manifests returns the objects of the cluster: a Service, and the cluster DNS with its endpoints.
func Manifests() string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.7.1
  clusterIPs: [10.96.7.1, "fd00:96::7:1"]
  ports: [{name: http, port: 80, protocol: TCP}]
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: %s
  clusterIPs: [%s, "%s"]
  selector: {k8s-app: kube-dns}
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
`, Service4, Service4, Service6)
	for _, s := range [][2]string{{"IPv4", ClusterDNS4}, {"IPv6", ClusterDNS6}} {
		fmt.Fprintf(&b, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-%s, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: %s
endpoints: [{addresses: ["%s"], conditions: {ready: true}}]
ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
`, strings.ToLower(s[0]), s[0], s[1])
	}
	return b.String()
}
