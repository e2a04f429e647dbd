package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
)

// ciliumChecks returns the checks of the part network on Cilium, whose programs forward packets to Services
// before the node's rules see them: a CiliumLocalRedirectPolicy leads queries for kube-dns to the agents, which are
// ordinary pods.
func ciliumChecks(network cluster.PodNetwork) []check {
	t := &networkTest{network: network, chaosTest: chaosTest{servers: []netip.Addr{netip.MustParseAddr(cluster.DNS)}}}
	row := newNetworkRow(network, "Cilium", "off")
	row.policy = "not tested"
	return []check{
		{"Cilium redirects queries for kube-dns to the agents", t.setUpRedirected},
		{"rolled out", func(ctx context.Context, s *suite) (string, error) {
			s.addRow(row)
			return t.measure(ctx, &row.upgrade, fault{"", [2]lossLimit{redirected, redirected}, t.rollMarked})
		}},
		{"each node's agent answers its pods", t.checkOwnAgents},
		{"names", func(ctx context.Context, s *suite) (string, error) { return t.compareRedirected(ctx, row) }},
		{"agents replaced", func(ctx context.Context, s *suite) (string, error) {
			return t.measure(ctx, &row.upgrade, fault{"", [2]lossLimit{redirected, redirected}, (*chaosTest).rollAgain})
		}},
		{"agent killed", func(ctx context.Context, s *suite) (string, error) {
			return t.measure(ctx, &row.kill, fault{"", [2]lossLimit{lossless, redirectedKill}, (*chaosTest).killLast})
		}},
		{"agents and configuration are restored", t.restore},
	}
}

// setUpRedirected installs the overlay for Cilium, and starts all clients.
func (t *networkTest) setUpRedirected(ctx context.Context, s *suite) (string, error) {
	if err := t.install(ctx, s, "cilium"); err != nil {
		return "", err
	}
	return t.startClients(ctx, s)
}

// checkOwnAgents checks that the queries of each node's pod are counted by the agent on the same node.
func (t *networkTest) checkOwnAgents(ctx context.Context, s *suite) (string, error) {
	if t.api == nil {
		return "", errNoLoadPods
	}
	agents, err := t.agentPods(ctx)
	if err != nil {
		return "", err
	}
	counted := func(node *cluster.Node) (sum float64, err error) {
		for _, p := range agents {
			if p.Spec.NodeName == node.Name {
				return t.cluster.MetricSumAt(ctx, net.JoinHostPort(p.Status.PodIP, strconv.Itoa(metricsPort)), requestsMetric)
			}
		}
		return 0, fmt.Errorf("%s has no agent", node.Name)
	}
	const queries = 50
	for i, pod := range ordinaryPods()[:len(t.nodes)] {
		before, err := counted(t.nodes[i])
		if err != nil {
			return "", err
		}
		input := strings.Repeat("udp 0 kubernetes.default.svc."+cluster.Domain+" A\n", queries)
		if _, err := t.names.exec(ctx, s, pod, input, "probe", "wire", cluster.DNS+":53"); err != nil {
			return "", err
		}
		after, err := counted(t.nodes[i])
		if err != nil {
			return "", err
		}
		if after-before < queries {
			return "", fmt.Errorf("%d queries of %s made the agent of its node count %.0f", queries, pod, after-before)
		}
	}
	return fmt.Sprintf("%d of %d queries", queries*len(t.nodes), queries*len(t.nodes)), nil
}

// compareRedirected compares the agents' answers with CoreDNS's.
func (t *networkTest) compareRedirected(ctx context.Context, row *networkRow) (string, error) {
	if t.api == nil {
		return "", errNoLoadPods
	}
	err := t.compare(ctx, row)
	return fmt.Sprintf("%d replies equal CoreDNS's", row.names.queries-row.names.different), err
}
