// Package resolver answers queries. It holds the zones of each listening address and the one
// path that a query takes through them, and knows nothing of sockets: package server reads
// packets, hands each over as a [Request], and sends the reply.
//
// The path is [Routes.Resolve]; resolve.go shows the order of its steps. A step either
// answers, leaves the query to the next one, or would have to wait: for an upstream, for a
// part of the cluster that is not in view, or for other clients because the answer is large.
// A reader's goroutine has other clients' packets behind this one. So it calls the path
// without permission to wait, and if the outcome is [WouldWait] a worker calls the same
// function again, with permission and from the beginning. [Forward] is the plain miss: only
// the upstream has to be asked, and the worker continues from there.
//
// A run leaves no trace until its request is finished. What it finds out is kept in the
// request, with the results of its look-ups in caches; [Request.Finish] counts them, writes
// the logs and the dnstap messages, and returns the reply.
//
// [Routes.Explain] runs the same path with a trace, in which each step notes what it decides, and ends before
// the request is finished. It waits for nothing, and a view of the cluster takes it for no use.
//
// A reply that is right for more clients than the one that asked may be sent again without the path: by the reader
// itself, or in the kernel. [Request.Reusable] decides that, and [Zone.AgentOnly] says which directives rule it out.
// A [HitCounter] counts such replies as if the path had given them.
//
// The steps are files of this package and no packages of their own, because one asks another again: an alias, a search
// path, DNS64 and the ACL run the path, or its sources, for further names of one client's query.
//
// A [Zone] is immutable but for its counters. [Routes] are the zones of one address; a
// reload makes new ones. Requests and their buffers belong to whoever reads the packets, and
// are used again; a request that has to wait is copied by [Request.Detach].
package resolver
