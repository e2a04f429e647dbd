package node

import (
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// TestKernelRewrite: in a block with rewrite, the kernel answers what no rule matches, and the agent the rest.
func TestKernelRewrite(t *testing.T) {
	t.Parallel()
	l := newKernelNetwork(t)
	args := l.agentArgs(testbed.KernelPathFlag)
	l.addDirectives("    rewrite name exact web.old web.shop.svc.cluster.local\n    rewrite ttl exact who." + testbed.Zone + " 7\n")
	a := newComparer(t, l, l.startAgentWith(args...), local4)
	for name, in := range map[string]bool{
		"web.shop.svc.cluster.local.": true, "www.example.org.": true, "web.old.": false, "who." + testbed.Zone + ".": false, "what." + testbed.Zone + ".": true,
	} {
		t.Run(name, func(t *testing.T) { a.check(t, pack(question(name, dns.TypeA)), in, false) })
	}
}
