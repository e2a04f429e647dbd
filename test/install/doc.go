// Package install applies daemonset/nodens.yaml to a real API server, the way
// kubectl apply does it: server-side, with strict field validation. That finds what
// decoding against the types does not: values and combinations that the server
// refuses. Then it asks, as the service account that the manifest makes, for what
// the agent asks for, and for what it must not get.
package install
