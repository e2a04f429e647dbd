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

// Open loads the programs, which answer nothing before there is a [Program.Heartbeat]. The error wraps
// [ErrUnsupported] where the kernel or the process's rights lack what is needed, and says what.
func Open(opts Options) (*Program, error) {
	p := &Program{order: opts.Order, links: make(map[int]*attachment), agentPrograms: make(map[ebpf.ProgramID]bool)}
	if err := p.load(); err != nil {
		_ = p.Close()
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return p, nil
}

// checkTCX is nil unless the kernel's links have no place for the programs: Linux before 6.6
// does not know the question.
func checkTCX() error {
	const loopback = 1 // of every network namespace
	_, err := link.QueryPrograms(link.QueryOptions{Target: loopback, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("the kernel is too old: it has no tcx, which came with Linux 6.6: %w", err)
	}
	return nil // what else is missing, loading tells
}

func (p *Program) load() error {
	if err := checkTCX(); err != nil {
		return err
	}
	if err := loadProgramObjects(&p.objects, nil); err != nil {
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
	if p.table.sets, err = mapArray[programSet](p, p.objects.Sets); err != nil {
		return err
	}
	if p.table.slots, err = mapArray[programSlot](p, p.objects.Slots); err != nil {
		return err
	}
	if err := p.loadClients(); err != nil {
		return err
	}
	if p.own, err = programIDs(p.objects.NodensAnswer, p.objects.NodensWatch, p.objects.NodensAhead, p.objects.NodensAdmit, p.objects.NodensIdle); err != nil {
		return err
	}
	p.state, p.epochs = &states[0], words
	p.table.seed = binary.NativeEndian.Uint64(seed[:]) | 1
	p.table.offset = kernelNow() - clock.Now()
	p.state.Seed = p.table.seed
	return nil
}

// programIDs are the numbers of programs in the kernel.
func programIDs(programs ...*ebpf.Program) (list []ebpf.ProgramID, err error) {
	for _, program := range programs {
		info, err := program.Info()
		if err != nil {
			return nil, err
		}
		id, ok := info.ID()
		if !ok {
			return nil, fmt.Errorf("program %s has no number", info.Name)
		}
		list = append(list, id)
	}
	return list, nil
}

// mapArray maps the memory of an array into the process.
func mapArray[T any](p *Program, m *ebpf.Map) ([]T, error) {
	var t T
	n := int(m.MaxEntries())
	if size := int(unsafe.Sizeof(t)); size != int(m.ValueSize()) || size%8 != 0 {
		return nil, fmt.Errorf("%s: a value has %d bytes, and here %d", m, m.ValueSize(), size)
	}
	page := unix.Getpagesize()
	size := (n*int(m.ValueSize()) + page - 1) / page * page
	b, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping the memory of %s: %w", m, err)
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), n), nil
}

// explainLoadError says what an operator can do about err.
func explainLoadError(err error) error {
	var refused *ebpf.VerifierError
	switch {
	case errors.As(err, &refused) && len(refused.Log) > 0:
		return fmt.Errorf("the kernel's verifier refuses the program; it needs the capability PERFMON beside BPF and NET_ADMIN: %w", err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("the process may not load programs; it needs the capabilities BPF, NET_ADMIN and PERFMON: %w", err)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("the kernel is too old: %w", err)
	}
	return err
}

// kernelNow is the kernel's clock, CLOCK_MONOTONIC.
func kernelNow() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return time.Duration(ts.Nano())
}

// Close takes the programs off all links; the end of the process does the same, however it
// comes. Their memory stays for as long as the process, so that whoever holds on to the path
// or its epochs does no harm.
func (p *Program) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ifindex := range p.links {
		p.detach(ifindex)
	}
	return p.objects.Close()
}

// Epochs are the counters that answers hang on: those of the cluster's names, and those of
// the cache's.
func (p *Program) Epochs() (cluster, cached *epoch.Table) {
	const bits = int(programBoundEPOCH_BITS)
	n := epoch.Words(bits)
	return epoch.New(p.epochs, 0, bits), epoch.New(p.epochs[n:], uint32(n), bits)
}

// HeartbeatTimeout is how long answers are given without a [Program.Heartbeat].
const HeartbeatTimeout = 2 * time.Second

// Heartbeat says that the agent is well. Without it nothing is answered after [HeartbeatTimeout].
func (p *Program) Heartbeat() {
	atomic.StoreUint64(&p.state.Deadline, uint64(kernelNow()+HeartbeatTimeout))
}

// WatchTimeout is how long clients are admitted without a [Program.ConfirmWatched]: of the looks that
// come every second, two may be late.
const WatchTimeout = 3 * time.Second

// ConfirmWatched says that all interfaces of pods are watched ([Program.Update]). Without it no client is
// admitted after [WatchTimeout], nor answered two seconds later, as another pod may ask in its name
// unseen.
func (p *Program) ConfirmWatched() {
	atomic.StoreUint64(&p.state.Watched, uint64(kernelNow()+WatchTimeout))
}

// Stop ends what [Program.Heartbeat] has begun at once.
func (p *Program) Stop() { atomic.StoreUint64(&p.state.Deadline, 0) }
