// Package testbed builds a small cluster from network namespaces connected by veth pairs: a
// "pod", a "node" in which an agent can run with its real rules, an "upstream" that the agent
// forwards to, and a "cluster" with a substitute for the cluster DNS. It also adds the rules of
// other programs on a node: kube-proxy's rules for the ClusterIPs of the cluster DNS, in each
// of its modes, and NodeLocal DNSCache's.
//
// The address in an answer says who has answered: names below [Zone] resolve to [FromAgent] by
// way of the agent and its upstream, and to [FromCluster] by way of the cluster DNS.
//
// It takes root, and on Debian the packages iproute2, iptables and nftables. What a Lab
// has made is gone after Close.
package testbed
