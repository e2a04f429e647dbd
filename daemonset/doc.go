// Package daemonset holds what puts the agent on the nodes of a cluster: the
// manifest base/nodens.yaml, kustomize's overlays of it, the Helm chart that makes the
// same objects, and the image's Dockerfile. There is no code in it, only
// tests. They decode each object of the manifest against the API's own types, in
// which an unknown field is an error, and hold what the types cannot say: that
// probes, addresses, volumes and selectors agree with each other, that the pod
// asks for no more rights than it uses, and that the Corefile is one the agent
// takes. Overlays and chart are rendered by kubectl and helm, and compared with the
// manifest object by object: what each changes stands in its test. testdata has the
// Corefiles and arguments of NodeLocal DNSCache as its users have them deployed, and
// values as users of its charts have them; the agent and the chart must take those
// unchanged.
package daemonset
