package node

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/poll"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/testbed"
	"github.com/nodens-dns/nodens/test/soak"
)

// Verdicts of tcx programs.
const (
	tcxNext = -1 // TCX_NEXT
	tcxDrop = 2  // TCX_DROP
)

// program is a foreign tcx program on a pod's interface: it counts UDP packets, and passes all or
// none.
type program struct {
	*ebpf.Program
	name    string
	counter *ebpf.Map
	link    link.Link
}

// loadProgram loads one.
func (l *network) loadProgram(name string, verdict int32) *program {
	l.t.Helper()
	counter, err := ebpf.NewMap(&ebpf.MapSpec{Name: name, Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { counter.Close() })
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: ebpf.SchedCLS, License: "MIT",
		Instructions: append(matchUDP(), asm.Instructions{
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, counter.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "other"),
			asm.Mov.Imm(asm.R1, 1),
			asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
			asm.Mov.Imm(asm.R0, verdict),
			asm.Return(),
			asm.Mov.Imm(asm.R0, tcxNext).WithSymbol("other"),
			asm.Return(),
		}...),
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { p.Close() })
	return &program{Program: p, name: name, counter: counter}
}

// matchUDP passes everything but UDP: ARP and neighbour discovery must work.
func matchUDP() asm.Instructions {
	const protocol = 16                     // of struct __sk_buff
	const v4, v6 = 0x0008, 0xdd86           // as on the wire
	const header4, header6 = 14 + 9, 14 + 6 // where the next protocol stands in a frame
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, protocol, asm.Word),
		asm.JEq.Imm(asm.R2, v4, "v4"),
		asm.JNE.Imm(asm.R2, v6, "other"),
		asm.LoadAbs(header6, asm.Byte),
		asm.Ja.Label("known"),
		asm.LoadAbs(header4, asm.Byte).WithSymbol("v4"),
		asm.JNE.Imm(asm.R0, unix.IPPROTO_UDP, "other").WithSymbol("known"),
	}
}

// attach attaches p to an interface of the node, until it is detached or the test ends.
func (l *network) attach(p *program, port string, at ebpf.AttachType, anchor link.Anchor) {
	l.t.Helper()
	index := l.ifindex(port)
	err := testbed.InNamespace(l.node, func() (err error) {
		p.link, err = link.AttachTCX(link.TCXOptions{Interface: index, Program: p.Program, Attach: at, Anchor: anchor})
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(p.detach)
}

func (p *program) detach() {
	if p.link != nil {
		p.link.Close()
		p.link = nil
	}
}

// packets returns how many packets the program has seen.
func (l *network) packets(p *program) (n uint64) {
	l.t.Helper()
	if err := p.counter.Lookup(uint32(0), &n); err != nil {
		l.t.Fatal(err)
	}
	return n
}

// ifindex is that of a link of the node.
func (l *network) ifindex(port string) (n int) {
	l.t.Helper()
	if _, err := fmt.Sscanf(l.in(l.node, "cat", "/sys/class/net/"+port+"/ifindex"), "%d", &n); err != nil {
		l.t.Fatal(err)
	}
	return n
}

// ingressPrograms are the names of the programs on the ingress of a link of the node, in their order.
func (l *network) ingressPrograms(port string) (names []string) {
	l.t.Helper()
	return l.programs(port, ebpf.AttachTCXIngress)
}

// programs returns the names of the programs on one side of an interface, in the order in which
// they run. It lists them again if the agent has attached or detached one meanwhile.
func (l *network) programs(port string, side ebpf.AttachType) (names []string) {
	l.t.Helper()
	index := l.ifindex(port)
	poll.Until(l.t, "a list of the programs on "+port, func() bool {
		err := testbed.InNamespace(l.node, func() (err error) {
			names, err = programNames(index, side)
			return err
		})
		if err != nil && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, os.ErrNotExist) {
			l.t.Fatal(err)
		}
		return err == nil
	})
	return names
}

// programNames lists the programs once. The error is ENOSPC or [os.ErrNotExist] if they
// changed meanwhile.
func programNames(index int, side ebpf.AttachType) (names []string, err error) {
	list, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: side})
	if err != nil {
		return nil, err
	}
	for _, p := range list.Programs {
		name, err := programName(p.ID)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

func programName(id ebpf.ProgramID) (string, error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "", err
	}
	info, err := p.Info()
	return info.Name, errors.Join(err, p.Close())
}

// The names of the agent's programs on the ingress of a link: the one that answers, and those
// that only see who asks, in its place and in front of programs of others.
const (
	answerProgram = "nodens_answer"
	watchProgram  = "nodens_watch"
	aheadProgram  = "nodens_ahead"
)

// TestKernelOrder: the agent's program is where -kernel-path-order says, foreign programs before and
// after it keep working, and our programs are gone after the agent's end.
func TestKernelOrder(t *testing.T) {
	t.Parallel()
	l := newKernelNetwork(t)
	const port = "vpod"
	first, second := l.loadProgram("first", tcxNext), l.loadProgram("second", tcxNext)
	l.attach(first, port, ebpf.AttachTCXIngress, link.Head())
	l.attach(second, port, ebpf.AttachTCXIngress, link.Tail())
	for _, c := range []struct {
		order string
		want  []string
	}{
		{"last", []string{aheadProgram, "first", "second", answerProgram}},
		{"first", []string{answerProgram, "first", "second"}},
		{"before:second", []string{aheadProgram, "first", answerProgram, "second"}},
		{"after:first", []string{aheadProgram, "first", answerProgram, "second"}},
		{"before:absent", []string{aheadProgram, "first", "second", answerProgram}},
	} {
		t.Run(c.order, func(t *testing.T) {
			l := &network{Network: l.Network, t: t, pod: l.pod, node: l.node, nodens: l.nodens, dir: l.dir}
			p := l.startInKernel("-kernel-path-order=" + c.order)
			a := newComparer(t, l, p, local4)
			query := pack(question("web.shop.svc.cluster.local.", 1))
			a.pod.t = t
			a.askUntilKernelAnswers(query)
			if got := l.ingressPrograms(port); !slices.Equal(got, c.want) {
				t.Errorf("the programs are %q, want %q", got, c.want)
			}
			before, behind, known := l.packets(first), l.packets(second), l.kernelAnswers()
			for range repeats {
				a.pod.ask(query, false)
			}
			at := slices.Index(c.want, answerProgram)
			known = l.kernelAnswers() - known
			for i, p := range []struct {
				name string
				seen uint64
			}{{"first", l.packets(first) - before}, {"second", l.packets(second) - behind}} {
				want := repeats
				if slices.Index(c.want, p.name) > at {
					want -= known
				}
				if int(p.seen) != want {
					t.Errorf("program %d has seen %d packets, want %d: the kernel has answered %d of %d queries", i, p.seen, want, known, repeats)
				}
			}
			p.Stop()
			if got := strings.Join(l.ingressPrograms(port), " "); got != "first second" {
				t.Errorf("after the stop the programs are %q", got)
			}
		})
	}
}

// TestKernelLinks: the kernel answers a pod that is added while the agent runs, and again after its
// interface was replaced.
func TestKernelLinks(t *testing.T) {
	t.Parallel()
	l := newKernelNetwork(t)
	p := l.startInKernel()
	ns, err := l.AddPod(1)
	check.NoError(t, err)
	query := pack(question("web.shop.svc.cluster.local.", 1))
	for range soak.Choose(2, 3) {
		for _, door := range []string{local4, local6} {
			a := &comparer{l, p, l.client(ns, door), l.client(l.node, door)}
			a.check(t, query, true, false)
		}
		l.in(l.node, "ip", "link", "delete", "vpod1")
		check.NoError(t, l.ConnectPod(1))
	}
}

// repeats is how often a query is asked that others are to see, or none: the kernel knows the
// answer when it begins, and may let one go on for the agent to see.
const repeats = 20
