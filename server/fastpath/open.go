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

// Open loads the programs, which answer nothing before there is a [Path.Beat]. The error wraps
// [ErrUnsupported] where the kernel or the process's rights lack what is needed, and says what.
func Open(opts Options) (*Path, error) {
	p := &Path{order: opts.Order, links: make(map[int]*attachment), strangers: make(map[ebpf.ProgramID]bool)}
	if err := p.load(); err != nil {
		_ = p.Close()
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return p, nil
}

// haveTCX is nil unless the kernel's links have no place for the programs: Linux before 6.6
// does not know the question.
func haveTCX() error {
	const loopback = 1 // of every network namespace
	_, err := link.QueryPrograms(link.QueryOptions{Target: loopback, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("the kernel is too old: it has no tcx, which came with Linux 6.6: %w", err)
	}
	return nil // what else is missing, loading tells
}

func (p *Path) load() error {
	if err := haveTCX(); err != nil {
		return err
	}
	if err := loadProgramObjects(&p.objects, nil); err != nil {
		return explain(err)
	}
	var seed [8]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return err
	}
	states, err := share[programState](p, p.objects.States)
	if err != nil {
		return err
	}
	words, err := share[atomic.Uint64](p, p.objects.Epochs)
	if err != nil {
		return err
	}
	if p.table.sets, err = share[programSet](p, p.objects.Sets); err != nil {
		return err
	}
	if p.table.slots, err = share[programSlot](p, p.objects.Slots); err != nil {
		return err
	}
	if err := p.loadClients(); err != nil {
		return err
	}
	if p.own, err = ids(p.objects.NodensAnswer, p.objects.NodensWatch, p.objects.NodensAhead, p.objects.NodensAdmit, p.objects.NodensIdle); err != nil {
		return err
	}
	p.state, p.epochs = &states[0], words
	p.table.seed = binary.NativeEndian.Uint64(seed[:]) | 1
	p.table.offset = now() - clock.Now()
	p.state.Seed = p.table.seed
	return nil
}

// ids are the numbers of programs in the kernel.
func ids(programs ...*ebpf.Program) (list []ebpf.ProgramID, err error) {
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

// share maps the memory of an array into the process.
func share[T any](p *Path, m *ebpf.Map) ([]T, error) {
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

// explain says what an operator can do about err.
func explain(err error) error {
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

// now is the kernel's clock, CLOCK_MONOTONIC.
func now() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return time.Duration(ts.Nano())
}

// Close takes the programs off all links; the end of the process does the same, however it
// comes. Their memory stays for as long as the process, so that whoever holds on to the path
// or its epochs does no harm.
func (p *Path) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ifindex := range p.links {
		p.detach(ifindex)
	}
	return p.objects.Close()
}

// Epochs are the counters that answers hang on: those of the cluster's names, and those of
// the cache's.
func (p *Path) Epochs() (cluster, cached *epoch.Table) {
	const bits = int(programBoundEPOCH_BITS)
	n := epoch.Words(bits)
	return epoch.New(p.epochs, 0, bits), epoch.New(p.epochs[n:], uint32(n), bits)
}

// Lapse is how long answers are given without a [Path.Beat].
const Lapse = 2 * time.Second

// Beat says that the agent is well. Without it nothing is answered after [Lapse].
func (p *Path) Beat() {
	atomic.StoreUint64(&p.state.Deadline, uint64(now()+Lapse))
}

// WatchLapse is how long clients are admitted without a [Path.Watched]: of the looks that
// come every second, two may be late.
const WatchLapse = 3 * time.Second

// Watched says that all interfaces of pods are watched ([Path.Update]). Without it no client is
// admitted after [WatchLapse], nor answered two seconds later, as another pod may ask in its name
// unseen.
func (p *Path) Watched() {
	atomic.StoreUint64(&p.state.Watched, uint64(now()+WatchLapse))
}

// Still ends what [Path.Beat] has begun at once.
func (p *Path) Still() { atomic.StoreUint64(&p.state.Deadline, 0) }
