// Package differential sends the same queries to the agent and to CoreDNS and compares the
// replies.
//
// Both read the same API server, run the same Corefile but for the port, and forward to the same
// scripted upstream. Where the Corefile has caches, every query is sent twice, so that the second
// answer comes from the cache. A reply becomes a view of what a client sees: response code, flags,
// question, the records of each section as a set with case and TTL, EDNS. The view leaves out the
// serial of an SOA record, the order of records, and the records of a truncated reply, because any
// server may choose which of them fit. With caches, a TTL may be lower by the time since the start,
// and case counts in the name of the query only.
//
// The fixed part asks about one object of each kind, under Corefiles as people install them. The
// random part makes objects from a seed for each of a list of Corefiles with the options of the
// cluster zone, changes them in rounds, and asks after each round, once all servers have seen a last
// object of every kind. There the agent runs three times: with scope node, with scope node in front
// of a cluster DNS, and with scope cluster.
//
// Where the agent differs on purpose, an entry of knownDifferences gives the reason and rewrites
// CoreDNS's view into the one that the agent must give. An entry that no query needs fails the test.
package differential
