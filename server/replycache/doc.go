// Package replycache keeps the replies that one reader of a socket sends most often. A reader
// that finds a query in its [Cache] sends a copy of the reply: it parses nothing, takes no lock
// and writes to no memory that another reader uses.
//
// A query is found by its bytes behind the ID, so that whatever of it decides about the reply is
// part of the key. The second of two like queries may leave its reply in the cache, if few others come between
// and the reply is valid for every client. A reply ends at its expiry, or when the
// counter of its [epoch.Mark] moves. Until then only its ID, TTLs that count down, the serial of
// its SOA record and the order of its addresses change.
//
// The owner of a reply gets the number of its hits at the end of each batch of packets, see
// [Owner].
package replycache
