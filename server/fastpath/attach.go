package fastpath

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// reopenDelay is for how long an interface is only watched before it is answered on again. By
// then nobody is admitted any more by a reply that a program behind ours has dropped.
const reopenDelay = 2 * time.Second

// attachment is the programs on one interface. Each has its link; which program is behind a link
// changes, in place, as what others have attached does.
type attachment struct {
	answer keptLink // nodens_answer, or nodens_watch
	admit  keptLink // nodens_admit, or nodens_idle
	front  keptLink // nodens_ahead, in front of programs of others; none if there are none
	// answering says that queries are answered here, else they are only seen.
	answering bool
	// positioned says that answer is where the operator wants it: the programs behind it are not
	// to see what is answered.
	positioned bool
	watchUntil time.Duration // until when queries are not answered again
}

// Update looks at what others have on an interface, and has queries that come in there answered
// if nobody is passed over, else only watched. It is to be called for a new interface of a
// pod and again at short intervals: there are no news of programs of tcx. filtered says that
// there are tc filters, which stand behind all programs. An interface that goes takes what is
// attached along.
//
// After an error queries are not even watched. It wraps [ErrGone] where there are none.
func (p *Program) Update(ifindex int, filtered bool) (answers bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, err := p.attachment(ifindex)
	if err == nil {
		err = p.reconcile(a, ifindex, filtered)
	}
	switch {
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENOLINK):
		err = fmt.Errorf("%w: %w", ErrGone, err)
	case err != nil:
		err = explainLoadError(err)
	}
	if err != nil {
		p.detach(ifindex) // to begin anew
		return false, fmt.Errorf("interface %d: %w", ifindex, err)
	}
	return a.answering, nil
}

// attachment is what is on an interface, which is put there if it is new: nothing is answered or
// admitted yet.
func (p *Program) attachment(ifindex int) (*attachment, error) {
	if a := p.links[ifindex]; a != nil {
		return a, nil
	}
	a := &attachment{answer: noLink, admit: noLink, front: noLink}
	var err error
	if a.answer, a.positioned, err = p.attachIngress(ifindex, p.objects.NodensWatch); err != nil {
		return nil, fmt.Errorf("attaching to the ingress: %w", err)
	}
	if a.admit, err = attachEgress(ifindex, p.objects.NodensIdle); err != nil {
		_ = a.close()
		return nil, fmt.Errorf("attaching to the egress: %w", err)
	}
	p.links[ifindex] = a
	return a, nil
}

// attachIngress puts a program where the one belongs that answers.
func (p *Program) attachIngress(ifindex int, program *ebpf.Program) (s keptLink, ordered bool, err error) {
	anchor, ordered := p.anchor(ifindex)
	s, err = attach(link.TCXOptions{Interface: ifindex, Program: program, Attach: ebpf.AttachTCXIngress, Anchor: anchor})
	return s, ordered, err
}

// attachEgress puts a program where the one belongs that admits: behind all others, so that it
// sees no reply that one of them has dropped.
func attachEgress(ifindex int, program *ebpf.Program) (keptLink, error) {
	return attach(link.TCXOptions{Interface: ifindex, Program: program, Attach: ebpf.AttachTCXEgress, Anchor: link.Tail()})
}

func attach(opts link.TCXOptions) (keptLink, error) {
	l, err := link.AttachTCX(opts)
	if err != nil {
		return noLink, err
	}
	defer func() { _ = l.Close() }()
	return keepLink(l.(descriptor).FD())
}

// descriptor is what every [link.Link] of this kind has.
type descriptor interface{ FD() int }

// reconcile makes of a what may be there.
func (p *Program) reconcile(a *attachment, ifindex int, filtered bool) error {
	there, err := p.otherPrograms(ifindex)
	if err != nil {
		return err
	}
	there.in.behind = there.in.behind && !a.positioned
	if a.answering && (filtered || there.bypassed()) {
		return p.stopAnswering(a)
	}
	if err := p.placeFront(a, ifindex, there.in); err != nil {
		return err
	}
	if filtered || !a.mayAnswer() {
		return nil
	}
	if err := p.startAdmitting(a, ifindex, there.out.behind); err != nil {
		return err
	}
	return p.startAnswering(a, ifindex, there.in.behind)
}

// mayAnswer reports whether it is time to answer again.
func (a *attachment) mayAnswer() bool { return !a.answering && kernelNow() >= a.watchUntil }

// startAdmitting has clients admitted. With others behind it the program moves there.
func (p *Program) startAdmitting(a *attachment, ifindex int, behind bool) error {
	if !behind {
		return a.admit.update(p.objects.NodensAdmit)
	}
	s, err := attachEgress(ifindex, p.objects.NodensAdmit)
	if err != nil {
		return err
	}
	_ = a.admit.Close()
	a.admit = s
	return nil
}

// startAnswering has queries answered, as openOut.
func (p *Program) startAnswering(a *attachment, ifindex int, behind bool) error {
	a.answering = true
	if !behind {
		return a.answer.update(p.objects.NodensAnswer)
	}
	s, ordered, err := p.attachIngress(ifindex, p.objects.NodensAnswer)
	if err != nil {
		return err
	}
	_ = a.answer.Close()
	a.answer, a.positioned = s, ordered
	return nil
}

// stopAnswering ends the answers at once: the kernel waits for nothing.
func (p *Program) stopAnswering(a *attachment) error {
	a.answering, a.watchUntil = false, kernelNow()+reopenDelay
	return errors.Join(a.answer.update(p.objects.NodensWatch), a.admit.update(p.objects.NodensIdle))
}

// placeFront watches in front of programs of others, which may keep packets from the ones
// behind them and still let them into the node. Those behind ours come to be in front of it
// when it moves.
func (p *Program) placeFront(a *attachment, ifindex int, in positions) (err error) {
	others := in.ahead || in.between || in.behind
	if others == (a.front != noLink) && !in.ahead {
		return nil
	}
	_ = a.front.Close() // it is of no use, or not the first
	a.front = noLink
	if others {
		a.front, err = attach(link.TCXOptions{
			Interface: ifindex, Program: p.objects.NodensAhead, Attach: ebpf.AttachTCXIngress, Anchor: link.Head(),
		})
	}
	return err
}

// anchor is where among the programs that see a pod's packets ours belongs, and whether that
// is because the operator says so.
func (p *Program) anchor(ifindex int) (at link.Anchor, ordered bool) {
	if p.order.First {
		return link.Head(), true
	}
	for name, anchor := range map[string]func(ebpf.ProgramID) link.Anchor{
		p.order.Before: func(id ebpf.ProgramID) link.Anchor { return link.BeforeProgramByID(id) },
		p.order.After:  func(id ebpf.ProgramID) link.Anchor { return link.AfterProgramByID(id) },
	} {
		if id, ok := p.findProgram(ifindex, name); ok {
			return anchor(id), true
		}
	}
	return link.Tail(), false
}

// findProgram looks for the program of that name that sees a pod's packets.
func (p *Program) findProgram(ifindex int, name string) (ebpf.ProgramID, bool) {
	if name == "" {
		return 0, false
	}
	list, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return 0, false
	}
	for _, there := range list.Programs {
		if programName(there.ID) == name {
			return there.ID, true
		}
	}
	return 0, false
}

// programName is the name of a program in the kernel, "" if it is gone.
func programName(id ebpf.ProgramID) string {
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return ""
	}
	defer func() { _ = program.Close() }()
	info, err := program.Info()
	if err != nil {
		return ""
	}
	return info.Name
}

// otherPrograms is what others have on an interface, beside the programs of p.
type otherPrograms struct{ in, out positions }

// bypassed reports whether another program would not see what is answered, or that a reply was
// dropped.
func (n otherPrograms) bypassed() bool { return n.in.behind || n.out.behind }

// positions says, of the programs on one side of an interface, whether ours are among them, and
// whether others are in front of the first of ours, between them, and behind the last.
type positions struct{ present, ahead, between, behind bool }

func (p *Program) otherPrograms(ifindex int) (n otherPrograms, err error) {
	if n.in, err = p.positions(ifindex, ebpf.AttachTCXIngress); err == nil {
		n.out, err = p.positions(ifindex, ebpf.AttachTCXEgress)
	}
	if err == nil && (!n.in.present || !n.out.present) {
		err = errors.New("the program was detached by another process")
	}
	return n, err
}

func (p *Program) positions(ifindex int, side ebpf.AttachType) (r positions, err error) {
	list, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: side})
	if err != nil {
		return r, err
	}
	for _, there := range list.Programs {
		switch {
		case slices.Contains(p.own, there.ID):
			r.between = r.between || r.behind
			r.present, r.behind = true, false
		case p.isAgentProgram(there.ID):
		case r.present:
			r.behind = true
		default:
			r.ahead = true
		}
	}
	return r, nil
}

// maxKnownPrograms bounds the programs of others that are remembered. A node has some ten.
const maxKnownPrograms = 1024

// isAgentProgram reports whether a program is that of another agent, which comes or goes: such ones
// let all go on that they don't answer.
func (p *Program) isAgentProgram(id ebpf.ProgramID) bool {
	is, known := p.agentPrograms[id]
	if !known {
		is = strings.HasPrefix(programName(id), "nodens_")
		if len(p.agentPrograms) >= maxKnownPrograms {
			clear(p.agentPrograms)
		}
		p.agentPrograms[id] = is
	}
	return is
}

// Detach is the opposite of [Program.Update]. It needs not be called for an interface that is gone,
// but before another has its index.
func (p *Program) Detach(ifindex int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.detach(ifindex)
}

func (p *Program) detach(ifindex int) {
	if a, ok := p.links[ifindex]; ok {
		_ = a.close()
		delete(p.links, ifindex)
	}
}

// close takes all programs away.
func (a *attachment) close() error {
	return errors.Join(a.answer.Close(), a.front.Close(), a.admit.Close())
}

// Links is the number of interfaces on which queries are answered, and of those on which they
// are only watched.
func (p *Program) Links() (answering, watched int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.links {
		if a.answering {
			answering++
		} else {
			watched++
		}
	}
	return answering, watched
}
