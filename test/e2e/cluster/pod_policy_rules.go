package cluster

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// policyRule is a rule of a NetworkPolicy in either direction.
type policyRule struct {
	peers []networkingv1.NetworkPolicyPeer
	ports []networkingv1.NetworkPolicyPort
}

// allowed returns matches of iptables for the packets that a pod's policies allow in one direction.
// restricted reports whether there is a policy at all. Policies with named ports or exceptions
// are errors.
func (o policyObjects) allowed(pod corev1.Pod, direction networkingv1.PolicyType) (matches []string, restricted bool, err error) {
	for _, policy := range o.policies {
		if policy.Namespace != pod.Namespace || !slices.Contains(policy.Spec.PolicyTypes, direction) {
			continue
		}
		if ok, err := selects(&policy.Spec.PodSelector, pod.Labels); err != nil || !ok {
			if err != nil {
				return nil, false, err
			}
			continue
		}
		restricted = true
		for _, rule := range rulesOf(policy, direction) {
			more, err := o.matches(policy.Namespace, rule, direction)
			if err != nil {
				return nil, false, fmt.Errorf("policy %s: %w", policy.Name, err)
			}
			matches = append(matches, more...)
		}
	}
	return matches, restricted, nil
}

// rulesOf returns the policy's rules of one direction.
func rulesOf(policy networkingv1.NetworkPolicy, direction networkingv1.PolicyType) (rules []policyRule) {
	if direction == networkingv1.PolicyTypeEgress {
		for _, r := range policy.Spec.Egress {
			rules = append(rules, policyRule{r.To, r.Ports})
		}
		return rules
	}
	for _, r := range policy.Spec.Ingress {
		rules = append(rules, policyRule{r.From, r.Ports})
	}
	return rules
}

// matches returns a match for each address and port that a rule allows.
func (o policyObjects) matches(namespace string, rule policyRule, direction networkingv1.PolicyType) (matches []string, err error) {
	addresses, err := o.addresses(namespace, rule.peers)
	if err != nil {
		return nil, err
	}
	ports, err := portMatches(rule.ports)
	if err != nil {
		return nil, err
	}
	option := "-d "
	if direction == networkingv1.PolicyTypeIngress {
		option = "-s "
	}
	for _, a := range addresses {
		if a != "" {
			a = option + a + " "
		}
		for _, p := range ports {
			matches = append(matches, a+p)
		}
	}
	return matches, nil
}

// portMatches returns a match for each port: "" for all, if there is none.
func portMatches(ports []networkingv1.NetworkPolicyPort) (matches []string, err error) {
	if len(ports) == 0 {
		return []string{""}, nil
	}
	for _, p := range ports {
		if p.Port == nil || p.Port.IntVal == 0 || p.Protocol == nil || p.EndPort != nil {
			return nil, fmt.Errorf("the port %v is not one number with a protocol", p)
		}
		matches = append(matches, fmt.Sprintf("-p %s --dport %d ", *p.Protocol, p.Port.IntVal))
	}
	return matches, nil
}

// addresses returns the addresses of a rule's peers: "" for all, if it names none.
func (o policyObjects) addresses(namespace string, peers []networkingv1.NetworkPolicyPeer) (addresses []string, err error) {
	if len(peers) == 0 {
		return []string{""}, nil
	}
	for _, peer := range peers {
		if peer.IPBlock != nil {
			if len(peer.IPBlock.Except) > 0 {
				return nil, fmt.Errorf("the block %s has exceptions", peer.IPBlock.CIDR)
			}
			addresses = append(addresses, peer.IPBlock.CIDR)
			continue
		}
		for _, pod := range o.pods {
			ok, err := o.isPeer(namespace, peer, pod)
			if err != nil {
				return nil, err
			}
			if ok {
				addresses = append(addresses, pod.Status.PodIP)
			}
		}
	}
	return addresses, nil
}

// isPeer reports whether a peer without addresses of a policy in the namespace is this pod.
func (o policyObjects) isPeer(namespace string, peer networkingv1.NetworkPolicyPeer, pod corev1.Pod) (bool, error) {
	if peer.PodSelector != nil {
		if ok, err := selects(peer.PodSelector, pod.Labels); err != nil || !ok {
			return false, err
		}
	}
	if peer.NamespaceSelector == nil {
		return pod.Namespace == namespace, nil
	}
	for _, n := range o.namespaces {
		if n.Name == pod.Namespace {
			return selects(peer.NamespaceSelector, n.Labels)
		}
	}
	return false, nil
}

func selects(selector *metav1.LabelSelector, of map[string]string) (bool, error) {
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && s.Matches(labels.Set(of)), err
}
