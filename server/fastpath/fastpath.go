// Package fastpath answers queries inside of the kernel, before any process wakes: a
// program on the node's ends of the pods' links (tcx ingress) looks each query up in a
// table that the agent fills, and where it finds the answer sends it back the way the query
// came. Whatever it does not know, or is not certain of, goes on to the agent untouched.
package fastpath

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
)

// ErrUnsupported is why this machine can't have a path in the kernel.
var ErrUnsupported = errors.New("no answers inside of the kernel")

// ErrGone is why there is nothing on an interface that no longer exists.
var ErrGone = errors.New("the interface is gone")

// Order is where the program stands among others on a link.
type Order struct {
	// First is before all others.
	First bool
	// Before and After name a program (its name in the kernel) that is on the link; where
	// it is not, and with the zero Order, the program comes after all others.
	Before, After string
}

// Options of a [Program].
type Options struct {
	Order Order
}

// Program is the program and its memory. It is safe for concurrent use.
type Program struct {
	order   Order
	objects programObjects
	table   table
	state   *programState
	epochs  []atomic.Uint64
	clients clients
	own     []ebpf.ProgramID

	mu            sync.Mutex
	links         map[int]*attachment
	listeners     map[programDoor]uint32
	agentPrograms map[ebpf.ProgramID]bool // whether they are another agent's
}

// Answer is what is put: a reply of the agent, and how long it holds.
type Answer struct {
	Listener uint32
	Query    *wire.Query // as it came
	Reply    []byte      // as it went, whole
	// Cluster says that the answer is of the cluster's names, else it is the cache's.
	Cluster bool
	Mark    epoch.Mark
	// Expires is when the answer is no longer given, on package clock; 0 is never. TTLs
	// count down to Ends where Counts is set, in seconds rounded up, at most Life.
	Expires, Ends time.Duration
	Counts        bool
	Life          uint32
	// MaxSize is the highest payload size that the reply's OPT record may claim.
	MaxSize uint16
	// Shuffled says that addresses are given in another order each time.
	Shuffled bool
	// Source gives its owner, if it comes to be kept.
	Source Source
}

// Source is asked once for an answer that takes a place. It must not call the Path.
type Source interface{ HitReporter() HitReporter }

// HitReporter is whose answer it is.
type HitReporter interface {
	// ReportHits is called with the number of times that the answer was given since the last
	// call, which is not 0, and how long answers take in the mean: by [Program.Sweep], and
	// when another answer takes the place. It must not call the Path.
	ReportHits(n uint64, took time.Duration)
}

// Put keeps a, and reports whether it is kept: it isn't if it is not of the kind that the
// program answers, or while somebody else puts. It does not keep what a points to but for the
// owner, and does not wait.
func (p *Program) Put(a *Answer) bool { return p.table.put(a) }

// Sweep tells all owners of their hits, and forgets clients that no longer ask. Called every
// second or more often it does the latter every few seconds.
func (p *Program) Sweep() {
	took := time.Duration(0)
	if n := p.count(programResultTIMED); n > 0 {
		took = time.Duration(p.count(programResultTOOK) / n)
	}
	p.table.sweep(took)
	p.clients.sweep(kernelNow())
}

// Clear drops all answers; their owners are told.
func (p *Program) Clear() { p.table.clear() }

// Counters is what the program has done with packets to doors since it was loaded.
type Counters struct {
	// Results is the number of packets by what became of them, by name: "answered", or why
	// a packet went on to the agent.
	Results map[string]uint64
}
