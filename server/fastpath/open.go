package fastpath

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/epoch"
)

// Open loads the programs. They answer nothing before the first [Program.Heartbeat]. An
// error wraps [ErrUnsupported] and says what the kernel or the process lacks.
func Open(opts Options) (*Program, error) {
	p := &Program{order: opts.Order, clients: clients{reporter: opts.Clients}, links: make(map[int]*attachment), agentPrograms: make(map[ebpf.ProgramID]bool)}
	if err := p.load(opts.ClientLimit); err != nil {
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

func (p *Program) load(limit ClientLimit) error {
	if err := checkTCX(); err != nil {
		return err
	}
	if err := p.loadObjects(); err != nil {
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
	if err := errors.Join(p.loadTable(), p.loadClients(), p.openSamples(), p.loadLimit(limit)); err != nil {
		return err
	}
	if p.own, err = programIDs(p.objects.NodensAnswer, p.objects.NodensWatch, p.objects.NodensAhead, p.objects.NodensAdmit, p.objects.NodensIdle); err != nil {
		return err
	}
	p.table.seed = binary.NativeEndian.Uint64(seed[:]) | 1
	p.table.offset = kernelNow() - clock.Now()
	p.state.Seed, p.state.Stripes = p.table.seed, uint64(clientStripes()-1)
	p.state.DoorChanges, p.state.Releases = 1, 1
	return nil
}

// loadObjects loads the programs and their maps into the kernel.
func (p *Program) loadObjects() error {
	spec, err := loadProgram()
	if err != nil {
		return err
	}
	spec.Maps[programMapClientCounts].MaxEntries = uint32(clientStripes()) * spec.Maps[programMapClientStates].MaxEntries
	return spec.LoadAndAssign(&p.objects, nil)
}

// loadTable maps the memory of the table.
func (p *Program) loadTable() (err error) {
	if p.table.sets, err = mapArray[programSet](p, p.objects.Sets); err != nil {
		return err
	}
	p.table.slots, err = mapArray[programSlot](p, p.objects.Slots)
	return err
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
