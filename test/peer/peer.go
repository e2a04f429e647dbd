// Package peer builds and runs the programs that tests talk to: the agent, the DNS server that it is
// compared with, and the parts of a cluster.
//
// A program other than the agent is a tool of a nested module. It is built when a test first needs it
// and kept outside the tree, under a name with a hash of everything the build depends on: the module's
// go.mod and go.sum, the Go version and the flags. So a kept binary is never stale. A lock file lets
// one of several test processes build while the others wait. The agent is built each time, and linked
// only if it has changed.
//
// A process is started from a thread of its own that lives as long as the process; the death of that
// thread is the process's death signal. So nothing outlives the test process, however it ends. Output
// goes to a file, and the end of the file is shown where the test fails.
package peer
