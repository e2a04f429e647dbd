// Package kernelpath answers queries of pods in the kernel, before any process wakes up.
//
// A program on the host side of each pod's interface (tcx ingress) looks each query up in
// a table that the agent fills. If it finds the answer, it turns the packet into the reply
// and sends it back the way it came. Everything that it does not know or is not certain of
// goes on to the agent unchanged.
//
//	pod ──▶ nodens_answer (tcx ingress) ──▶ not certain of an answer: on to the agent
//	            │ key and tag ─▶ set ─▶ slot      │
//	            │ sequence, expiry, epoch,        ▼
//	            │ client admitted             the agent answers and puts a copy into the table
//	            ▼                                 │ reply
//	        the packet becomes the reply          ▼
//	pod ◀── out of its own interface          nodens_admit (tcx egress) admits the client
//	                                          for two seconds if it asked on this interface
//
// The programs are in bpf/; bpf/memory.h defines all limits and the memory that both sides
// share. This package loads and attaches the programs and writes the table. Package server
// decides which answers are copied and counts their hits. Package app starts, checks and
// stops it.
//
// # The table
//
// The table is plain memory mapped into the agent, so writing or dropping an answer takes
// no system call. It has 1,024 sets of eight ways; the tags of one set fill one cache line.
// In each set four ways are for cluster names and four for cached answers. A slot is
// written under a sequence number. The program reads the number before and after it copies
// the slot to its own memory, and modifies the packet only if the number has not changed.
// New answers first replace answers that were never given, so that a flood of names does
// not evict names in use.
//
// An answer is a copy of the agent's own reply to a query of the same form (name, type, RD,
// AD, CD, EDNS, DO), so it cannot differ from it. The program fills in what varies: the ID
// and question come from the query, TTLs count down on the kernel's clock, the SOA serial
// is read from memory that the view maintains, the OPT payload size is the client's, and
// the order of addresses rotates. The checksum is updated by the difference.
//
// # Epochs
//
// Epochs (package epoch) are counters in the same memory that invalidate copies. The owner
// of answers increments a counter while it holds the lock that guards them, so no reader
// sees a new answer while an old copy is still valid. To make a copy, the server reads the
// counter of all groups, gets the answer, takes its mark, and discards the copy if the
// counter has changed meanwhile.
//
// A copy made from one Service depends on the group of that Service; so does the denial of
// a name that the Service lacks. Every other answer from the view ends with any change that
// queries can see. The copy of a cached answer ends when its cache entry is removed or
// replaced. With prefetch it ends when the cache may fetch the name again, so that the
// cache sees the client that triggers it.
//
// An answer may depend on up to six counters: one that was found on a client's search path depends
// on each name in front of it.
//
// # Groups of clients
//
// An answer that depends on the client, on its namespace or on access lists, has a [Group], and only
// clients of this group get it. Package server gives each group a number, and calls
// [Program.SetGroup] for a client when it copies an answer for the client's group. The client's state has the number together with the value of a
// counter, which the view of the cluster increments before it changes the namespace of any client.
// The program compares both with the slot and with the counter, so a client is never taken for a
// member of a group that it may have left: without a valid group, its query goes on to the agent.
//
// All groups of a key share its tag, so a look-up takes one set. A key has either one answer for all
// clients or answers for groups; an answer of one kind replaces those of the other.
//
// # Clients
//
// The program answers only clients that it has admitted (bpf/client.h). A client is one IP
// address. A hash table maps it to a number, and an array holds its state under that
// number: the interface on which it last asked and when, until when it must not be
// admitted, and until when it is admitted at which listeners. Each field is one word that
// is written on its own; a time and what it applies to share a word, so that no reader sees
// half of an update.
//
// The program remembers numbers that it has looked up ("recent" in bpf/), as it remembers the
// listener that each processor has found last. A counter in the state says since when it may not
// use them any more: the agent increments it after it has taken numbers or listeners away.
//
// Numbers come from a queue. The agent returns the number of a client that has not asked
// for a minute. If none is free, a new client has no state and is not admitted. Neither are
// clients that appear within the next ten seconds, because one of them could be a client
// that was not recorded. Every
// packet that may reach a listener is recorded, even in a form that is never answered;
// otherwise a forged query could hide behind IP options or fragments.
//
// Under its number a client also has counters of its answers, in up to 16 sets, so that processors don't
// share a cache line. The agent reads them before it frees the number ([ClientReporter]). One answer in
// 64, at random, is copied into a ring buffer with the client's address and the name. Nobody is woken;
// [Program.Sweep] reads the buffer. A sample that finds it full is dropped and counted.
//
// # The limit of clients
//
// [ClientLimit] is checked before a query is parsed (bpf/limit.h), on all interfaces that are answered or
// watched. A client's bucket is one time, as in the agent's own limiter (package ratelimit): when its queries
// would have ended at the rate of the limit. The bucket belongs to the client's number and to the interface of
// its first query. An address without a number, or on another interface, has a bucket in an LRU map, so a pod
// that forges an address uses up none of its owner's limit. Every ordinary packet to a listener counts: fragments
// and packets with IP options reach the agent uncounted, which counts what it receives itself. A number is not
// freed before its bucket is full.
//
// Above the limit queries are dropped and counted by client ([ClientReporter]). The agent refuses or truncates
// others, of which the program passes on as many as the limit allows in addition.
//
// # Other DNS servers
//
// With [Options.Bypass] a further program, nodens_count, counts packets to the DNS ports of addresses that are no listeners, by
// client and server (bpf/bypass.h), and passes them on. It is attached behind nodens_answer and does not run for a query that
// is answered. Like a program of another agent it does not count as one that our programs must not bypass.
//
// # Other programs on an interface
//
// Other programs and tc filters on an interface decide whether queries are answered there
// or only watched: [Program.Update] never lets an answer bypass them. To stop answering, it
// swaps nodens_answer for nodens_watch and nodens_admit for nodens_idle in place, which
// does not block. It swaps them back two seconds later at the earliest, when the admissions
// have expired of clients whose replies a program behind ours has dropped. A complete check
// of all interfaces allows clients to be admitted for another three seconds
// ([Program.ConfirmWatched]).
//
// # Listeners, heartbeat, end
//
// Listeners are the addresses at which the agent listens, each with the number of what it
// serves there ([Program.SetListeners]). A reload assigns new numbers; a stop and a
// hand-over remove all listeners.
//
// The heartbeat is a deadline on the kernel's clock. The agent moves it twice a second
// after it has checked its locks and readers ([Program.Heartbeat]).
//
// Links are not pinned, so they end with the process, however it ends. They are stored in
// socket messages (fd_keeper.go), because the kernel closes descriptors one after the other
// and waits about 15 ms for each link; the agent's sockets must not stay open behind them.
//
// Answers on lo, for processes of the node itself, are possible but not implemented. They
// would help few clients, every packet over lo would pass the program, and a firewall that
// only accepts ESTABLISHED packets would drop them, because the reply belongs to the same
// connection as the query.
package kernelpath
