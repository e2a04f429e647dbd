package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

// fault is an event that the cluster must survive.
type fault struct {
	name string
	// limits are the allowed losses on the first node and on the others.
	limits [2]lossLimit
	// run causes the fault and returns after recovery. kills are by node.
	run func(h *chaosTest, ctx context.Context) (kills map[string]podKill, err error)
}

// faults are all faults, in order. The first one sets the TTL that distinguishes the agents' answers
// from the cluster DNS's for the faults after it. The API server comes last: after its outage the
// nodes count as lost for a while, and a rollout would not spare their agents.
var faults = []fault{
	{"rolling update with a changed Corefile", [2]lossLimit{lossless, lossless}, (*chaosTest).rollMarked},
	{"agent pod deleted; agent killed on the other node", [2]lossLimit{agentDeleted, agentKilled}, (*chaosTest).deleteAndKill},
	{"kubelets restarted", [2]lossLimit{lossless, lossless}, (*chaosTest).restartKubelets},
	{"CoreDNS scaled to zero", [2]lossLimit{lossless, lossless}, (*chaosTest).scaleCoreDNS},
	{"node drained", [2]lossLimit{lossless, lossless}, (*chaosTest).drainNode},
	{"broken Corefile rolled out and reverted", [2]lossLimit{rolledTwice, rolledTwice}, (*chaosTest).rollBroken},
	{"API server stopped, an agent killed meanwhile", [2]lossLimit{agentKilled, lossless}, (*chaosTest).stopAPIServer},
}

// chaos returns the checks of the part chaos.
func chaos() []check {
	h := &chaosTest{}
	list := []check{{"pods on all nodes query their agents", h.setUp}, {"agents get the seccomp profile", h.restrict}}
	for i, m := range faults {
		if i == len(faults)-1 { // a rollout after that one could replace all agents at once
			list = append(list, check{"agents get the base's profile back", h.release})
		}
		list = append(list, check{m.name, func(ctx context.Context, _ *suite) (string, error) { return h.runFault(ctx, m) }})
	}
	return append(list, check{"agents and configuration are restored", h.restore})
}

// runFault causes the fault under load and compares the losses with the limits.
func (h *chaosTest) runFault(ctx context.Context, m fault) (string, error) {
	if h.api == nil {
		return "", errNoLoadPods
	}
	h.detail = ""
	perNode, err := h.underLoad(ctx, func(ctx context.Context) (map[string]podKill, error) { return m.run(h, ctx) })
	if err != nil {
		return "", err
	}
	seen, err := m.checkLosses(perNode)
	return seen + h.detail, err
}

// checkLosses compares the losses of the nodes with the limits.
func (m fault) checkLosses(perNode []losses) (string, error) {
	var seen []string
	var errs []error
	for i, t := range perNode {
		seen = append(seen, t.String())
		errs = append(errs, m.limits[min(i, 1)].check(t))
	}
	return strings.Join(seen, "; "), errors.Join(errs...)
}

var errNoLoadPods = errors.New("the pods that ask are missing")

// kubectl is Kubectl in the agents' namespace, without its output.
func (h *chaosTest) kubectl(ctx context.Context, args ...string) error {
	_, err := h.cluster.Kubectl(ctx, "", append([]string{"-n", agentNamespace}, args...)...)
	return err
}

// setCorefile puts the Corefile into the agents' ConfigMap.
func (h *chaosTest) setCorefile(ctx context.Context, corefile string) error {
	maps := h.api.CoreV1().ConfigMaps(agentNamespace)
	m, err := maps.Get(ctx, agentConfigMap, metav1.GetOptions{})
	if err != nil {
		return err
	}
	m.Data["Corefile"] = corefile
	_, err = maps.Update(ctx, m, metav1.UpdateOptions{})
	return err
}

// restartAgents replaces all agents, and waits until only the new ones are left.
func (h *chaosTest) restartAgents(ctx context.Context) error {
	if err := h.kubectl(ctx, "rollout", "restart", "daemonset/"+agentDaemonSet); err != nil {
		return err
	}
	if err := h.awaitRollout(ctx); err != nil {
		return err
	}
	return h.waitAgentsReady(ctx)
}

// awaitRollout waits until a rollout of the agents is complete.
func (h *chaosTest) awaitRollout(ctx context.Context) error {
	return h.kubectl(ctx, "rollout", "status", "daemonset/"+agentDaemonSet, "--timeout=180s")
}

// markedCorefile is the agents' Corefile with another TTL, markTTL.
func (h *chaosTest) markedCorefile() (string, error) {
	const ttl = " ttl 30\n"
	if strings.Count(h.corefile, ttl) != 1 {
		return "", fmt.Errorf("the agents' Corefile is not the one of daemonset/nodens.yaml:\n%s", h.corefile)
	}
	return strings.Replace(h.corefile, ttl, fmt.Sprintf(" ttl %d\n", markTTL), 1), nil
}

// rollMarked rolls out the marked Corefile.
func (h *chaosTest) rollMarked(ctx context.Context) (map[string]podKill, error) {
	marked, err := h.markedCorefile()
	if err == nil {
		err = h.setCorefile(ctx, marked)
	}
	if err == nil {
		err = h.restartAgents(ctx)
	}
	h.marked = err == nil
	return nil, err
}

// agentOf is the name of the node's agent pod, and how often its agent was started anew.
func (h *chaosTest) agentOf(ctx context.Context, n *cluster.Node) (pod string, restarts int32, err error) {
	list, err := h.agentPods(ctx)
	for _, p := range list {
		if p.Spec.NodeName == n.Name {
			for _, c := range p.Status.ContainerStatuses {
				restarts += c.RestartCount
			}
			return p.Name, restarts, err
		}
	}
	return "", 0, errors.Join(err, fmt.Errorf("node %s has no agent", n.Name))
}

// deleteAndKill deletes the first node's agent pod and kills the last node's agent.
func (h *chaosTest) deleteAndKill(ctx context.Context) (map[string]podKill, error) {
	first, last := h.nodes[0], h.nodes[len(h.nodes)-1]
	pod, _, err := h.agentOf(ctx, first)
	if err != nil {
		return nil, err
	}
	_, before, err := h.agentOf(ctx, last)
	if err != nil {
		return nil, err
	}
	dead, err := h.killAgent(ctx, last)
	if err != nil {
		return nil, err
	}
	if err := h.kubectl(ctx, "delete", "pod", pod); err != nil {
		return nil, err
	}
	err = h.waitRestarted(ctx, last, before)
	for _, n := range []*cluster.Node{first, last} {
		if err == nil {
			err = h.waitAnswered(ctx, n, h.serviceJob())
		}
	}
	return map[string]podKill{last.Name: dead}, err
}

// waitRestarted waits until the kubelet has restarted the node's agent, and all agents are ready.
func (h *chaosTest) waitRestarted(ctx context.Context, n *cluster.Node, before int32) error {
	err := peer.Await(ctx, "the killed agent to be started", func(ctx context.Context) error {
		_, now, err := h.agentOf(ctx, n)
		if err == nil && now == before {
			sleep(ctx, pollInterval)
			err = errors.New("the kubelet has not started it yet")
		}
		return err
	})
	if err != nil {
		return err
	}
	return h.waitAgentsReady(ctx)
}

// killAgent kills the node's agent with SIGKILL and waits until its process is reaped; its sockets
// are closed then.
func (h *chaosTest) killAgent(ctx context.Context, n *cluster.Node) (d podKill, err error) {
	const script = `for p in /proc/[0-9]*; do
	read -r name 2>/dev/null <$p/comm && [ "$name" = nodens ] || continue
	date +%s%N
	kill -9 ${p#/proc/}
	while [ -e $p ]; do :; done
	date +%s%N
done`
	out, err := n.Command(ctx, "/bin/sh", "-c", script).Output()
	var killed, gone int64
	if err == nil {
		_, err = fmt.Sscanf(string(out), "%d\n%d\n", &killed, &gone)
	}
	if err != nil {
		return d, fmt.Errorf("killing the agent of %s: %w\n%s", n.Name, err, out)
	}
	return podKill{time.Unix(0, killed), time.Unix(0, gone)}, nil
}

// killAndAwait kills the node's agent, and waits until the kubelet has started it again.
func (h *chaosTest) killAndAwait(ctx context.Context, n *cluster.Node) error {
	_, before, err := h.agentOf(ctx, n)
	if err != nil {
		return err
	}
	if _, err := h.killAgent(ctx, n); err != nil {
		return err
	}
	return h.waitRestarted(ctx, n, before)
}

func (h *chaosTest) restartKubelets(ctx context.Context) (map[string]podKill, error) {
	for _, n := range h.nodes {
		if err := n.RestartKubelet(ctx); err != nil {
			return nil, err
		}
	}
	return nil, h.waitAgentsReady(ctx)
}

// scaleCoreDNS scales CoreDNS to zero, keeps the load running, and scales it up again.
func (h *chaosTest) scaleCoreDNS(ctx context.Context) (map[string]podKill, error) {
	const name, pods = "deployment/coredns", "k8s-app=kube-dns"
	if err := h.kubectl(ctx, "scale", name, "--replicas=0"); err != nil {
		return nil, err
	}
	if err := h.kubectl(ctx, "wait", "pod", "-l", pods, "--for=delete", "--timeout=60s"); err != nil {
		return nil, err
	}
	sleep(ctx, outageTime)
	if err := h.kubectl(ctx, "scale", name, "--replicas=2"); err != nil {
		return nil, err
	}
	return nil, h.kubectl(ctx, "rollout", "status", name, "--timeout=60s")
}

// outageTime is the length of the load during an outage: several of the agents' health-check
// intervals.
const outageTime = 2 * time.Second

// drainNode drains the first node and uncordons it. Pods of DaemonSets stay.
func (h *chaosTest) drainNode(ctx context.Context) (map[string]podKill, error) {
	n := h.nodes[0]
	err := h.kubectl(ctx, "drain", n.Name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s")
	return nil, errors.Join(err, h.kubectl(ctx, "uncordon", n.Name), h.waitAgentsReady(ctx))
}

// stopAPIServer stops the API server and kills the first node's agent. Its successor must answer from
// the view saved on the node. A Service created after the API server's return must reach all agents.
func (h *chaosTest) stopAPIServer(ctx context.Context) (map[string]podKill, error) {
	n := h.nodes[0]
	if err := h.cluster.StopAPI(); err != nil {
		return nil, err
	}
	began := time.Now()
	dead, err := h.killAgent(ctx, n)
	if err == nil {
		err = h.waitAnswered(ctx, n, h.serviceJob())
	}
	if err == nil {
		sleep(ctx, h.outage-time.Since(began))
	}
	if err = errors.Join(err, h.cluster.StartAPI(ctx)); err != nil {
		return nil, err
	}
	kills, back := map[string]podKill{n.Name: dead}, time.Now()
	late := netip.MustParseAddr("10.96.77.53")
	s := selectorlessService("name-0", late.String())
	s["metadata"] = object{"name": "name-0", "namespace": "default"}
	if _, err := h.cluster.Kubectl(ctx, (objectList{s}).String(), "create", "-f", "-"); err != nil {
		return nil, err
	}
	for _, n := range h.nodes {
		j := h.serviceJob()
		j.Zone, j.Names, j.Local, j.Cluster = "default.svc."+cluster.Domain+".", 1, late, late
		if err := h.waitAnswered(ctx, n, j); err != nil {
			return nil, err
		}
	}
	h.detail = fmt.Sprintf("; a new Service resolved on all nodes %.1f s after the API server returned", time.Since(back).Seconds())
	_, err = h.cluster.Kubectl(ctx, "", "-n", "default", "delete", "service", "name-0")
	return kills, errors.Join(err, h.waitAgentsReady(ctx))
}

// rollBroken rolls out an invalid Corefile. Running agents continue; new ones exit until the ConfigMap
// is restored. The kubelet may then restart the exited agent before the second rollout replaces it.
func (h *chaosTest) rollBroken(ctx context.Context) (map[string]podKill, error) {
	good, err := h.markedCorefile()
	if err != nil {
		return nil, err
	}
	if err := h.setCorefile(ctx, "nonsense {\n"); err != nil {
		return nil, err
	}
	if err := h.kubectl(ctx, "rollout", "restart", "daemonset/"+agentDaemonSet); err != nil {
		return nil, err
	}
	err = peer.Await(ctx, "an agent to end because of its Corefile", func(ctx context.Context) error {
		list, err := h.agentPods(ctx)
		if err != nil {
			return err
		}
		running, ended := countAgents(list)
		if running == len(h.nodes) && ended > 0 {
			return nil
		}
		sleep(ctx, pollInterval)
		return fmt.Errorf("%d agents are ready, %d have ended", running, ended)
	})
	err = errors.Join(err, h.setCorefile(ctx, good))
	if err == nil {
		err = h.restartAgents(ctx)
	}
	return nil, err
}

// countAgents returns the number of ready agents, and of agents that exited and are not ready.
func countAgents(list []corev1.Pod) (running, ended int) {
	for _, p := range list {
		for _, c := range p.Status.ContainerStatuses {
			switch {
			case c.Ready:
				running++
			case c.RestartCount > 0:
				ended++
			}
		}
	}
	return running, ended
}

// restore deletes the part's objects and restores the Corefile; agents reload it later.
func (h *chaosTest) restore(ctx context.Context, s *suite) (string, error) {
	if h.api == nil {
		return "", errNoLoadPods
	}
	_, err := s.cluster.Kubectl(ctx, "", "delete", "namespace", chaosNamespace, "--wait=false")
	if err = errors.Join(err, h.setCorefile(ctx, h.corefile), h.waitAgentsReady(ctx)); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d agents ready, on %d nodes", len(h.nodes), len(h.nodes)), nil
}
