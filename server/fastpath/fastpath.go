package fastpath

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/server/reply"
)

// ErrUnsupported means that the kernel or the process's privileges do not allow answers
// in the kernel.
var ErrUnsupported = errors.New("answers in the kernel are not supported")

// ErrGone means that an interface no longer exists.
var ErrGone = errors.New("the interface no longer exists")

// Order is the position of the answering program among others on an interface.
type Order struct {
	// First puts it in front of all others.
	First bool
	// Before and After name another program, by its name in the kernel. If that program is
	// not on the interface, and with the zero Order, ours goes behind all others.
	Before, After string
}

// Options configure a [Program].
type Options struct {
	Order Order
	// Clients receives the numbers of answered queries by client, and samples of them; nil: nobody does.
	Clients ClientReporter
	// ClientLimit limits the queries of each client.
	ClientLimit ClientLimit
}

// ClientReporter receives the numbers of answered and of dropped queries of clients, and samples of them. Its methods are
// called by [Program.Sweep] and [Program.ReportClient] and must not call the Program.
type ClientReporter interface {
	// ReportClient receives the answers to addr since its last call, at least one.
	ReportClient(addr netip.Addr, n ClientAnswers)
	// ReportSample receives the client and the name of an answer that was chosen at random, one of
	// [SampleWeight]. name is in lower case and wire form; ReportSample does not keep it. waste is
	// that of [reply.Terms].
	ReportSample(addr netip.Addr, name []byte, waste bool)
	// ReportLimited receives the number of queries of addr, at least one, that were dropped since its last call
	// because of the limit.
	ReportLimited(addr netip.Addr, n uint64)
}

// ClientAnswers are numbers of answers to a client.
type ClientAnswers struct {
	// NoError and NXDomain are the answers with these rcodes; the kernel gives no others.
	NoError, NXDomain uint64
	// Waste are those of NXDomain for names that only a search path makes, see [reply.Terms.Waste].
	Waste uint64
}

// Program is the programs in the kernel and the memory that the agent shares with them. It
// is safe for concurrent use.
type Program struct {
	order   Order
	objects programObjects
	table   table
	state   *programState
	epochs  []atomic.Uint64
	clients clients
	samples samples
	own     []ebpf.ProgramID

	mu            sync.Mutex
	links         map[int]*attachment
	listeners     map[programDoor]uint32
	limit         ClientLimit
	exempt        map[programPrefix]uint32 // what the program's map of limit.Exempt has
	agentPrograms map[ebpf.ProgramID]bool  // whether a program belongs to another agent
}

// Answer is a reply of the agent to be copied into the kernel. At most MaxMarks-1 further marks may end it. The reply is
// not truncated.
type Answer struct {
	reply.Answer
	// Listener is the number of the listeners where the answer is valid, see
	// [Program.SetListeners].
	Listener uint32
	// Group is the only clients that get the answer; the zero Group is all clients.
	Group Group
	// Source provides the HitReporter if the answer is kept.
	Source Source
}

// Group is the clients that get the same answers where the answer depends on who asks.
type Group struct {
	// Number identifies the clients. It is not 0, and no other clients ever have it.
	Number uint32
	// Mark is the mark of a counter below 2^32 that moves before a client leaves the group. All answers of a
	// group have the same counter.
	Mark epoch.Mark
}

// MaxMarks is the largest number of marks that an answer may depend on.
const MaxMarks = 1 + int(programBoundMORE_EPOCHS)

// Source provides an answer's HitReporter. It is called once for each answer that is kept
// and must not call the Program.
type Source interface{ HitReporter() HitReporter }

// HitReporter receives the number of hits of one answer.
type HitReporter interface {
	// ReportHits is called by [Program.Sweep], and when another answer replaces this one. n
	// is the number of hits since the last call and not 0; took is the average time of an
	// answer. It must not call the Program.
	ReportHits(n uint64, took time.Duration)
}

// Put copies a into the kernel and reports whether it did. It does not if a has a form
// that the program does not answer, or while another goroutine is in Put. It does not
// block, and keeps nothing that a points to except the HitReporter.
func (p *Program) Put(a *Answer) bool { return p.table.put(a) }

// SetGroup makes addr a client of g, and of no other group, until g's mark moves. A client without a group gets no
// answers that have one. SetGroup has no effect if addr has not asked over the interface of a pod for a minute, or while
// another goroutine uses the clients. It does not block.
func (p *Program) SetGroup(addr netip.Addr, g *Group) { p.clients.setGroup(addr, g) }

// Sweep reports hits to all HitReporters, answers and samples to the ClientReporter, and releases clients
// that no longer ask. Call it every second or more often, or samples are dropped; clients are released
// every few seconds.
func (p *Program) Sweep() {
	took := time.Duration(0)
	if n := p.count(programResultTIMED); n > 0 {
		took = time.Duration(p.count(programResultTOOK) / n)
	}
	p.table.sweep(took)
	p.clients.reportAll(p.count(programResultLIMITED))
	p.samples.read(p.clients.reporter)
	p.clients.sweep(kernelNow())
}

// ReportClient reports the answers to addr up to now, and all samples, to the ClientReporter. Call it before
// addr becomes another client's.
func (p *Program) ReportClient(addr netip.Addr) {
	p.samples.read(p.clients.reporter)
	p.clients.reportOne(addr)
}

// ClientsOf returns the addresses whose last query came in on the interface. An address is forgotten by
// [Program.Detach], or when there are too many that have not asked for a minute.
func (p *Program) ClientsOf(ifindex int) []netip.Addr { return p.clients.of(ifindex) }

// Clear drops all answers and reports their remaining hits.
func (p *Program) Clear() { p.table.clear() }

// Counters is what the program has done with packets to listeners since it was loaded.
type Counters struct {
	// Results is the number of packets by result: "answered", why a packet was passed on to the
	// agent, or "client_limit" if it was dropped.
	Results map[string]uint64
	// SamplesDropped is the number of samples that were lost because the buffer was full.
	SamplesDropped uint64
}
