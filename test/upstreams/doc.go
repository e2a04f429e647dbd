// Package upstreams puts real DNS servers behind the agent, and behind CoreDNS's forward plugin beside
// it: resolvers, forwarders and authoritative servers as Debian has them, over each transport that they
// offer.
//
// A [Server] is a program with a configuration file in testdata. It forwards to one fake upstream, or
// serves a zone. A [Bed] is a running server with an agent and a CoreDNS that forward to it. A
// [Situation] is what happens on a bed while queries for new names arrive at random times: a burst
// before the first connection, slow names, a restart. [Bed.Latency] is for the benchmark.
//
// The tests look at counts only: what failed, and how many connections were opened. The agent is the
// binary in the environment variable AGENT, if there is one.
package upstreams
