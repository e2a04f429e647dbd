package udp

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

// AddProcs adds n Ps to GOMAXPROCS, for readers that keep their P while they wait in the
// kernel. A negative n takes them away again. The garbage collector sees the larger
// GOMAXPROCS too: it uses more of the machine, for a shorter time.
func AddProcs(n int) {
	procs.Lock()
	defer procs.Unlock()
	procs.held += n
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
}

// Cores returns how many Cores the process may use: GOMAXPROCS without the Ps of readers.
func Cores() int {
	procs.Lock()
	defer procs.Unlock()
	return runtime.GOMAXPROCS(0) - procs.held
}
