// Package modules says which Go modules of the repository have tests, for the programs that run all
// of them.
package modules

// Root, Image and Dnstap are the directories of the modules, relative to the repository's root.
const (
	Root   = "."
	Image  = "daemonset/image"
	Dnstap = "test/dnstap"
)

// Tested returns the directories of the modules with tests, the repository's own module first.
func Tested() []string { return []string{Root, Image, Dnstap} }
