package server

import (
	"runtime"
	"sync"
)

// procs is how many Ps of GOMAXPROCS the readers occupy. Like GOMAXPROCS, it belongs to
// the process, not to a Server.
var procs struct {
	sync.Mutex
	held int
}

// addProcs adds n Ps to GOMAXPROCS, for readers that keep their P while they wait in the
// kernel. A negative n takes them away again. The garbage collector sees the larger
// GOMAXPROCS too: it uses more of the machine, for a shorter time.
func addProcs(n int) {
	procs.Lock()
	defer procs.Unlock()
	procs.held += n
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
}

// cores returns how many cores the process may use: GOMAXPROCS without the Ps of readers.
func cores() int {
	procs.Lock()
	defer procs.Unlock()
	return runtime.GOMAXPROCS(0) - procs.held
}
