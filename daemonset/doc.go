// Package daemonset holds what puts the agent on the nodes of a cluster: the
// manifest nodens.yaml and the image's Dockerfile. There is no code in it, only
// tests. They decode each object of the manifest against the API's own types, in
// which an unknown field is an error, and hold what the types cannot say: that
// probes, addresses, volumes and selectors agree with each other, that the pod
// asks for no more rights than it uses, and that the Corefile is one the agent
// takes. testdata has the Corefiles and arguments of NodeLocal DNSCache as its
// users have them deployed; the agent must take those unchanged.
package daemonset
