package differential

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// kernel compares the add-on's Corefile once more, which has all that copies are made of,
// with an agent that answers inside of the kernel and is asked by a pod: the last answer to
// a query is the kernel's where it may be.
func (s *site) kernel(t *testing.T, facts objectFacts, queries []query) {
	if err := errors.Join(testbed.Usable(), testbed.KernelPathUsable()); err != nil {
		t.Skip(err)
	}
	text := addonText
	r := s.run(t, true)
	r.coredns = s.serve(t, "coredns", text, apiserver.Admin)
	h := s.startFixture(t, text)
	r.agents = []agent{{name: "kernel", addr: h.addr, pod: h.Pod}}
	r.facts = facts
	s.awaitMarks(t, []watcher{{server: r.coredns}})
	r.compare(slices.DeleteFunc(queries, aboutServer))
	r.report()
	h.checkKernelShare(t, r.asked)
}

// aboutServer is a query about the server itself, whose answer has the address at which it
// listens, unless that is on the loopback.
func aboutServer(q query) bool {
	name := strings.ToLower(q.name)
	apex := name == zone || name == "in-addr.arpa." || name == "ip6.arpa."
	return strings.HasPrefix(name, "ns.dns.") || apex && q.qtype == dns.TypeNS
}

// nodeFixture is a node with an agent, and a pod that asks it.
type nodeFixture struct {
	*testbed.Network
	addr netip.AddrPort
}

// The ports of an agent that has a namespace to itself.
const (
	agentPort      = 53
	agentReadyPort = 8181
)

// startFixture starts an agent with the Corefile. It has on its loopback what other servers have
// on theirs.
func (s *site) startFixture(t *testing.T, text string) *nodeFixture {
	t.Helper()
	l := testbed.ForTest(t, s.binaries["nodens"])
	check.NoError(t, l.Relay(l.Node, s.api.Addr()))
	s.startUpstreamIn(t, l.Node)
	conf, err := l.File("Corefile", strings.NewReplacer(
		"bind 127.0.0.1", "bind "+testbed.NodeIP4,
		"PORT", fmt.Sprint(agentPort), "HEALTH", "8080", "READY", fmt.Sprint(agentReadyPort), "METRICS", "9253",
		"KUBECONFIG", s.api.Kubeconfig(apiserver.Agent), "UPSTREAM", s.upstream.String(),
	).Replace(text))
	check.NoError(t, err)
	args := append(append([]string{l.Nodens}, peer.ServerArgs("nodens", conf)...), testbed.KernelPathFlag)
	p, err := l.Spawn(l.Node, []string{"NODE_NAME=" + node, rareGC}, args...)
	check.NoError(t, err)
	p.Must(t, "the agent to log that it serves", testbed.LogContains(p, "msg=serving"))
	return &nodeFixture{l, netip.AddrPortFrom(netip.MustParseAddr(testbed.NodeIP4), agentPort)}
}

// startUpstreamIn has the upstream answer in the namespace too, at the same address.
func (s *site) startUpstreamIn(t *testing.T, ns string) {
	t.Helper()
	u, err := newUpstream()
	check.NoError(t, err)
	var at *fakedns.Server
	err = testbed.InNamespace(ns, func() (err error) {
		at, err = fakedns.Open(fakedns.Answers(u.reply), fakedns.Options{Addr: s.upstream})
		return err
	})
	check.NoError(t, err)
	t.Cleanup(at.Close)
}

// checkKernelShare looks at how much of it the kernel has answered: of each query the last time,
// if it is one of those that the kernel answers at all.
func (h *nodeFixture) checkKernelShare(t *testing.T, asked int) {
	t.Helper()
	m, err := h.Metrics()
	check.NoError(t, err)
	inKernel := int(m[`nodens_kernel_path_queries_total{result="answered"}`])
	t.Logf("the kernel has answered %d of %d queries", inKernel, asked)
	if inKernel < asked/minKernelShare {
		t.Errorf("the kernel has answered %d of %d queries, which says little about it", inKernel, asked)
	}
}

// minKernelShare is what part of the queries the kernel has to have answered.
const minKernelShare = 3
