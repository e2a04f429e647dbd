package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

// dualStack is the part of that name: the chart in a cluster of both families, whose
// kube-proxy is in nftables mode, and the way out of it.
func dualStack() []check {
	d := dualStackState{initialState: make(map[string][]string)}
	return []check{
		{"the chart installs agents on both address families", d.installChart},
		{"pods resolve A and AAAA over IPv4 and IPv6", d.checkRecords},
		{"names with both families, with one, and of pods", dualStackNames},
		{"all rules are in the table inet nodens", d.checkTable},
		{"cluster DNS answers on both families without agents", d.checkUninstalled},
		{"cleanup.yaml leaves nothing on the nodes", d.checkCleanup},
		{"the Cilium overlay runs without root and node access", d.checkCilium},
	}
}

// dualStackState is the state of the part dual-stack.
type dualStackState struct {
	installation
	// initialState has what was on each node before the agent.
	initialState map[string][]string
}

// addresses are all that the agents listen at.
func (d *dualStackState) addresses() []string {
	return []string{localDNS, localDNS6, cluster.DNS, cluster.DNS6}
}

// installChart installs it by Helm, with kube-dns's addresses taken over.
func (d *dualStackState) installChart(ctx context.Context, s *suite) (string, error) {
	for _, node := range s.cluster.Nodes() {
		state, err := d.nodeState(ctx, node)
		if err != nil {
			return "", err
		}
		d.initialState[node.Name] = state
	}
	if _, err := s.cluster.Kubectl(ctx, dualStackService, "apply", "--filename=-"); err != nil {
		return "", err
	}
	if err := d.runner.prepare(ctx, s); err != nil {
		return "", err
	}
	line := fmt.Sprintf(`helm install node-local-dns daemonset/chart --namespace kube-system --set 'config.localDns=%s\,%s,config.dnsServer=%s\,%s,config.ipFamilyPolicy=RequireDualStack'`,
		localDNS, localDNS6, cluster.DNS, cluster.DNS6)
	if _, err := d.runner.runShell(ctx, s, line+" && kubectl -n kube-system rollout status daemonset/node-local-dns --timeout=2m"); err != nil {
		return "", err
	}
	s.agent = true
	if err := d.startPods(ctx, s); err != nil {
		return "", err
	}
	return strings.Join(d.addresses(), ", "), nil
}

// dualStackService is a Service that has an address of each.
const dualStackService = `apiVersion: v1
kind: Service
metadata:
  name: both
  namespace: default
spec:
  ipFamilyPolicy: RequireDualStack
  ipFamilies: [IPv4, IPv6]
  clusterIP: 10.96.77.77
  clusterIPs: [10.96.77.77, "fd00:10:96::7777"]
  ports: [{port: 80}]
`

// aaaaLookup is for an address of IPv6 of that Service.
func aaaaLookup(at string) lookup {
	return lookup{"aaaa", "both.default.svc.cluster.local.", "fd00:10:96::7777", at}
}

// checkRecords asks each address for both types, inside of the cluster and outside, and has the
// agent's counters and the kernel's table say who answered.
func (d *dualStackState) checkRecords(ctx context.Context, s *suite) (string, error) {
	var list []lookup
	for _, at := range d.addresses() {
		list = append(list,
			lookup{"a", "both.default.svc.cluster.local.", "10.96.77.77", at},
			aaaaLookup(at),
			lookup{"a", "www.outside.test.", cluster.Outside4, at},
			lookup{"aaaa", "www.outside.test.", cluster.Outside6, at})
	}
	for _, pod := range d.pods {
		if err := d.runLookups(ctx, s, pod, list...); err != nil {
			return "", err
		}
	}
	for _, at := range d.addresses() {
		if err := d.waitAnsweredBy(ctx, s, at, true); err != nil {
			return "", err
		}
	}
	resolver, err := s.cluster.Exec(ctx, "default", d.pods[0], "cat", "/etc/resolv.conf")
	if err != nil {
		return "", err
	}
	if !strings.Contains(resolver, "nameserver "+localDNS+"\nnameserver "+localDNS6+"\n") {
		return "", fmt.Errorf("a pod's resolv.conf is %q, want both addresses in it", resolver)
	}
	return fmt.Sprintf("%d lookups, none in conntrack", len(list)*len(d.pods)), nil
}

// checkTable looks at the nodes' rules.
func (d *dualStackState) checkTable(ctx context.Context, s *suite) (string, error) {
	for _, node := range s.cluster.Nodes() {
		out, err := node.Command(ctx, "nft", "list", "table", "inet", "nodens").Output()
		if err != nil {
			return "", fmt.Errorf("%s: nft list table inet nodens: %w", node.Name, err)
		}
		for _, at := range d.addresses() {
			if !strings.Contains(string(out), at) {
				return "", fmt.Errorf("%s: the table says nothing of %s:\n%s", node.Name, at, out)
			}
		}
		state, err := d.nodeState(ctx, node)
		if err != nil {
			return "", err
		}
		if i := slices.IndexFunc(state, func(line string) bool { return strings.Contains(line, "NODENS") }); i >= 0 {
			return "", fmt.Errorf("%s has rules of iptables, too: %s", node.Name, state[i])
		}
	}
	return "on both nodes, with all addresses, and no iptables rules", nil
}

// checkUninstalled takes the release away. What agents leave leads to CoreDNS.
func (d *dualStackState) checkUninstalled(ctx context.Context, s *suite) (string, error) {
	s.agent = false
	line := "helm uninstall node-local-dns --namespace kube-system --wait && kubectl -n kube-system wait --for=delete pod -l k8s-app=node-local-dns --timeout=1m"
	if _, err := d.runner.runShell(ctx, s, line); err != nil {
		return "", err
	}
	var list []lookup
	for _, at := range d.addresses() {
		list = append(list, aaaaLookup(at))
	}
	for _, pod := range d.pods {
		if err := d.runLookups(ctx, s, pod, list...); err != nil {
			return "", err
		}
	}
	return "all four addresses answer", nil
}

// checkCleanup takes the rest away, by the manifest for it with the agents' addresses, and
// compares the nodes with what they were.
func (d *dualStackState) checkCleanup(ctx context.Context, s *suite) (string, error) {
	left := 0
	for _, node := range s.cluster.Nodes() {
		state, err := d.nodeState(ctx, node)
		if err != nil {
			return "", err
		}
		left += len(linesNotIn(state, d.initialState[node.Name]))
	}
	if left == 0 {
		return "", errors.New("the agents have left nothing to clean up")
	}
	if err := d.runner.setSetting("- localDNS="+localDNS, "- localDNS="+strings.Join(d.addresses(), ",")); err != nil {
		return "", err
	}
	const line = "kubectl apply -k daemonset/cleanup && kubectl -n kube-system rollout status daemonset/node-local-dns-cleanup --timeout=2m && kubectl delete -k daemonset/cleanup"
	if _, err := d.runner.runShell(ctx, s, line); err != nil {
		return "", err
	}
	for _, node := range s.cluster.Nodes() {
		if err := peer.Await(ctx, "what the agent left on "+node.Name, func(ctx context.Context) error {
			return d.checkUnchanged(ctx, node)
		}); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d tables, chains and addresses removed", left), nil
}

// nodeState is what an agent may leave on a node: links, addresses, tables, and rules of
// iptables with its name, each a line.
func (d *dualStackState) nodeState(ctx context.Context, node *cluster.Node) (lines []string, err error) {
	const script = `ip -o link show type dummy; ip -o addr show dev lo; ip -o addr show dev nodelocaldns 2>/dev/null; nft list tables; iptables-save | grep -i nodens; ip6tables-save | grep -i nodens; true`
	out, err := node.Command(ctx, "sh", "-c", script).Output()
	if err != nil {
		return nil, fmt.Errorf("looking at %s: %w", node.Name, err)
	}
	for line := range strings.Lines(string(out)) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines, nil
}

// checkUnchanged compares a node with what it was before the agent.
func (d *dualStackState) checkUnchanged(ctx context.Context, node *cluster.Node) error {
	state, err := d.nodeState(ctx, node)
	if more := linesNotIn(state, d.initialState[node.Name]); err == nil && len(more) > 0 {
		err = fmt.Errorf("it has %q, which was not there before", more)
	}
	return err
}

// linesNotIn has the lines that are not in the others.
func linesNotIn(lines, others []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return slices.Contains(others, line) })
}

// checkCilium runs the agent with a pod's network. What Cilium would send to it pods send by
// themselves.
func (d *dualStackState) checkCilium(ctx context.Context, s *suite) (string, error) {
	if err := d.applyDefinitions(ctx, s); err != nil {
		return "", err
	}
	const line = "kubectl apply -k daemonset/overlays/cilium && kubectl -n kube-system rollout status daemonset/node-local-dns --timeout=2m"
	if _, err := d.runner.runShell(ctx, s, line); err != nil {
		return "", err
	}
	ips, err := s.cluster.Kubectl(ctx, "", "get", "pods", "--namespace=kube-system", "--selector=k8s-app=node-local-dns",
		"--output=jsonpath={range .items[*].status.podIPs[*]}{.ip} {end}")
	if err != nil {
		return "", err
	}
	var list []lookup
	for at := range strings.FieldsSeq(ips) {
		list = append(list, aaaaLookup(at))
	}
	for _, pod := range d.pods {
		if err := d.runLookups(ctx, s, pod, list...); err != nil {
			return "", err
		}
	}
	for _, node := range s.cluster.Nodes() {
		if err := errors.Join(checkUnprivileged(ctx, node), d.checkUnchanged(ctx, node)); err != nil {
			return "", fmt.Errorf("%s: %w", node.Name, err)
		}
	}
	_, err = d.runner.runShell(ctx, s, "kubectl delete -k daemonset/overlays/cilium --wait=false")
	return "user 65534, at " + strings.TrimSpace(ips), err
}

// checkUnprivileged wants the node's only agent, and its probes, to run as nobody.
func checkUnprivileged(ctx context.Context, node *cluster.Node) error {
	// sed ends with 2 if a process has ended before it could read its file.
	const users = `sed -s -n '/^Name:\tnodens$/,/^Uid:/ s/^Uid:\t\([0-9]*\).*/\1/p' /proc/[0-9]*/status || test $? = 2`
	out, err := node.Command(ctx, "sh", "-c", users).Output()
	if list := slices.Compact(strings.Fields(string(out))); err == nil && !slices.Equal(list, []string{"65534"}) {
		err = fmt.Errorf("the agent runs as users %q, want 65534", list)
	}
	return err
}
