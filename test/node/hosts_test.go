package node

import (
	"net"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/agenttest"
)

// TestKernelHosts: in a block with hosts, the kernel answers from the table, and for names that it lacks. Once the agent
// answers by a changed file, so does the kernel.
func TestKernelHosts(t *testing.T) {
	t.Parallel()
	l := newKernelNetwork(t)
	args := l.agentArgs("-kernel-path=on")
	table := l.file("hosts", "192.0.2.7 by.hand\n")
	l.addDirectives("    hosts " + table + " {\n        reload 100ms\n        fallthrough\n    }\n")
	p := l.startAgentWith(args...)
	pod := l.client(l.pod, local4)
	addr, _, _ := net.SplitHostPort(pod.LocalAddr().String())
	s := &searcher{&comparer{l: l, p: p, pod: pod}, &dns.Conn{Conn: dialAgent(t, l.pod, "tcp")}, addr}
	byHand, web, www := pack(question("by.hand.", dns.TypeA)), pack(question("web.shop.svc.cluster.local.", dns.TypeA)), pack(question("www.example.org.", dns.TypeA))
	for _, step := range []struct{ lines, byHand, web, www string }{
		{"192.0.2.7 by.hand\n", "NOERROR 192.0.2.7 1", "NOERROR 10.96.7.1 1", "NOERROR 192.0.2.80 1"},
		{"192.0.2.8 by.hand\n192.0.2.9 web.shop.svc.cluster.local\n", "NOERROR 192.0.2.8 1", "NOERROR 192.0.2.9 1", "NOERROR 192.0.2.80 1"},
		{"192.0.2.7 by.hand www.example.org\n", "NOERROR 192.0.2.7 1", "NOERROR 10.96.7.1 1", "NOERROR 192.0.2.7 1"},
		{"192.0.2.7 by.hand\n", "NOERROR 192.0.2.7 1", "NOERROR 10.96.7.1 1", "NOERROR 192.0.2.80 1"},
	} {
		agenttest.ReplaceFile(t, table, []byte(step.lines))
		for _, c := range []struct {
			query []byte
			want  string
		}{{byHand, step.byHand}, {web, step.web}, {www, step.www}} {
			s.awaitAgent(c.query, c.want)
			for range repeats {
				if got := summary(pod.ask(c.query, false)); got != c.want {
					t.Errorf("the reply is %s, want %s", got, c.want)
				}
			}
			if got := summary(s.askUntilKernelAnswers(c.query)); got != c.want {
				t.Errorf("the kernel's reply is %s, want %s", got, c.want)
			}
		}
	}
}
