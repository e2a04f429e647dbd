package server

import (
	"runtime"
	"sync"
)

// procs is the runtime's GOMAXPROCS, which is the process's and not a server's: what
// of it readers hold.
var procs struct {
	sync.Mutex
	held int
}

// addProcs gives the runtime n more Ps, for readers that keep theirs while they
// wait; n is negative when they have ended. The collector counts them too, so that
// it takes a larger part of the machine for a shorter time.
func addProcs(n int) {
	procs.Lock()
	defer procs.Unlock()
	procs.held += n
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
}

// cores is how many cores the process may use: GOMAXPROCS without what readers
// hold.
func cores() int {
	procs.Lock()
	defer procs.Unlock()
	return runtime.GOMAXPROCS(0) - procs.held
}
