// Package peer builds and runs the programs that tests talk to: the agent
// itself, the DNS server it is compared with, and the parts of a cluster.
//
// A program other than the agent comes from a nested module that names it as
// a tool. It is built when a test first asks for it and kept in a folder
// outside the tree, under a name that holds a hash of everything the build
// depends on: the module's go.mod and go.sum, the Go version and the flags.
// A change of any of them is a new name, so a kept binary is never stale. A
// lock file lets one of several test processes build while the others wait.
// The agent is built each time, and linked only if it has changed.
//
// A process is started from a thread of its own that lives as long as the
// process, with the death of that thread as its death signal: whatever way
// the test process ends, nothing outlives it. Its output goes to a file, and
// the end of that file is shown where the test fails.
package peer
