// Package worst makes the largest things that tenants, upstreams and clients can put in
// front of an agent, and the dearest query for each of them.
//
// A [Case] is one of these: what is made, and the packets that an attacker then
// sends. [Write] writes the files of all cases for one agent: the objects of a cluster
// as manifests, and the server blocks of what an operator's Corefile may hold. Package
// bench asks such an agent and measures what a victim sees beside each case; the tests
// of this package hold that each case is as large as it says and gets an answer. How
// many steps an answer takes is pinned in the packages that make it; [Case.Pinned]
// names the test.
//
// The sizes are what Kubernetes, DNS or the agent's own limits allow, or, where nothing
// limits them, far more than a real cluster has.
package worst
