// Package daemonset contains what installs the agent on the nodes of a cluster: the manifest
// base/nodens.yaml, kustomize overlays of it with the settings in which clusters differ, and the
// Helm chart that renders the same objects.
//
// Except for [Manifest], the package has only tests. They decode each object of the manifest
// strictly with the API's own types, and check what the types don't: probes, addresses,
// volumes and selectors must match, the pod must have no unnecessary privileges, and the
// agent must accept the Corefile. kubectl and helm render overlays and chart; the tests
// compare the result with the manifest object by object, and list what each changes. With
// -update, tests write the chart's copies of monitoring and the tables of its values.
// testdata contains the Corefiles and arguments of NodeLocal DNSCache as deployed, which the
// agent must accept unchanged, and values of its charts, which the chart must accept.
package daemonset
