// Package modules says which Go modules of the repository have tests, for the programs that run all
// of them.
package modules

// Root, Release and Dnstap are the directories of the modules, relative to the repository's root.
const (
	Root    = "."
	Release = "daemonset/release"
	Dnstap  = "test/dnstap"
)

// Tested returns the directories of the modules with tests, the repository's own module first.
func Tested() []string { return []string{Root, Release, Dnstap} }
