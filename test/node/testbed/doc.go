// Package testbed makes a small cluster out of network namespaces joined by veth: a "pod", a
// "node" in which an agent can run with its real rules, an "upstream" that the agent
// forwards to, and a "cluster" with what stands in for the cluster's own DNS. It also has
// what a node's other programs leave there: kube-proxy's rules for the ClusterIPs of that
// DNS, in each of its ways, and NodeLocal DNSCache's.
//
// Who has answered is told by the address in an answer: names below [Zone] have
// [FromAgent] if the agent was asked, which has it from its upstream, and [FromCluster] if
// the cluster's DNS was.
//
// It takes root, and on Debian the packages iproute2, iptables and nftables. What a Lab
// has made is gone after Close.
package testbed
