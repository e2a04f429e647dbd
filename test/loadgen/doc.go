// Package pace is the far end of a DNS server that is measured: its clients, who
// ask at a fixed rate or with a fixed number of queries under way, and the
// upstream that it forwards to.
//
// Both are one loop on one goroutine, which never sleeps while clients ask. So a
// query leaves within a microsecond or two of when it is due, the arrival of an answer is
// seen at once, an upstream's answer that is to come late comes at its time, and
// none of the three waits for another's turn on the core. The loop makes its
// system calls without telling Go's scheduler, because none of them blocks; it
// allocates nothing while it runs, so there is no collection either.
//
// What takes the core away from the loop for a while (another process, the
// hypervisor) blurs the times of what happens meanwhile: answers that arrived
// then are counted but their latency is thrown away.
package loadgen
