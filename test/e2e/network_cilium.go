package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

// The modes of the agents on Cilium, as in the table.
const (
	linkLocalMode = " (link-local)"
	redirectMode  = " (redirect)"
)

// ciliumChecks returns the checks of the part network on Cilium, whose programs forward packets to Services
// before the node's rules see them. First the agents are at the link-local address; then a CiliumLocalRedirectPolicy leads
// queries for kube-dns to them, and they are ordinary pods.
func ciliumChecks(network cluster.PodNetwork) []check {
	t := &networkTest{network: network, chaosTest: chaosTest{servers: agentAddresses()[:1]}}
	newRow := func(mode, kernelPath string) *networkRow {
		row := newNetworkRow(network, "Cilium", kernelPath)
		row.network += mode
		return row
	}
	list := []check{{"link-local: the agents answer pods at " + localDNS, func(ctx context.Context, s *suite) (string, error) {
		return t.setUp(ctx, s, "link-local")
	}}}
	list = append(list, t.modeChecks(newRow(linkLocalMode, "off"), t.rollMarked)...)
	list = append(list, check{"link-local: latency", t.measureLatency})
	list = append(list, t.ciliumRestart("link-local", lossless),
		check{"link-local, kernel path on: the agents answer all queries", t.checkKernelPathIdle},
		check{"takeover: the queries go to the cluster DNS", t.checkNotTakenOver})
	return append(append(list, t.redirectChecks(newRow(redirectMode, "off"))...), check{"agents and configuration are restored", t.restore})
}

// redirectChecks returns the checks with the overlay for Cilium.
func (t *networkTest) redirectChecks(row *networkRow) []check {
	list := []check{
		{"redirect: Cilium leads queries for kube-dns to the agents", t.enableRedirect},
		{"redirect: rolled out", func(ctx context.Context, s *suite) (string, error) {
			s.addRow(row)
			return t.measure(ctx, &row.upgrade, fault{"", [2]lossLimit{redirected, redirected}, t.rollMarked})
		}},
		{"redirect: each node's agent answers its pods", t.checkOwnAgents},
		{"redirect: names", func(ctx context.Context, s *suite) (string, error) { return t.compareRedirected(ctx, row) }},
		{"redirect: agents replaced", func(ctx context.Context, s *suite) (string, error) {
			return t.measure(ctx, &row.upgrade, fault{"", [2]lossLimit{redirected, redirected}, (*chaosTest).rollAgain})
		}},
		{"redirect: latency", t.measureLatency},
	}
	kill := check{"redirect: agent killed", func(ctx context.Context, s *suite) (string, error) {
		return t.measure(ctx, &row.kill, fault{"", [2]lossLimit{lossless, redirectedKill}, (*chaosTest).killLast})
	}}
	return append(append(list, t.policyChecks("redirect: ", row, kill)...),
		t.ciliumRestart("redirect", redirected),
		check{"redirect: a policy allows names, and their addresses", t.checkNamedPolicy},
		check{"redirect: a node joins, first without an agent", t.joinWithoutAgent})
}

// ciliumRestart is the check that restarts Cilium's agents under load.
func (t *networkTest) ciliumRestart(mode string, limit lossLimit) check {
	return check{mode + ": Cilium's agents restarted", func(ctx context.Context, _ *suite) (string, error) {
		return t.measure(ctx, new(lossSum), fault{"", [2]lossLimit{limit, limit}, func(h *chaosTest, ctx context.Context) (map[string]podKill, error) {
			for _, n := range h.nodes {
				if err := n.RestartCilium(ctx); err != nil {
					return nil, err
				}
			}
			return nil, nil
		}})
	}}
}

// checkKernelPathIdle checks that the programs in the kernel are on the pods' interfaces and answer nothing: Cilium's are in front of
// them, and end the chain.
func (t *networkTest) checkKernelPathIdle(ctx context.Context, _ *suite) (string, error) {
	if t.api == nil {
		return "", errNoLoadPods
	}
	var rollout lossSum
	if _, err := t.measure(ctx, &rollout, fault{"", [2]lossLimit{lossless, lossless}, t.enableKernelPath}); err != nil {
		return "", err
	}
	if _, err := t.checkMode(ctx, true); err != nil {
		return "", err
	}
	row := newNetworkRow(t.network, "", "on")
	for range 2 {
		if err := t.compare(ctx, row); err != nil {
			return "", err
		}
	}
	answered, err := t.kernelAnswers(ctx)
	if err == nil && answered > 0 {
		err = fmt.Errorf("the kernel has answered %.0f queries: test its answers as on the other networks", answered)
	}
	return fmt.Sprintf("%d replies equal CoreDNS's, none from the kernel; %s lost in the rollout", row.names.queries, rollout), err
}

// measureLatency runs serviceJob in each node's load client, one after the other.
func (t *networkTest) measureLatency(ctx context.Context, _ *suite) (string, error) {
	if t.api == nil {
		return "", errNoLoadPods
	}
	var seen []string
	for _, n := range t.nodes {
		j := t.serviceJob()
		j.Duration, j.Streams, j.OneShots = 5*time.Second, 0, 0
		c, err := t.startJob(ctx, n, j)
		if err != nil {
			return "", err
		}
		r, err := c.Wait()
		if err != nil {
			return "", err
		}
		seen = append(seen, fmt.Sprintf("%s: p50 %v, p99 %v", n.Name, r.UDP.P50.Round(time.Microsecond), r.UDP.P99.Round(time.Microsecond)))
	}
	return strings.Join(seen, "; "), nil
}

// apply applies an overlay over the present one, and waits for the agents.
func (t *networkTest) apply(ctx context.Context, overlay string) error {
	if t.api == nil {
		return errNoLoadPods
	}
	if err := t.kubectl(ctx, "apply", "--kustomize="+filepath.Join(t.installed.runner.tree, "daemonset/overlays", overlay)); err != nil {
		return err
	}
	if err := errors.Join(t.awaitRollout(ctx), t.waitAgentsReady(ctx)); err != nil {
		return err
	}
	t.marked = false
	return t.connect(ctx, t.suite)
}

// checkNotTakenOver checks that agents which have kube-dns's ClusterIP get none of the pods' queries: Cilium translates the
// address when the socket connects.
func (t *networkTest) checkNotTakenOver(ctx context.Context, s *suite) (string, error) {
	if err := t.apply(ctx, "takeover"); err != nil {
		return "", err
	}
	most, _, err := t.countOwn(ctx, s)
	// Probes of the test and the agents' own queries are few.
	if err == nil && most >= ownQueries {
		err = fmt.Errorf("an agent has counted %.0f queries", most)
	}
	return fmt.Sprintf("%d of each node answered, the agents have counted %.0f at most", ownQueries, most), err
}

// enableRedirect installs the overlay for Cilium.
func (t *networkTest) enableRedirect(ctx context.Context, _ *suite) (string, error) {
	if err := t.apply(ctx, "cilium"); err != nil {
		return "", err
	}
	t.servers = agentAddresses()[1:]
	for _, n := range t.nodes {
		if err := t.waitAnswered(ctx, n, t.serviceJob()); err != nil {
			return "", err
		}
	}
	return "", nil
}

// ownQueries is the number of queries in countOwn.
const ownQueries = 50

// countOwn sends queries for kube-dns from a pod of each node, and returns the most and the least that the node's agent has
// counted of them. The agents' metrics are at the addresses.
func (t *networkTest) countOwn(ctx context.Context, s *suite) (most, least float64, err error) {
	agents, err := t.agentPods(ctx)
	if err != nil {
		return 0, 0, err
	}
	least = math.Inf(1)
	for i, pod := range ordinaryPods()[:len(t.nodes)] {
		own := slices.IndexFunc(agents, func(p corev1.Pod) bool { return p.Spec.NodeName == t.nodes[i].Name })
		if own < 0 {
			return 0, 0, fmt.Errorf("%s has no agent", t.nodes[i].Name)
		}
		counted := func() (float64, error) {
			return t.cluster.MetricSumAt(ctx, net.JoinHostPort(agents[own].Status.PodIP, strconv.Itoa(metricsPort)), requestsMetric)
		}
		before, err := counted()
		if err != nil {
			return 0, 0, err
		}
		query := "udp 0 kubernetes.default.svc." + cluster.Domain + " A"
		out, err := t.names.exec(ctx, s, pod, strings.Repeat(query+"\n", ownQueries), "probe", "wire", cluster.DNS+":53")
		if answered := strings.Count(out, "\tNOERROR "); err == nil && answered != ownQueries {
			err = fmt.Errorf("%d of %d queries are answered", answered, ownQueries)
		}
		if err != nil {
			return 0, 0, err
		}
		after, err := counted()
		if err != nil {
			return 0, 0, err
		}
		most, least = max(most, after-before), min(least, after-before)
	}
	return most, least, nil
}

// checkOwnAgents checks that the queries of each node's pod are counted by the agent on the same node.
func (t *networkTest) checkOwnAgents(ctx context.Context, s *suite) (string, error) {
	_, least, err := t.countOwn(ctx, s)
	if err == nil && least < ownQueries {
		err = fmt.Errorf("of %d queries of a pod the agent of its node has counted %.0f", ownQueries, least)
	}
	return fmt.Sprintf("all %d of each node", ownQueries), err
}

// compareRedirected compares the agents' answers with CoreDNS's.
func (t *networkTest) compareRedirected(ctx context.Context, row *networkRow) (string, error) {
	if t.api == nil {
		return "", errNoLoadPods
	}
	err := t.compare(ctx, row)
	return fmt.Sprintf("%d replies equal CoreDNS's", row.names.queries-row.names.different), err
}

// selectorLabel is the label of nodes that get an agent in joinWithoutAgent.
const selectorLabel = "e2e.nodens.dev/agent"

// joinWithoutAgent adds a node that the DaemonSet does not select. Until it does, the node's pods get answers from the cluster
// DNS. The others lose nothing.
func (t *networkTest) joinWithoutAgent(ctx context.Context, s *suite) (string, error) {
	if t.api == nil {
		return "", errNoLoadPods
	}
	if err := t.kubectl(ctx, "label", "node", "--all", selectorLabel+"="); err != nil {
		return "", err
	}
	if err := t.patchSelector(ctx, "add"); err != nil {
		return "", err
	}
	limits := [2]lossLimit{redirected, redirected}
	joined, err := t.measure(ctx, new(lossSum), fault{"", limits, func(h *chaosTest, ctx context.Context) (map[string]podKill, error) {
		_, err := s.cluster.Join(ctx, []string{cluster.DNS})
		if err == nil {
			err = h.waitLoadPods(ctx, len(s.cluster.Nodes()))
		}
		return nil, err
	}})
	if err != nil {
		return "", err
	}
	t.nodes = s.cluster.Nodes()
	if t.pods, err = t.findPods(ctx, "load"); err != nil {
		return "", err
	}
	alone, err := t.askWithoutAgent(ctx, t.nodes[len(t.nodes)-1])
	if err != nil {
		return "", err
	}
	served, err := t.measure(ctx, new(lossSum), fault{"", limits, func(_ *chaosTest, ctx context.Context) (map[string]podKill, error) {
		return nil, errors.Join(t.patchSelector(ctx, "remove"), t.waitAgentsReady(ctx), t.waitAnswered(ctx, t.nodes[len(t.nodes)-1], t.serviceJob()))
	}})
	return "joins: " + joined + "; without an agent " + alone + "; with one: " + served, err
}

// patchSelector adds the agents' node selector or removes it, and waits for the rollout.
func (t *networkTest) patchSelector(ctx context.Context, op string) error {
	patch := fmt.Sprintf(`[{"op": %q, "path": "/spec/template/spec/nodeSelector", "value": {%q: ""}}]`, op, selectorLabel)
	return errors.Join(t.kubectl(ctx, "patch", "daemonset/"+agentDaemonSet, "--type=json", "--patch="+patch), t.awaitRollout(ctx))
}

// waitLoadPods waits until that many load clients are ready.
func (h *chaosTest) waitLoadPods(ctx context.Context, number int) error {
	return peer.Await(ctx, "the load clients", func(ctx context.Context) error {
		d, err := h.api.AppsV1().DaemonSets(chaosNamespace).Get(ctx, "load", metav1.GetOptions{})
		if err == nil && int(d.Status.NumberReady) != number {
			sleep(ctx, pollInterval)
			err = fmt.Errorf("%d of %d are ready", d.Status.NumberReady, number)
		}
		return err
	})
}

// askWithoutAgent checks that the cluster DNS answers the node's load client.
func (t *networkTest) askWithoutAgent(ctx context.Context, n *cluster.Node) (string, error) {
	j := shortJob(t.serviceJob())
	j.Duration = time.Second
	c, err := t.startJob(ctx, n, j)
	if err != nil {
		return "", err
	}
	r, err := c.Wait()
	if err == nil && (r.UDP.Asked == 0 || r.UDP.Cluster != r.UDP.Asked) {
		err = fmt.Errorf("without an agent on %s: %s", n.Name, reportWithRuns(r))
	}
	return fmt.Sprintf("%d of %d by the cluster DNS", r.UDP.Cluster, r.UDP.Asked), err
}

// namedPolicy lets a pod ask for one name, and connect to the addresses of this name. Its proxy for DNS is between the pod and
// the agents, which is why it names them.
const namedPolicy = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: by-name}
spec:
  endpointSelector: {matchLabels: {app: by-name}}
  egress:
    - toEndpoints:
        - matchLabels: {"k8s:io.kubernetes.pod.namespace": kube-system, "k8s:k8s-app": node-local-dns}
      toPorts:
        - ports: [{port: "53", protocol: ANY}]
          rules: {dns: [{matchName: open.` + chaosNamespace + `.svc.` + cluster.Domain + `}]}
    - toFQDNs: [{matchName: open.` + chaosNamespace + `.svc.` + cluster.Domain + `}]
      toPorts: [{ports: [{port: "53", protocol: TCP}]}]
`

// checkNamedPolicy checks a pod with namedPolicy. Both addresses are name servers outside of the cluster, which answer over TCP.
func (t *networkTest) checkNamedPolicy(ctx context.Context, s *suite) (string, error) {
	if t.api == nil {
		return "", errNoLoadPods
	}
	const pod = "by-name"
	objects := objectList{object{
		"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": pod, "labels": object{"app": pod}},
		"spec": object{"terminationGracePeriodSeconds": 0, "containers": []object{{
			"name": "probe", "image": probeImageRef, "imagePullPolicy": "Never", "command": []string{"sleep", "infinity"},
		}}},
	}}
	for name, address := range map[string]string{"open": cluster.Stub, "closed": cluster.Upstream} {
		objects = append(objects, selectorlessService(name, "None"), endpointSlice(name, address))
	}
	if err := t.inChaosNamespace(ctx, namedPolicy, "create", "-f", "-"); err != nil {
		return "", err
	}
	if err := t.inChaosNamespace(ctx, objects.String(), "create", "-f", "-"); err != nil {
		return "", err
	}
	if err := t.inChaosNamespace(ctx, "", "wait", "pod", pod, "--for=condition=Ready", "--timeout=60s"); err != nil {
		return "", err
	}
	var seen []string
	for _, ask := range []struct{ what, server, query, want string }{
		{"the address before", cluster.Stub, "tcp 0 x.stub.test A", "timeout"},
		{"another name", cluster.DNS, "udp 0 closed." + chaosNamespace + ".svc." + cluster.Domain + " A", "REFUSED"},
		{"the name", cluster.DNS, "udp 0 open." + chaosNamespace + ".svc." + cluster.Domain + " A", cluster.Stub},
		{"the address", cluster.Stub, "tcp 0 x.stub.test A", cluster.Stub4},
		{"another address", cluster.Upstream, "tcp 0 x.outside.test A", "timeout"},
	} {
		out, err := s.cluster.Kubectl(ctx, ask.query+"\n", "exec", "-i", "-n", chaosNamespace, pod, "--", "probe", "wire", ask.server+":53")
		if err == nil && !strings.Contains(out, ask.want) {
			err = fmt.Errorf("%s: %q, want %q", ask.what, out, ask.want)
		}
		if err != nil {
			return "", err
		}
		seen = append(seen, ask.what+": "+ask.want)
	}
	return strings.Join(seen, "; "), nil
}

// inChaosNamespace is kubectl in the namespace of the load clients.
func (t *networkTest) inChaosNamespace(ctx context.Context, input string, args ...string) error {
	_, err := t.cluster.Kubectl(ctx, input, append([]string{"-n", chaosNamespace}, args...)...)
	return err
}
