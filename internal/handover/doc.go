// Package handover lets a new agent take over from the agent that runs on the same node, and give
// everything back if it is worse. Through a Unix socket the running agent passes its listening
// sockets, so that queries in the kernel's queues are read by either agent, then the answers in its
// cache, and, once the new agent serves, its clients' TCP connections.
//
// The running agent is the [Server]. The new agent is its successor, which sees the running
// one as its [Predecessor]. Until the successor commits, nothing changes for the server: it
// keeps serving whatever goes wrong. After the commit the connection stays open. If it closes
// while the server still lives, the server resumes its work, unless another agent has taken
// over meanwhile.
//
// A successor may compare itself with the server's statistics for a while. Until it has decided
// to keep everything, it shows at least every 3 s that it works. If it gives back, the roles are
// reversed: the successor answers the server's requests with the messages of a handover.
//
// # Protocol
//
// The socket DIR/handover.sock is of type SOCK_SEQPACKET, so that a message arrives whole or
// not at all, together with its files. Both ends must belong to the same user, or to root. A
// message is
//
//	1 byte   kind
//	2 bytes  length of the head, big-endian
//	head     a JSON object
//	rest     raw bytes
//
// The kinds are (S is the successor, R the running agent):
//
//	kind                 from    head                                  rest, files
//	1  hello             S       min max agent purpose patience_ms
//	                             compare identity
//	1  hello             R       min max agent state ready reason
//	                             compare recent saves
//	2  want sockets      S
//	3  sockets           R       sockets: [{role addr}] more fault     a file for each, 64 at most
//	4  want cache        S (R)
//	5  cache             R (S)   end fault                             a piece of the stream
//	6  commit            S (R)
//	7  committed         R (S)
//	8  connection        R (S)   addr                                  bytes read from it; one file
//	9  yielded           R (S)   fault
//	10 settled           S
//	11 want statistics   S
//	12 statistics        R                                             the statistics
//	13 alive             S
//	14 return            S       reason kinds
//	15 kept              S
//	16 resumed           R       reason
//	17 want save         S
//	18 saved             R
//
// S sends hello, and R replies. purpose is "takeover", "state" (R replies and closes) or
// "watch" (R replies and keeps the connection open for as long as it lives). state is "ok",
// "busy" (R closes; S tries again), "refused" (S has given back before, for the reason; R closes),
// "stopping" (R keeps the connection open; its end tells S that R has ended) or "yielded" (for
// purposes other than takeover). If R's hello has saves, S may ask it first to write its files, which S
// then reads. Then S requests the sockets, the statistics and the cache, in any
// order or not at all, and commits. R confirms, stops reading, passes connections, and sends
// yielded. S sends settled when it listens on the socket for its own successor.
//
// recent are the times of the last handovers on the node, in seconds since the epoch, without this one: 16 at most.
// S adds its own, and tells them to its successor.
//
// compare of R says that it knows the kinds from 11 on, compare of S that it compares itself after
// the commit. The states of R after its yielded, if S compares itself:
//
//	S sends, or does         R
//	nothing after yielded    waits 8 s for settled or alive
//	settled, alive           waits 3 s for the next alive
//	alive is late            refuses S from now on, resumes, sends resumed, closes
//	kept                     frees memory; ends, if it is not restarted; like without compare
//	ends before kept         refuses S from now on, resumes
//	return with kinds        refuses S from now on, takes back
//	return without kinds     takes back: S is being stopped
//
// R takes back by the messages in parentheses: it requests the cache, resumes reading, and commits;
// S stops reading, passes connections, and sends yielded; R resumes all of its work, sends resumed,
// and closes. Whatever fails on the way, R serves. If R closes the connection without resumed, R has
// ended, and S serves. R knows S again by identity; a hello without identity, or without compare, is
// never refused.
//
// A receiver skips unknown kinds, and closes their files. It ignores unknown fields, and takes
// a missing field as empty. So kinds and fields can be added freely. A change to the meaning
// of an existing one, or an addition that must be understood, needs a new version of the
// protocol. Each end sends the lowest and the highest version that it speaks; they use the
// highest that both know. hello is the same in all versions. Without a common version R keeps
// the connection open, so that S can wait for its end.
//
//	version  nodens
//	1        0.2
package handover
