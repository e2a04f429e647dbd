// Package peer builds and runs the programs that tests talk to: the agent, the DNS server it
// is compared with, and the components of a cluster.
//
// A program other than the agent is a tool: the main package of a nested module, or a
// dependency of one. It is built when a test first needs it, and kept outside of the
// repository by package toolcache. The key of the entry is a hash of everything that the
// build depends on, so a kept binary is never stale. The agent is built at each call, and
// linked only if it has changed. The command in prebuild builds tools ahead of the tests.
//
// A process that a test starts never outlives the test process. It is started from a thread
// that exists as long as the process; when the thread ends, the kernel kills the process.
// The process's output goes to a file. If the test fails, it logs the end of that file.
package peer
