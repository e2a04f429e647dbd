// Package load is the load generator of all suites and benchmarks.
//
// A [Loop] plays the clients of a DNS server, which send at a fixed rate or keep a fixed number of
// queries outstanding, and the upstream that the server forwards to. Both run in one loop on one
// goroutine that never sleeps while clients send: a query leaves within a microsecond or two of its
// time, an answer is seen at once, and a delayed reply of the upstream leaves on time. The loop makes
// its system calls without telling Go's scheduler, because none of them blocks, and allocates nothing
// while it runs, so there is no garbage collection. When another process or the hypervisor takes the
// core away, the answers of that time are counted without their latencies.
//
// A [Schedule] sends single queries at a moderate rate and reports what became of each.
//
// A [Job] sends thousands of queries a second, as the pods of a busy node do, over UDP and TCP, and reports who answered
// (recognised by the address in the answer), how long it took, and for how long nobody did. It runs in a separate process
// in the network namespace of a "pod": the program that needs one runs itself again with an argument that makes it call
// [Serve] ([Main]), and controls it by [Start]; in a real cluster, test/e2e/podload runs it. The report says how many
// queries the client skipped and how many packets it lost.
//
// Schedules and the UDP queries of jobs have one sender: one thread that sleeps until a query is due or an answer has
// come, with the kernel's receive timestamps, so that it measures the servers and not itself.
package load
