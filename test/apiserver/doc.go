// Package apiserver runs a real Kubernetes API server with its etcd, and
// nothing else of a cluster: no controllers and no nodes.
//
// Both listen on loopback. Each server has certificates of its own CA
// and two users with a token each: an administrator who may do everything,
// and the agent, who may do what the agent's ClusterRole allows. Because no
// controller runs, the objects are exactly those that a test writes, besides
// the kubernetes Service that the API server makes itself.
//
// Backup and Restore are for tests of what the agent does when etcd's data are put back.
// Stop and Restart are for tests of what the agent does without an API
// server: etcd goes on, so the objects are still there afterwards, and the
// port stays the same.
package apiserver
