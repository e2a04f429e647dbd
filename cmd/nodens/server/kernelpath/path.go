// Package kernelpath answers queries inside of the kernel, before any process wakes: a
// program on the node's ends of the pods' links (tcx ingress) looks each query up in a
// table that the agent fills, and where it finds the answer sends it back the way the query
// came. Whatever it does not know, or is not certain of, goes on to the agent untouched.
package kernelpath

import (
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
)

// ErrUnsupported is why this machine can't have a path in the kernel.
var ErrUnsupported = errors.New("no answers inside of the kernel")

// Order is where the program stands among others on a link.
type Order struct {
	// First is before all others.
	First bool
	// Before and After name a program (its name in the kernel) that is on the link; where
	// it is not, and with the zero Order, the program comes after all others.
	Before, After string
}

// Options of a [Path].
type Options struct {
	Log   *slog.Logger
	Order Order
}

// Path is the program and its memory. It is safe for concurrent use.
type Path struct{}

// Open loads the program, which answers nothing yet. The error wraps [ErrUnsupported] where
// the kernel lacks what is needed, and says what.
func Open(opts Options) (*Path, error) { return nil, ErrUnsupported }

// Close takes the program off all links and gives its memory back; the end of the process
// does the same, however it comes.
func (p *Path) Close() error { return nil }

// Epochs are the counters that answers hang on: those of the cluster's names, and those of
// the cache's.
func (p *Path) Epochs() (cluster, cached *epoch.Table) { return nil, nil }

// Attach has queries that come in on a link answered; Detach ends it, and needs not be called
// for a link that is gone. Attaching twice is no error.
func (p *Path) Attach(ifindex int) error { return nil }

// Detach is the opposite of [Path.Attach].
func (p *Path) Detach(ifindex int) {}

// Links is the number of links that have the program.
func (p *Path) Links() int { return 0 }

// SetDoors says at which addresses the agent listens, and the number of what is served
// there: an answer is given only at a door of its own number. An empty map: at none.
func (p *Path) SetDoors(doors map[netip.AddrPort]uint32) error { return nil }

// Beat says that the agent is well. Without it nothing is answered after [Lapse].
func (p *Path) Beat() {}

// Lapse is how long answers are given without a [Path.Beat].
const Lapse = 2 * time.Second

// Answer is what is put: a reply of the agent, and how long it holds.
type Answer struct {
	Door  uint32
	Query *wire.Query // as it came
	Reply []byte      // as it went, whole
	// Cluster says that the answer is of the cluster's names, else it is the cache's.
	Cluster bool
	Mark    epoch.Mark
	// Expires is when the answer is no longer given, on package clock; 0 is never. TTLs
	// count down to Ends where Counts is set, in seconds rounded up, at most Life.
	Expires, Ends time.Duration
	Counts        bool
	Life          uint32
	// Shuffled says that addresses are given in another order each time.
	Shuffled bool
	// Owner is told how often the answer was given.
	Owner Owner
}

// Owner is whose answer it is.
type Owner interface {
	// Hits is called with the number of times that the answer was given since the last
	// call, which is not 0: by [Path.Sweep], and when another answer takes the place. It
	// must not call the Path.
	Hits(n uint64)
}

// Put keeps a, and reports whether it does: whether a is of the kind that the program
// answers. It does not keep what a points to but for the owner.
func (p *Path) Put(a *Answer) bool { return false }

// Sweep tells all owners of their hits.
func (p *Path) Sweep() {}

// Clear drops all answers; their owners are told.
func (p *Path) Clear() {}

// Counters is what the program has done with packets to doors since it was loaded.
type Counters struct {
	// Results is the number of packets by what became of them, by name: "answered", or why
	// a packet went on to the agent.
	Results map[string]uint64
	// Took is the time that answers took, in nanoseconds, of Sampled of them.
	Took, Sampled uint64
}

// Counters adds up what each CPU has counted.
func (p *Path) Counters() Counters { return Counters{} }
