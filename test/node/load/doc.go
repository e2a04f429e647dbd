// Package load asks a DNS server thousands of questions a second, as the pods of a busy
// node do, and says what became of every one: who answered (told by the address in the
// answer), how long it took, or that nobody did.
//
// The client is a process of its own, in the network namespace of a "pod": the program
// that wants one runs itself again with an argument by which it calls [Serve], and talks
// to it by [Start]. Over UDP one thread sends and receives, past Go's scheduler and with
// the kernel's receive timestamps, so that what it measures is the servers and not
// itself; where it could not keep up or lost packets of its own, the report says so.
package load
