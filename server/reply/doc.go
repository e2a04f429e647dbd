// Package reply is about finished replies that answer the same query again, in place of the query path. [Terms] say
// how long a reply may do that and for whom, and its [Layout] says which of its bytes change: the ID, TTLs that count
// down, the serial of its SOA record, and the order of its addresses.
//
// Replies are kept in two places. The [Cache] of this package belongs to one reader of a socket, and keeps the
// replies that it sends most often. A reader that finds a query in it sends a copy of the reply: it parses nothing,
// takes no lock and writes to no memory that another reader uses. The other place is the kernel, see package
// kernelpath.
//
// # The cache of a reader
//
// A query is found by its bytes behind the ID, so that whatever of it decides about the reply is
// part of the key. The second of two like queries may leave its reply in the cache, if few others come between
// and the reply is valid for every client. A reply ends at its expiry, or when the
// counter of its [epoch.Mark] moves.
//
// The owner of a reply gets the number of its hits at the end of each batch of packets, see
// [Owner].
package reply
