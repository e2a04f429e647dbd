package node

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// TestOtherServers: `nodens top --by bypass` names a pod that asks other servers, over IPv4, IPv6 and TCP, and nothing that the
// pod asks the agent.
func TestOtherServers(t *testing.T) {
	t.Parallel()
	l := newKernelNetwork(t)
	socket := filepath.Join(l.dir, "admin.sock")
	p := l.startInKernel("-admin-socket="+socket, "-bypass=count")
	query := pack(question("web.shop.svc.cluster.local.", dns.TypeA))
	agent, other4, other6 := l.client(l.pod, local4), l.client(l.pod, "192.0.2.53"), l.client(l.pod, "2001:db8::53")
	p.Must(t, "the agent to count packets to other servers", func(context.Context) error {
		agent.ask(query, false)
		if _, err := l.dig(l.pod, "+tcp", "@"+local4, "web.shop.svc.cluster.local"); err != nil {
			return err
		}
		other4.write(query)
		other6.write(query)
		if conn, err := testbed.Dial(l.pod, "tcp", net.JoinHostPort(upstreamIP, "853")); err == nil { // refused
			conn.Close()
		}
		out := l.in(l.node, l.nodens, "top", "--by", "bypass", "--watch=false", "--admin-socket", socket)
		for _, row := range []string{testbed.PodIP4 + " udp 192.0.2.53:53", testbed.PodIP6 + " udp [2001:db8::53]:53", testbed.PodIP4 + " tls " + upstreamIP + ":853"} {
			pod, rest, _ := strings.Cut(row, " ")
			protocol, server, _ := strings.Cut(rest, " ")
			if !hasRow(out, pod, protocol, server) {
				return errors.New("no row with " + row + " in:\n" + out)
			}
		}
		if strings.Contains(out, local4) {
			t.Errorf("the agent's address is in:\n%s", out)
		}
		return nil
	})
	const more = 2000
	before := l.metric("nodens_bypass_packets_total", `proto="udp"`)
	for range more {
		other4.write(query)
	}
	if n := l.metric("nodens_bypass_packets_total", `proto="udp"`) - before; n != more {
		t.Errorf("%d packets are counted, want %d", n, more)
	}
	if out := l.in(l.node, l.nodens, "status", "--admin-socket", socket); !strings.Contains(out, "packets of pods to other DNS servers") {
		t.Errorf("status:\n%s", out)
	}
}

// hasRow reports whether a line of a table has the pod, the protocol and the server.
func hasRow(table, pod, protocol, server string) bool {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > 2 && f[0] == pod && f[1] == protocol && f[len(f)-1] == server {
			return true
		}
	}
	return false
}
