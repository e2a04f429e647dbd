// Package install applies daemonset/nodens.yaml to a real API server as kubectl apply does:
// server-side, with strict field validation. That finds values and combinations that decoding
// against the types accepts and the server refuses. As the manifest's service account it then sends
// the requests that the agent needs, which must succeed, and others, which must be forbidden.
package install
