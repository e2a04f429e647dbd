package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

// networkPart is the name of the part that compares pod networks, and usualOtherNetwork the
// network that it runs on if none is chosen.
const (
	networkPart       = "network"
	usualOtherNetwork = "ptp"
)

// networkTest is the state of the part network. Its load clients query both of the agent's
// addresses.
type networkTest struct {
	chaosTest
	network   cluster.PodNetwork
	names     namesFixture
	installed installation
	// restricted has the load clients with a NetworkPolicy, by DaemonSet and node.
	restricted map[string]map[string]netip.Addr
}

// networkChecks returns the checks of the part network: what depends on how packets get from a pod
// to the agent, with the kernel path off and on.
func networkChecks(network cluster.PodNetwork, proxy string) []check {
	if network.Name == cluster.CiliumName {
		return ciliumChecks(network)
	}
	t := &networkTest{network: network, chaosTest: chaosTest{servers: agentAddresses()}}
	list := []check{{"the agents take kube-dns's ClusterIP over; pods query them", func(ctx context.Context, s *suite) (string, error) {
		return t.setUp(ctx, s, "takeover")
	}}}
	list = append(list, t.modeChecks(newNetworkRow(network, proxy, "off"), t.rollMarked)...)
	list = append(list, t.modeChecks(newNetworkRow(network, proxy, "on"), t.enableKernelPath)...)
	return append(list, check{"agents and configuration are restored", t.restore})
}

// agentAddresses returns the addresses that the agents answer at.
func agentAddresses() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(localDNS), netip.MustParseAddr(cluster.DNS)}
}

// modeChecks returns the checks in one mode of the kernel path, which roll brings the agents into.
// Their results are in the row.
func (t *networkTest) modeChecks(row *networkRow, roll faultFunc) []check {
	mode := "kernel path " + row.kernelPath + ": "
	list := []check{
		{mode + "rolled out", func(ctx context.Context, s *suite) (string, error) {
			s.addRow(row)
			return t.measure(ctx, &row.upgrade, fault{"", [2]lossLimit{lossless, lossless}, roll})
		}},
		{mode + "the agents are in this mode", func(ctx context.Context, s *suite) (string, error) { return t.checkMode(ctx, row.kernelPath == "on") }},
		{mode + "names", func(ctx context.Context, s *suite) (string, error) { return t.checkNames(ctx, row) }},
		{mode + "the addresses are answered, untracked", t.checkAddresses},
	}
	if row.kernelPath == "on" {
		list = append(list, check{mode + "agents replaced", func(ctx context.Context, s *suite) (string, error) {
			return t.measure(ctx, &row.upgrade, fault{"", [2]lossLimit{lossless, lossless}, (*chaosTest).rollAgain})
		}}, check{mode + "nodens tail takes a pod off it, and its end back", t.checkTail})
	}
	kill := check{mode + "agent killed", func(ctx context.Context, s *suite) (string, error) {
		return t.measure(ctx, &row.kill, fault{"", [2]lossLimit{lossless, agentKilled}, (*chaosTest).killLast})
	}}
	if !t.network.Policies {
		row.policy = "not enforced"
		return append(list, kill)
	}
	return append(list, t.policyChecks(mode, row, kill)...)
}

// faultFunc is fault.run.
type faultFunc = func(*chaosTest, context.Context) (map[string]podKill, error)

// setUp installs the agents with an overlay, and starts all clients.
func (t *networkTest) setUp(ctx context.Context, s *suite, overlay string) (string, error) {
	if err := t.install(ctx, s, overlay); err != nil {
		return "", err
	}
	if err := t.waitServed(ctx, s); err != nil {
		return "", err
	}
	return t.startClients(ctx, s)
}

// startClients starts the pods that ask for names, and those that send load.
func (t *networkTest) startClients(ctx context.Context, s *suite) (string, error) {
	version, err := t.network.Version(ctx)
	if err != nil {
		return "", fmt.Errorf("the network's version: %w", err)
	}
	s.setVersion(t.network.Name, version)
	client, err := t.names.connect(ctx, s)
	if err != nil {
		return "", err
	}
	seen, err := t.names.createObjects(ctx, s, client)
	if err != nil {
		return "", err
	}
	load, err := t.chaosTest.setUp(ctx, s)
	if err == nil && t.network.Policies {
		err = t.startRestricted(ctx)
	}
	return seen + "; " + load, err
}

// install installs the agents with an overlay.
func (t *networkTest) install(ctx context.Context, s *suite, overlay string) error {
	runner := &t.installed.runner // has a copy of the tree with short comparisons
	if err := runner.prepare(ctx, s); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"apply", "--kustomize=" + filepath.Join(runner.tree, "daemonset/overlays", overlay)},
		{"rollout", "status", "--namespace=" + agentNamespace, "daemonset/" + agentDaemonSet, "--timeout=2m"},
	} {
		if _, err := s.cluster.Kubectl(ctx, "", args...); err != nil {
			return err
		}
	}
	s.agent = true
	return nil
}

// waitServed waits until the agents answer at t.servers.
func (t *networkTest) waitServed(ctx context.Context, s *suite) error {
	for _, a := range t.servers {
		if err := t.installed.waitAnsweredBy(ctx, s, a.String(), true); err != nil {
			return err
		}
	}
	return nil
}

// checkAddresses checks that the node's own agent answers at t.servers, without connection tracking.
func (t *networkTest) checkAddresses(ctx context.Context, s *suite) (string, error) {
	if t.api == nil {
		return "", errNoLoadPods
	}
	if err := t.waitServed(ctx, s); err != nil {
		return "", err
	}
	return fmt.Sprint(t.servers), nil
}

// rollMarked rolls out the Corefile by which the agents' answers are told from the cluster DNS's.
func (t *networkTest) rollMarked(_ *chaosTest, ctx context.Context) (map[string]podKill, error) {
	return t.chaosTest.rollMarked(ctx)
}

// enableKernelPath rolls out what the overlay kernel-path changes. The agents don't start if the
// kernel can't run the program.
func (t *networkTest) enableKernelPath(_ *chaosTest, ctx context.Context) (map[string]podKill, error) {
	const container = "/spec/template/spec/containers/0/"
	const patch = `[
		{"op": "add", "path": "` + container + `args/-", "value": "-kernel-path=on"},
		{"op": "replace", "path": "` + container + `securityContext/capabilities/add",
		 "value": ["NET_ADMIN", "NET_BIND_SERVICE", "BPF", "PERFMON"]}]`
	err := t.kubectl(ctx, "patch", "daemonset/"+agentDaemonSet, "--type=json", "--patch="+patch)
	if err == nil {
		err = t.awaitRollout(ctx)
	}
	if err == nil {
		err = t.waitAgentsReady(ctx)
	}
	return nil, err
}

// rollAgain replaces the agents by equal ones.
func (h *chaosTest) rollAgain(ctx context.Context) (map[string]podKill, error) {
	return nil, h.restartAgents(ctx)
}

// killLast kills the last node's agent and waits until the next one answers.
func (h *chaosTest) killLast(ctx context.Context) (map[string]podKill, error) {
	last := h.nodes[len(h.nodes)-1]
	_, before, err := h.agentOf(ctx, last)
	if err != nil {
		return nil, err
	}
	dead, err := h.killAgent(ctx, last)
	if err == nil {
		err = h.waitRestarted(ctx, last, before)
	}
	if err == nil {
		err = h.waitAnswered(ctx, last, h.serviceJob())
	}
	return map[string]podKill{last.Name: dead}, err
}

// measure causes the fault under load, and adds the losses of all nodes to the sum. If an agent is
// killed, the cluster DNS must answer queries of its node meanwhile, and only this node counts.
func (t *networkTest) measure(ctx context.Context, sum *lossSum, m fault) (string, error) {
	if t.api == nil {
		return "", errNoLoadPods
	}
	perNode, err := t.underLoad(ctx, func(ctx context.Context) (map[string]podKill, error) { return m.run(&t.chaosTest, ctx) })
	if err != nil {
		return "", err
	}
	seen, err := m.checkLosses(perNode)
	killed := slices.IndexFunc(perNode, func(l losses) bool { return !l.gone.IsZero() })
	if killed >= 0 {
		perNode = perNode[killed : killed+1]
		// Cilium leads queries to the cluster DNS when the pod is no longer ready. An agent is back before.
		if perNode[0].total().Cluster == 0 && t.network.Name != cluster.CiliumName {
			err = errors.Join(err, errors.New("the cluster DNS has answered no query while the agent was down"))
		}
	}
	for _, l := range perNode {
		sum.add(l.total())
	}
	return seen, err
}

// The metrics of the kernel path.
const (
	kernelActiveMetric     = "nodens_kernel_path_active"
	kernelInterfacesMetric = "nodens_kernel_path_interfaces"
	kernelWatchedMetric    = "nodens_kernel_path_interfaces_watched"
	kernelQueriesMetric    = "nodens_kernel_path_queries_total"
)

// checkMode checks on every node that the kernel path is on or off, and, if it is on, that it runs on
// the interface of each pod.
func (t *networkTest) checkMode(ctx context.Context, on bool) (string, error) {
	if t.api == nil {
		return "", errNoLoadPods
	}
	pods, err := t.podsWithInterface(ctx)
	if err != nil {
		return "", err
	}
	for _, n := range t.nodes {
		want := map[string]float64{kernelActiveMetric: 0, kernelWatchedMetric: 0}
		if on {
			want = map[string]float64{kernelActiveMetric: 1, kernelWatchedMetric: 0, kernelInterfacesMetric: float64(pods[n.Name])}
		}
		if err := t.waitMetrics(ctx, n, want); err != nil {
			return "", err
		}
	}
	if !on {
		return "no program", nil
	}
	return fmt.Sprintf("the program is on the interfaces of all pods: %v", pods), nil
}

// waitMetrics waits until the metrics of the node's agent have these values.
func (t *networkTest) waitMetrics(ctx context.Context, n *cluster.Node, want map[string]float64) error {
	return peer.Await(ctx, "the metrics of the agent on "+n.Name, func(ctx context.Context) error {
		for metric, value := range want {
			got, err := t.cluster.MetricSum(ctx, n, metricsPort, metric)
			if err == nil && got != value {
				sleep(ctx, pollInterval)
				err = fmt.Errorf("%s is %v, want %v", metric, got, value)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// podsWithInterface returns the number of running pods outside of their node's network, by node.
func (t *networkTest) podsWithInterface(ctx context.Context) (map[string]int, error) {
	list, err := t.api.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	number := make(map[string]int)
	for _, p := range list.Items {
		if !p.Spec.HostNetwork && p.Status.Phase == corev1.PodRunning {
			number[p.Spec.NodeName]++
		}
	}
	return number, nil
}

// checkNames compares the agents' answers with CoreDNS's. With the kernel path it asks a second time
// for what the kernel then knows.
func (t *networkTest) checkNames(ctx context.Context, row *networkRow) (string, error) {
	if t.api == nil {
		return "", errNoLoadPods
	}
	before, err := t.kernelAnswers(ctx)
	if err != nil {
		return "", err
	}
	rounds := 1
	if row.kernelPath == "on" {
		rounds = 2
	}
	for range rounds {
		if err := t.compare(ctx, row); err != nil {
			return "", err
		}
	}
	after, err := t.kernelAnswers(ctx)
	if err != nil {
		return "", err
	}
	if row.kernelPath == "on" && after == before {
		return "", errors.New("the kernel has answered no query")
	}
	return fmt.Sprintf("%d replies equal CoreDNS's, %.0f of them from the kernel", row.names.queries, after-before), nil
}

// compare compares the agents' answers at t.servers with CoreDNS's once, and adds the result to the row.
func (t *networkTest) compare(ctx context.Context, row *networkRow) error {
	w := &t.names
	w.marked = t.marked
	table := slices.Concat(w.apiServerQuestions(), w.clusterIPQuestions(), w.headlessQuestions(), w.hostnameQuestions(), w.externalNameQuestions(), w.outsideQuestions())
	var addresses []string
	for _, a := range t.servers {
		addresses = append(addresses, a.String())
	}
	c, err := w.compareReplies(ctx, t.suite, table, addresses...)
	row.names.queries += c.queries
	row.names.different += c.different
	return err
}

// kernelAnswers returns the number of queries answered in the kernel, of all nodes.
func (t *networkTest) kernelAnswers(ctx context.Context) (sum float64, err error) {
	for _, n := range t.nodes {
		value, err := t.cluster.MetricSum(ctx, n, metricsPort, kernelQueriesMetric, `result="answered"`)
		if err != nil {
			return 0, err
		}
		sum += value
	}
	return sum, nil
}

// restore deletes the clients and restores the Corefile.
func (t *networkTest) restore(ctx context.Context, s *suite) (string, error) {
	if t.api == nil {
		return "", errNoLoadPods
	}
	err := t.names.deleteNamespaces(ctx)
	_, failed := s.cluster.Kubectl(ctx, "", "delete", "pod", "--now", "--wait=false", "--selector=app=installation")
	seen, more := t.chaosTest.restore(ctx, s)
	return seen, errors.Join(err, failed, more)
}
