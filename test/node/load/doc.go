// Package load sends thousands of queries a second to DNS servers, as the pods of a busy
// node do, and reports the outcome of each: who answered (recognised by the address in the
// answer), how long it took, or that no answer arrived.
//
// The client is a separate process in the network namespace of a "pod". The program that
// needs one runs itself again with an argument that makes it call [Serve] ([Main]), and controls it
// by [Start]. Over UDP one thread sends and receives, independent of Go's scheduler and with
// the kernel's receive timestamps, so that it measures the servers and not itself. The
// report says how many queries the client skipped and how many packets it lost.
package load
