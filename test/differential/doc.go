// Package differential asks the agent and CoreDNS the same questions in one
// run and compares what they say.
//
// Both read the same API server, run the same Corefile but for the port, and
// forward to the same scripted upstream. Where the Corefile has caches, every
// question is asked twice, so that the second answer comes from one. A reply is
// turned into a view of what a client can see of it: response code, flags,
// question, the records of each section as a set with case and TTL, EDNS. A
// SOA's serial and the order of records are not part of it, nor are the
// records of a truncated reply, since which of them fit is any server's
// choice. With caches, a TTL may have gone down by the time since the start,
// and letters count in the query's own name only.
//
// The fixed part asks about a world that is one of each kind of object, under
// Corefiles as they are installed. The random part makes a world from a seed for
// each of a list of Corefiles that have the options of the cluster zone, changes
// it round by round, and asks after each, when all servers have seen a last
// object of every kind. There the agent runs three times: with a view of its
// node's scope, the same before a cluster DNS, and with a view of everything.
//
// Where the agent is meant to answer otherwise, an entry of the table allowed
// says why and rewrites CoreDNS's view into the one the agent must give. An
// entry that no question needs fails the test, so the table cannot rot.
package differential
