// Package node tests the agent from a pod's point of view: a "pod", a "node" and an
// "upstream" are network namespaces connected by veth pairs, the agent runs in the node
// with its link-local addresses and its real rules, and the pod queries it with dig.
// Each test removes its namespaces and processes.
package node
