// Package node tests the agent as a pod meets it: a "pod", a "node" and an
// "upstream" are network namespaces joined by veth, the agent runs in the node
// with its link-local addresses and its real rules, and the pod asks with dig.
// Whatever a test made (namespaces with all that is in them, processes) is gone
// when it ends.
package node
