// Package worst makes the most expensive queries that tenants, upstreams and clients can prepare,
// and the largest objects for them.
//
// A [Case] says what is made and which packets an attacker then sends. [Write] writes the files of
// all cases for one agent: the cluster's objects as manifests, and the server blocks of an
// operator's Corefile. Package bench/attack sends the packets to such an agent and measures what a
// victim sees; the program busy sends the packets of the cases that use TCP. The tests of this package
// check that each case has its size and gets an answer. The packages that make an answer pin the steps
// that it takes; [Case.Pinned] names the test.
//
// The sizes are the limits of Kubernetes, of DNS or of the agent. Where nothing sets a limit, they
// are far above what real clusters have.
package worst
