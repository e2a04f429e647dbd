package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// policiesNetwork is the network bridge with NetworkPolicies, which this package enforces itself: no
// engine for policies is available as a Go module. The rules are in kube-router's chains, at
// kube-router's places.
func policiesNetwork() PodNetwork {
	p := bridgeNetwork()
	p.Name, p.Policies, p.SingleStack = "bridge-policies", true, true
	p.Start = func(ctx context.Context, n *Node) error { return n.startPolicies(ctx) }
	p.Version = func(ctx context.Context) (string, error) {
		plugins, err := debianPluginsVersion(ctx)
		return plugins + "; policies: rules of this test in kube-router's chains", err
	}
	return p
}

// PoliciesArg is the first argument when this package starts its own program again to enforce
// NetworkPolicies. The program must then call EnforcePolicies with the remaining arguments.
const PoliciesArg = "enforce-policies"

// startPolicies starts EnforcePolicies on the node.
func (n *Node) startPolicies(ctx context.Context) error {
	err := n.cluster.grantNetwork(ctx, []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"namespaces", "pods"}, Verbs: []string{"list"}},
		{APIGroups: []string{networkingv1.GroupName}, Resources: []string{"networkpolicies"}, Verbs: []string{"list"}},
	})
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	_, err = n.spawn("policies", program, PoliciesArg, n.cluster.kubeconfig(network), n.Name)
	return err
}

// policyInterval is the time between two looks at the cluster's objects.
const policyInterval = 250 * time.Millisecond

// EnforcePolicies keeps rules for the NetworkPolicies of a node's pods in the current network
// namespace, until ctx ends. The arguments are a kubeconfig and the node's name. It writes rules
// only when policies or pods have changed: like kube-router, it does not notice at once when
// another program changes the order of rules.
func EnforcePolicies(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("enforcing policies: give a kubeconfig and a node")
	}
	config, err := clientcmd.BuildConfigFromFlags("", args[0])
	if err != nil {
		return err
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	for last := ""; ; {
		if last, err = updatePolicies(ctx, client, args[1], last); err != nil {
			fmt.Fprintln(os.Stderr, "enforcing policies:", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(policyInterval):
		}
	}
}

// updatePolicies writes the rules if they have changed, and returns them. The result is last if it
// fails.
func updatePolicies(ctx context.Context, client kubernetes.Interface, node, last string) (string, error) {
	o, err := readPolicyObjects(ctx, client)
	if err != nil {
		return last, err
	}
	script, err := o.rules(node)
	if err != nil || script == last {
		return last, err
	}
	if err := writePolicyRules(ctx, script); err != nil {
		return last, err
	}
	return script, nil
}

// writePolicyRules applies the input of iptables-restore, and puts the jumps to kube-router's chains
// first.
func writePolicyRules(ctx context.Context, script string) error {
	restore := exec.CommandContext(ctx, "iptables-restore", "--wait", "--noflush")
	restore.Stdin = strings.NewReader(script)
	if _, err := runOutput(restore); err != nil {
		return err
	}
	for hook, chain := range policyHooks() {
		jump := []string{hook, "--jump", chain}
		rules, err := runOutput(exec.CommandContext(ctx, "iptables", "--wait", "--list-rules", hook, "1"))
		if err != nil {
			return err
		}
		if strings.HasSuffix(strings.TrimSpace(rules), " -j "+chain) {
			continue
		}
		// It may be elsewhere, or nowhere.
		_ = exec.CommandContext(ctx, "iptables", append([]string{"--wait", "--delete"}, jump...)...).Run()
		if _, err := runOutput(exec.CommandContext(ctx, "iptables", append([]string{"--wait", "--insert"}, jump...)...)); err != nil {
			return err
		}
	}
	return nil
}

// policyHooks returns kube-router's chains by the built-in chain that jumps to them.
func policyHooks() map[string]string {
	return map[string]string{"INPUT": "KUBE-ROUTER-INPUT", "FORWARD": "KUBE-ROUTER-FORWARD", "OUTPUT": "KUBE-ROUTER-OUTPUT"}
}

// policyObjects are the objects that the rules depend on.
type policyObjects struct {
	pods       []corev1.Pod
	namespaces []corev1.Namespace
	policies   []networkingv1.NetworkPolicy
}

func readPolicyObjects(ctx context.Context, client kubernetes.Interface) (o policyObjects, err error) {
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return o, err
	}
	namespaces, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return o, err
	}
	policies, err := client.NetworkingV1().NetworkPolicies("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return o, err
	}
	for _, p := range pods.Items {
		over := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if !p.Spec.HostNetwork && p.Status.PodIP != "" && !over {
			o.pods = append(o.pods, p)
		}
	}
	o.namespaces, o.policies = namespaces.Items, policies.Items
	return o, nil
}

// rules returns the rules for the node's pods as input of iptables-restore. A pod's packets pass one
// chain for each direction that a policy is about: packets from the pod to the node or to other
// hosts, and forwarded packets to the pod. Like kube-router, it lets the node reach its own pods.
func (o policyObjects) rules(node string) (string, error) {
	var chains, rules strings.Builder
	for _, hook := range []string{"INPUT", "FORWARD", "OUTPUT"} {
		fmt.Fprintf(&chains, ":%s - [0:0]\n", policyHooks()[hook])
	}
	for _, p := range o.pods {
		if p.Spec.NodeName != node {
			continue
		}
		for _, direction := range []networkingv1.PolicyType{networkingv1.PolicyTypeEgress, networkingv1.PolicyTypeIngress} {
			allowed, restricted, err := o.allowed(p, direction)
			if err != nil {
				return "", err
			}
			if restricted {
				name := fmt.Sprintf("POD-%s-%.2s", p.Status.PodIP, direction)
				fmt.Fprintf(&chains, ":%s - [0:0]\n", name)
				rules.WriteString(podRules(p.Status.PodIP, name, direction, allowed))
			}
		}
	}
	return "*filter\n" + chains.String() + rules.String() + "COMMIT\n", nil
}

// podRules returns the rules of a pod in one direction, in the chain of this name, and the jumps to it.
func podRules(addr, name string, direction networkingv1.PolicyType, allowed []string) string {
	var b strings.Builder
	if direction == networkingv1.PolicyTypeEgress {
		fmt.Fprintf(&b, "-A KUBE-ROUTER-INPUT -s %[1]s -j %[2]s\n-A KUBE-ROUTER-FORWARD -s %[1]s -j %[2]s\n", addr, name)
	} else {
		fmt.Fprintf(&b, "-A KUBE-ROUTER-FORWARD -d %s -j %s\n", addr, name)
	}
	fmt.Fprintf(&b, "-A %s -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN\n", name)
	for _, match := range allowed {
		fmt.Fprintf(&b, "-A %s %s-j RETURN\n", name, match)
	}
	fmt.Fprintf(&b, "-A %s -j REJECT\n", name)
	return b.String()
}
