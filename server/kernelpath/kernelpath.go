package kernelpath

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/clock"
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
	// not on the interface, and with the zero Order, ours goes behind all others. Names need the capability SYS_ADMIN.
	Before, After string
}

// Options configure a [Program].
type Options struct {
	Order Order
	// Clients receives the numbers of answered queries by client, and samples of them; nil: nobody does.
	Clients ClientReporter
	// ClientLimit limits the queries of each client.
	ClientLimit ClientLimit
	// Bypass counts packets to other DNS servers; nil: nobody does.
	Bypass *BypassOptions
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
	bypass  bypassCounts
	own     []ebpf.ProgramID

	mu            sync.Mutex
	links         map[int]*attachment
	listeners     map[programDoor]uint32
	limit         clientLimiter
	agentPrograms map[ebpf.ProgramID]bool // whether a program belongs to another agent
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

// Sweep reports hits to all HitReporters, answers and samples to the ClientReporter, packets to other DNS servers to the
// BypassReporter, and releases clients that no longer ask. Call it every second or more often, or samples are dropped; clients are released
// every few seconds.
func (p *Program) Sweep() {
	took := time.Duration(0)
	if n := p.count(programResultTIMED); n > 0 {
		took = time.Duration(p.count(programResultTOOK) / n)
	}
	p.table.sweep(took)
	p.clients.reportAll(p.count(programResultLIMITED))
	p.samples.read(p.clients.reporter)
	p.bypass.read()
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

// KeepOut makes the clients that selects selects reach the agent with all their queries, for d. It counts for clients
// that are known now. A client whose address moves to another interface meanwhile may be answered
// earlier. Queries that the program does not answer count as moved.
func (p *Program) KeepOut(selects func(netip.Addr) bool, d time.Duration) {
	p.clients.keepOut(selects, uint64(kernelNow()+d))
}

// Usage returns the number of answers in the table, also of those that have expired, and the most that
// there may be.
func (p *Program) Usage() (answers, limit int) { return p.table.usage(), slotCount }

// Counters is what the program has done with packets to listeners since it was loaded.
type Counters struct {
	// Results is the number of packets by result: "answered", why a packet was passed on to the
	// agent, or "client_limit" if it was dropped.
	Results map[string]uint64
	// SamplesDropped is the number of samples that were lost because the buffer was full.
	SamplesDropped uint64
}

// Counters returns the sums over all CPUs.
func (p *Program) Counters() Counters {
	c := Counters{Results: make(map[string]uint64, len(results)), SamplesDropped: p.count(programResultDROPPED)}
	for i, name := range results {
		c.Results[name] = p.count(programResult(i))
	}
	return c
}

// count returns one counter, summed over all CPUs.
func (p *Program) count(at programResult) (n uint64) {
	var each []uint64
	if p.objects.Counters.Lookup(uint32(at), &each) != nil {
		return 0
	}
	for _, v := range each {
		n += v
	}
	return n
}

// Open loads the programs. They answer nothing before the first [Program.Heartbeat]. An
// error wraps [ErrUnsupported] and says what the kernel or the process lacks.
func Open(opts Options) (*Program, error) {
	p := &Program{order: opts.Order, clients: clients{reporter: opts.Clients}, links: make(map[int]*attachment), agentPrograms: make(map[ebpf.ProgramID]bool)}
	if err := p.load(&opts); err != nil {
		_ = p.Close()
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return p, nil
}

// checkTCX returns an error if the kernel has no tcx, which came with Linux 6.6.
func checkTCX() error {
	const loopback = 1 // exists in every network namespace
	_, err := link.QueryPrograms(link.QueryOptions{Target: loopback, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("the kernel is too old: it has no tcx, which came with Linux 6.6: %w", err)
	}
	return nil // loading the programs shows what else is missing
}

func (p *Program) load(opts *Options) error {
	if err := checkTCX(); err != nil {
		return err
	}
	if err := p.loadObjects(opts.Bypass); err != nil {
		return explainLoadError(err)
	}
	var seed [8]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return err
	}
	states, err := mapArray[programState](p, p.objects.States)
	if err != nil {
		return err
	}
	words, err := mapArray[atomic.Uint64](p, p.objects.Epochs)
	if err != nil {
		return err
	}
	p.state, p.epochs = &states[0], words
	if err := errors.Join(p.loadTable(), p.loadClients(), p.openSamples(), p.loadLimit(opts.ClientLimit)); err != nil {
		return err
	}
	if p.own, err = programIDs(p.objects.NodensAnswer, p.objects.NodensWatch, p.objects.NodensAhead, p.objects.NodensAdmit, p.objects.NodensIdle); err != nil {
		return err
	}
	if err := p.checkOrder(); err != nil {
		return err
	}
	p.table.seed = binary.NativeEndian.Uint64(seed[:]) | 1
	p.table.offset = kernelNow() - clock.Now()
	p.state.Seed, p.state.Stripes = p.table.seed, uint64(clientStripes()-1)
	p.state.DoorChanges, p.state.Releases = 1, 1
	return nil
}

// loadObjects loads the programs and their maps into the kernel.
func (p *Program) loadObjects(bypass *BypassOptions) error {
	spec, err := loadProgram()
	if err != nil {
		return err
	}
	if err := prepareBypass(spec, bypass); err != nil {
		return err
	}
	spec.Maps[programMapClientCounts].MaxEntries = uint32(clientStripes()) * spec.Maps[programMapClientStates].MaxEntries
	if err := spec.LoadAndAssign(&p.objects, nil); err != nil {
		return err
	}
	if bypass != nil {
		p.bypass.open(p.objects.Bypasses, bypass.Reporter)
	}
	return nil
}

// loadTable maps the memory of the table.
func (p *Program) loadTable() (err error) {
	if p.table.sets, err = mapArray[programSet](p, p.objects.Sets); err != nil {
		return err
	}
	p.table.slots, err = mapArray[programSlot](p, p.objects.Slots)
	return err
}

// loadClients makes all client numbers available to the program.
func (p *Program) loadClients() error {
	states, err := mapArray[programClientState](p, p.objects.ClientStates)
	if err != nil {
		return err
	}
	counts, err := mapArray[programClientCount](p, p.objects.ClientCounts)
	if err != nil {
		return err
	}
	p.clients.numbers, p.clients.free, p.clients.states = p.objects.Clients, p.objects.FreeClients, states
	p.clients.shared = p.state
	p.clients.counts, p.clients.reported = counts, make([]programClientCount, len(states))
	for n := range states {
		if err := p.clients.free.Put(nil, uint32(n)); err != nil {
			return fmt.Errorf("initialising the client numbers: %w", err)
		}
	}
	return nil
}

// openSamples makes the program count answers by client and take samples, if there is a reporter.
func (p *Program) openSamples() error {
	if p.clients.reporter == nil {
		return nil
	}
	r, err := ringbuf.NewReader(p.objects.Samples)
	if err != nil {
		return fmt.Errorf("reading samples: %w", err)
	}
	r.SetDeadline(time.Unix(0, 0)) // in the past, so that no read waits
	p.samples.reader, p.state.Counting = r, 1
	return nil
}

// loadLimit maps the memory of the buckets and sets the limit.
func (p *Program) loadLimit(l ClientLimit) (err error) {
	p.limit = clientLimiter{state: p.state, prefixes: p.objects.Exempt, exempt: make(map[programPrefix]uint32)}
	counts := &p.clients.limited
	if counts.buckets, err = mapArray[programBucket](p, p.objects.Buckets); err != nil {
		return err
	}
	counts.senders, counts.reported = p.objects.Senders, make([]uint64, len(counts.buckets))
	return p.limit.set(l)
}

// programIDs returns the kernel's IDs of programs.
func programIDs(programs ...*ebpf.Program) (list []ebpf.ProgramID, err error) {
	for _, program := range programs {
		info, err := program.Info()
		if err != nil {
			return nil, err
		}
		id, ok := info.ID()
		if !ok {
			return nil, fmt.Errorf("program %s has no ID", info.Name)
		}
		list = append(list, id)
	}
	return list, nil
}

// mapArray maps the memory of an array map into the process. It stays mapped for the life
// of the process.
func mapArray[T any](p *Program, m *ebpf.Map) ([]T, error) {
	var t T
	n := int(m.MaxEntries())
	if size := int(unsafe.Sizeof(t)); size != int(m.ValueSize()) || size%8 != 0 {
		return nil, fmt.Errorf("%s: the kernel's value has %d bytes, the agent's %d", m, m.ValueSize(), size)
	}
	page := unix.Getpagesize()
	size := (n*int(m.ValueSize()) + page - 1) / page * page
	b, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping the memory of %s: %w", m, err)
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), n), nil
}

// explainLoadError adds to an error what the operator can do about it.
func explainLoadError(err error) error {
	var refused *ebpf.VerifierError
	switch {
	case errors.As(err, &refused) && len(refused.Log) > 0:
		return fmt.Errorf("the kernel's verifier rejects the program; the capability PERFMON is needed in addition to BPF and NET_ADMIN: %w", err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("the process may not load programs; it needs the capabilities BPF, NET_ADMIN and PERFMON: %w", err)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("the kernel is too old: %w", err)
	}
	return err
}

// kernelNow returns the kernel's clock, CLOCK_MONOTONIC.
func kernelNow() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return time.Duration(ts.Nano())
}

// Close detaches the programs from all interfaces; the kernel does the same when the
// process ends. Their memory stays mapped, so that it is safe to keep using p or its
// epochs.
func (p *Program) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ifindex := range p.links {
		p.detach(ifindex)
	}
	return errors.Join(p.samples.close(), p.objects.Close())
}

// Epochs returns the counters that answers depend on: one table for cluster names, one
// for cached answers.
func (p *Program) Epochs() (cluster, cached *epoch.Table) {
	const bits = int(programBoundEPOCH_BITS)
	n := epoch.Words(bits)
	return epoch.New(p.epochs, 0, bits), epoch.New(p.epochs[n:], uint32(n), bits)
}

// HeartbeatTimeout is how long queries are answered after a [Program.Heartbeat].
const HeartbeatTimeout = 2 * time.Second

// Heartbeat confirms that the agent is healthy. Without it no query is answered after
// [HeartbeatTimeout].
func (p *Program) Heartbeat() {
	atomic.StoreUint64(&p.state.Deadline, uint64(kernelNow()+HeartbeatTimeout))
}

// WatchTimeout is how long clients are admitted after [Program.ConfirmWatched]. The checks
// come every second, so two may be late.
const WatchTimeout = 3 * time.Second

// ConfirmWatched confirms that all interfaces of pods are watched ([Program.Update]).
// Without it no client is admitted after [WatchTimeout], and none is answered two seconds
// later: an unwatched pod could send queries with another pod's address.
func (p *Program) ConfirmWatched() {
	atomic.StoreUint64(&p.state.Watched, uint64(kernelNow()+WatchTimeout))
}

// Stop stops answers at once, until the next [Program.Heartbeat].
func (p *Program) Stop() { atomic.StoreUint64(&p.state.Deadline, 0) }

// anyPort is the map value of a listening address without its port.
const anyPort = 1

// SetListeners sets the addresses at which the agent listens, each with the non-zero
// number of what it serves there. The program gives an answer only at listeners with the
// answer's number. An empty map stops all answers. On an error some listeners are missing.
//
// The C sources call a listener a door.
func (p *Program) SetListeners(listeners map[netip.AddrPort]uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	want, ports := make(map[programDoor]uint32), uint64(0)
	for at, n := range listeners {
		d := listenerKey(at)
		want[d], want[programDoor{Addr: d.Addr, Any: 1}] = n, anyPort
		ports |= 1 << (at.Port() & 63)
	}
	// The program forgets the listeners that it has found last.
	defer atomic.AddUint64(&p.state.DoorChanges, 1)
	for d, n := range p.listeners {
		if want[d] != n {
			if err := p.objects.Doors.Delete(&d); err != nil {
				return fmt.Errorf("removing a listener: %w", err)
			}
			delete(p.listeners, d)
		}
	}
	atomic.StoreUint64(&p.state.Ports, ports)
	for d, n := range want {
		if err := p.objects.Doors.Put(&d, n); err != nil {
			return fmt.Errorf("adding a listener: %w", err)
		}
	}
	p.listeners = want
	return nil
}

// listenerKey returns the map key of an address: IPv4 in mapped form, the port in network
// byte order.
func listenerKey(at netip.AddrPort) programDoor {
	b := at.Addr().As16()
	d := programDoor{Port: at.Port()<<8 | at.Port()>>8}
	for i := range d.Addr {
		d.Addr[i] = uint32(b[4*i]) | uint32(b[4*i+1])<<8 | uint32(b[4*i+2])<<16 | uint32(b[4*i+3])<<24
	}
	return d
}

// doorAddr returns the address of d, the inverse of listenerKey.
func doorAddr(d *programDoor) netip.AddrPort {
	return netip.AddrPortFrom(clientAddr(&programClient{Addr: d.Addr}), d.Port<<8|d.Port>>8)
}

// Copies returns the copies of answers for name, in lower case and wire form: at the listener at, and of the
// record type qtype. A zero value means all. The order is not specified. Nothing is counted or kept in use.
func (p *Program) Copies(name []byte, qtype uint16, at netip.AddrPort) []CopyInfo {
	return p.table.copies(name, qtype, p.listenerNumbers(at), p.epochs)
}

// listenerNumbers returns the numbers of the listener at, or of all for a zero at, each with an address.
func (p *Program) listenerNumbers(at netip.AddrPort) map[uint32]netip.AddrPort {
	p.mu.Lock()
	defer p.mu.Unlock()
	numbers := make(map[uint32]netip.AddrPort)
	for door, n := range p.listeners {
		if addr := doorAddr(&door); door.Any == 0 && (!at.IsValid() || at == addr) {
			numbers[n] = addr
		}
	}
	return numbers
}

// Client returns what the programs know of the client addr, for queries to the listener at. ok is false if it has
// not asked over the interface of a pod for a minute, or if there is no such listener.
func (p *Program) Client(addr netip.Addr, at netip.AddrPort) (c ClientInfo, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	listener := p.listeners[listenerKey(at)]
	state, ok := p.clients.state(addr)
	if !ok || listener == 0 {
		return c, false
	}
	now := uint64(kernelNow())
	result := state.result(listener, now)
	if now >= atomic.LoadUint64(&p.state.Deadline) {
		result = programResultLAPSED
	}
	if over := p.limit.result(addr, &p.clients.limited.buckets[state.Number], now); over != programResultRESULTS {
		result = over
	}
	c = ClientInfo{Interface: stampNumber(atomic.LoadUint64(&state.Place)), Result: results[result]}
	if a := p.links[c.Interface]; a != nil {
		c.Answering = a.answering
	}
	return c, true
}
