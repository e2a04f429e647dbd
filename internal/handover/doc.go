// Package handover lets a new agent take over from the one that runs on the same node: through
// a Unix socket the old one gives its sockets away, so that what waits in the kernel is
// read by whoever reads next, then the answers that it knows, and, once the new one
// serves, its TCP connections.
//
// The old agent is the [Server], the new one its successor, to whom the old one is the
// [Predecessor]. Until the successor commits, nothing changes for the host: whatever goes wrong,
// it goes on. From then on the connection is a lifeline: when it breaks while the host
// still lives, the host goes back to work, unless somebody else is in charge by then.
//
// # Protocol
//
// The socket DIR/handover.sock is of type SOCK_SEQPACKET, so that a message is read whole
// or not at all, together with the files that came with it. Both ends must belong to the
// same user, or to root. A message is
//
//	1 byte   kind
//	2 bytes  length of the head, most significant first
//	head     a JSON object
//	rest     raw bytes
//
// and there are these kinds (S is the successor, H the host):
//
//	kind              from  head                                  rest, files
//	1  hello          S     min max agent purpose patience_ms
//	1  hello          H     min max agent state ready reason
//	2  want sockets   S
//	3  sockets        H     sockets: [{role addr}] more fault     a file for each, 64 at most
//	4  want cache     S
//	5  cache          H     end fault                             a piece of the stream
//	6  commit         S
//	7  committed      H
//	8  connection     H     addr                                  what was read of it; one file
//	9  yielded        H     fault
//	10 settled        S
//
// S says hello, and H answers. purpose is "takeover", "state" (H answers and closes) or
// "watch" (H answers and keeps the connection open for as long as it lives). state is "ok",
// "busy" (H closes; S comes back), "stopping" (H keeps the connection open; its end says that H
// has ended) or "yielded" (to the purposes other than takeover). Then S asks for
// the sockets and the cache, in this order or not at all, and commits. H says that it
// is committed, stops reading, passes connections, and says that it has yielded. S says
// that it is settled when it waits at the socket for a successor of its own.
//
// A kind that one end does not know, it skips, and closes the files that came with it; a field
// it does not know, too; a field that is missing is empty. So kinds and fields can be added
// without further ado. What changes the meaning of one that is there, or must be
// understood, takes a new version of the protocol. Each end says the least and
// the greatest version that it speaks; spoken is the greatest that both know. The
// hello itself is the same in all versions. Without a common version H keeps the connection open,
// so that S can wait for its end.
//
//	version  nodens
//	1        0.2
package handover
