// Package firewalls runs the agent beside other programs' firewalls, on nodes whose tools come from
// several Debian releases.
//
// A [Firewall] is what another program writes: ufw, firewalld, nftables.service, netfilter-persistent,
// kube-proxy, a network plugin, an administrator. A [BackEnd] is how the agent writes its own rules, and
// which rules of kube-proxy are there. A [Release] is a Debian release whose programs are unpacked from
// its packages; the machine's own programs and rules are not touched. A [Bed] is a node of network
// namespaces with a pod and a cluster DNS, in which [Bed.Run] lets one thing after the other happen, the
// [Event]s, while the pod and the node ask at a bounded rate.
//
// Each event counts what was answered and what was lost. Others' rules, tables and addresses must be the
// same text afterwards, `nft list ruleset` of every release must succeed, and `nodens cleanup` must leave
// nothing. The agent is the binary in the environment variable AGENT, if there is one.
package firewalls
