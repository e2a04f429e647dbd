// Package app is the agent as an application. It is the only package that knows all parts:
// it builds them from the Corefile, joins them to the server, sets up the node's network
// around them, reloads them, hands them over to the next agent and stops them.
//
// # Start
//
// [Serve] checks the flags and the whole Corefile before it changes anything on the node.
// Then it assigns the addresses, serves health, readiness and metrics, opens the views and
// waits for their first lists (up to `startup_timeout`), binds the DNS sockets, and only then
// installs the rules that keep queries away from the cluster DNS. /ready is 200 when all of
// that is done. No query is without a server at any moment.
//
// # Reload
//
// A reload (the `reload` directive, or a value on [options.Agent.Reload]) reads and checks the
// configuration again. If any of its files differs, it builds a new generation, which reuses
// the parts that are made of the same as before: views, taps, certificates, hosts tables,
// pools and caches (reuse.go). New sockets are bound first; then the routes of each listener
// are replaced by one pointer. Replaced pools stay open for six seconds, for queries in
// flight. On any error the old generation keeps serving, and coredns_reload_failed_total
// counts it.
//
// # Handover
//
// With [options.Agent.HandoverDir], a new agent takes over from the running one without a lost
// query. Package handover is the protocol and knows nothing of DNS; handover_client.go is the
// new agent's side, handover_source.go the running agent's:
//
//	running agent                     handover.sock                        new agent
//	     │  ◀────────────── hello: protocol versions ──────────────────  │ flags, Corefile checked
//	     │                                                               │ views sync
//	     │  ─── all listening sockets (SCM_RIGHTS) ───────────────────▶  │
//	     │  ─── the cache, streamed ──────────────────────────────────▶  │ caches fill
//	     │  reads                                                reads   │ both read the same queues
//	     │  ◀────────────── commit ────────────────────────────────────  │
//	     │  stops reading, finishes; TCP connections one by one ──────▶  │
//	     │  ─── yielded ──────────────────────────────────────────────▶  │ ready
//	     ▼  ends without teardown                                        ▼
//
// Both processes hold the same sockets, so one of them always reads, and no query that waits
// in the kernel is lost. The new agent receives the sockets late, when it can read at once:
// while a process holds a socket without reading it, the node's rules stay in force, and the
// node does not fall back to the cluster DNS if the running agent dies. The connection stays
// open while both agents live: if the new agent dies, before or after the commit, the old one
// serves again.
//
// # Stop
//
// When its context ends, the agent reports 503 on /ready, waits for `lameduck` (2 s at most, 30 s if it has set nothing up on the node)
// and saves the cache. Then it removes the rules, so that new queries go to the cluster DNS,
// closes the sockets, gives queries in flight one second, and removes the addresses. With
// [options.Agent.SkipTeardown] the rules and the addresses stay, and the rules lead to the cluster
// DNS. An agent that has handed over ends without any of this.
//
// # Size
//
// The package has 9,200 lines in 63 files, because most of what it does reads or changes one generation of parts. Package
// endpoint, which serves HTTP, needs nothing of it and is on its own. What shows the parts (metrics, /status and its like, 3,400 lines)
// is not: it reads nearly every field of the agent, the generation and the blocks, so that a package between would export all of
// these, and repeat them as an interface.
package app
