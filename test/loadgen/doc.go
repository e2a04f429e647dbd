// Package loadgen is the load generator of tests and benchmarks.
//
// A [Loop] plays the clients of a DNS server, which send at a fixed rate or keep a fixed number of
// queries outstanding, and the upstream that the server forwards to. Both run in one loop on one
// goroutine that never sleeps while clients send: a query leaves within a microsecond or two of its
// time, an answer is seen at once, and a delayed reply of the upstream leaves on time. The loop makes
// its system calls without telling Go's scheduler, because none of them blocks, and allocates nothing
// while it runs, so there is no garbage collection. When another process or the hypervisor takes the
// core away, the answers of that time are counted without their latencies.
//
// A [Schedule] sends single queries at a moderate rate from an ordinary socket and reports what
// became of each. Package node/load, which runs in pods, reports what happens to queries while agents
// are replaced.
package loadgen
