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

// reopening is for how long an interface is only watched before it is answered on again. By
// then nobody is admitted any more by a reply that a program behind ours has dropped.
const reopening = 2 * time.Second

// attachment is the programs on one interface. Each has its link; which program is behind a link
// changes, in place, as what others have attached does.
type attachment struct {
	answer stowed // nodens_answer, or nodens_watch
	admit  stowed // nodens_admit, or nodens_idle
	ahead  stowed // nodens_ahead, in front of programs of others; none if there are none
	// answers says that queries are answered here, else they are only seen.
	answers bool
	// ordered says that answer is where the operator wants it: the programs behind it are not
	// to see what is answered.
	ordered bool
	until   time.Duration // until when queries are not answered again
}

// Update looks at what others have on an interface, and has queries that come in there answered
// if nobody is passed over, else only watched. It is to be called for a new interface of a
// pod and again at short intervals: there are no news of programs of tcx. filtered says that
// there are tc filters, which stand behind all programs. An interface that goes takes what is
// attached along.
//
// After an error queries are not even watched. It wraps [ErrGone] where there are none.
func (p *Path) Update(ifindex int, filtered bool) (answers bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, err := p.attached(ifindex)
	if err == nil {
		err = p.adjust(a, ifindex, filtered)
	}
	switch {
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENOLINK):
		err = fmt.Errorf("%w: %w", ErrGone, err)
	case err != nil:
		err = explain(err)
	}
	if err != nil {
		p.detach(ifindex) // to begin anew
		return false, fmt.Errorf("interface %d: %w", ifindex, err)
	}
	return a.answers, nil
}

// attached is what is on an interface, which is put there if it is new: nothing is answered or
// admitted yet.
func (p *Path) attached(ifindex int) (*attachment, error) {
	if a := p.links[ifindex]; a != nil {
		return a, nil
	}
	a := &attachment{answer: none, admit: none, ahead: none}
	var err error
	if a.answer, a.ordered, err = p.attachIn(ifindex, p.objects.NodensWatch); err != nil {
		return nil, fmt.Errorf("attaching to the ingress: %w", err)
	}
	if a.admit, err = attachOut(ifindex, p.objects.NodensIdle); err != nil {
		_ = a.close()
		return nil, fmt.Errorf("attaching to the egress: %w", err)
	}
	p.links[ifindex] = a
	return a, nil
}

// attachIn puts a program where the one belongs that answers.
func (p *Path) attachIn(ifindex int, program *ebpf.Program) (s stowed, ordered bool, err error) {
	anchor, ordered := p.anchor(ifindex)
	s, err = attach(link.TCXOptions{Interface: ifindex, Program: program, Attach: ebpf.AttachTCXIngress, Anchor: anchor})
	return s, ordered, err
}

// attachOut puts a program where the one belongs that admits: behind all others, so that it
// sees no reply that one of them has dropped.
func attachOut(ifindex int, program *ebpf.Program) (stowed, error) {
	return attach(link.TCXOptions{Interface: ifindex, Program: program, Attach: ebpf.AttachTCXEgress, Anchor: link.Tail()})
}

func attach(opts link.TCXOptions) (stowed, error) {
	l, err := link.AttachTCX(opts)
	if err != nil {
		return none, err
	}
	defer func() { _ = l.Close() }()
	return stow(l.(descriptor).FD())
}

// descriptor is what every [link.Link] of this kind has.
type descriptor interface{ FD() int }

// adjust makes of a what may be there.
func (p *Path) adjust(a *attachment, ifindex int, filtered bool) error {
	there, err := p.neighbours(ifindex)
	if err != nil {
		return err
	}
	there.in.behind = there.in.behind && !a.ordered
	if a.answers && (filtered || there.passedOver()) {
		return p.shut(a)
	}
	if err := p.lookAhead(a, ifindex, there.in); err != nil {
		return err
	}
	if filtered || !a.reopens() {
		return nil
	}
	if err := p.openOut(a, ifindex, there.out.behind); err != nil {
		return err
	}
	return p.openIn(a, ifindex, there.in.behind)
}

// reopens reports whether it is time to answer again.
func (a *attachment) reopens() bool { return !a.answers && now() >= a.until }

// openOut has clients admitted. With others behind it the program moves there.
func (p *Path) openOut(a *attachment, ifindex int, behind bool) error {
	if !behind {
		return a.admit.update(p.objects.NodensAdmit)
	}
	s, err := attachOut(ifindex, p.objects.NodensAdmit)
	if err != nil {
		return err
	}
	_ = a.admit.Close()
	a.admit = s
	return nil
}

// openIn has queries answered, as openOut.
func (p *Path) openIn(a *attachment, ifindex int, behind bool) error {
	a.answers = true
	if !behind {
		return a.answer.update(p.objects.NodensAnswer)
	}
	s, ordered, err := p.attachIn(ifindex, p.objects.NodensAnswer)
	if err != nil {
		return err
	}
	_ = a.answer.Close()
	a.answer, a.ordered = s, ordered
	return nil
}

// shut ends the answers at once: the kernel waits for nothing.
func (p *Path) shut(a *attachment) error {
	a.answers, a.until = false, now()+reopening
	return errors.Join(a.answer.update(p.objects.NodensWatch), a.admit.update(p.objects.NodensIdle))
}

// lookAhead watches in front of programs of others, which may keep packets from the ones
// behind them and still let them into the node. Those behind ours come to be in front of it
// when it moves.
func (p *Path) lookAhead(a *attachment, ifindex int, in row) (err error) {
	others := in.ahead || in.between || in.behind
	if others == (a.ahead != none) && !in.ahead {
		return nil
	}
	_ = a.ahead.Close() // it is of no use, or not the first
	a.ahead = none
	if others {
		a.ahead, err = attach(link.TCXOptions{
			Interface: ifindex, Program: p.objects.NodensAhead, Attach: ebpf.AttachTCXIngress, Anchor: link.Head(),
		})
	}
	return err
}

// anchor is where among the programs that see a pod's packets ours belongs, and whether that
// is because the operator says so.
func (p *Path) anchor(ifindex int) (at link.Anchor, ordered bool) {
	if p.order.First {
		return link.Head(), true
	}
	for name, anchor := range map[string]func(ebpf.ProgramID) link.Anchor{
		p.order.Before: func(id ebpf.ProgramID) link.Anchor { return link.BeforeProgramByID(id) },
		p.order.After:  func(id ebpf.ProgramID) link.Anchor { return link.AfterProgramByID(id) },
	} {
		if id, ok := p.find(ifindex, name); ok {
			return anchor(id), true
		}
	}
	return link.Tail(), false
}

// find looks for the program of that name that sees a pod's packets.
func (p *Path) find(ifindex int, name string) (ebpf.ProgramID, bool) {
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

// neighbours is what others have on an interface, beside the programs of p.
type neighbours struct{ in, out row }

// passedOver reports whether another program would not see what is answered, or that a reply was
// dropped.
func (n neighbours) passedOver() bool { return n.in.behind || n.out.behind }

// row says, of the programs on one side of an interface, whether ours are among them, and
// whether others are in front of the first of ours, between them, and behind the last.
type row struct{ present, ahead, between, behind bool }

func (p *Path) neighbours(ifindex int) (n neighbours, err error) {
	if n.in, err = p.row(ifindex, ebpf.AttachTCXIngress); err == nil {
		n.out, err = p.row(ifindex, ebpf.AttachTCXEgress)
	}
	if err == nil && (!n.in.present || !n.out.present) {
		err = errors.New("the program was detached by another process")
	}
	return n, err
}

func (p *Path) row(ifindex int, side ebpf.AttachType) (r row, err error) {
	list, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: side})
	if err != nil {
		return r, err
	}
	for _, there := range list.Programs {
		switch {
		case slices.Contains(p.own, there.ID):
			r.between = r.between || r.behind
			r.present, r.behind = true, false
		case p.isAgents(there.ID):
		case r.present:
			r.behind = true
		default:
			r.ahead = true
		}
	}
	return r, nil
}

// mostStrangers bounds the programs of others that are remembered. A node has some ten.
const mostStrangers = 1024

// isAgents reports whether a program is that of another agent, which comes or goes: such ones
// let all go on that they don't answer.
func (p *Path) isAgents(id ebpf.ProgramID) bool {
	is, known := p.strangers[id]
	if !known {
		is = strings.HasPrefix(programName(id), "nodens_")
		if len(p.strangers) >= mostStrangers {
			clear(p.strangers)
		}
		p.strangers[id] = is
	}
	return is
}

// Detach is the opposite of [Path.Update]. It needs not be called for an interface that is gone,
// but before another has its index.
func (p *Path) Detach(ifindex int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.detach(ifindex)
}

func (p *Path) detach(ifindex int) {
	if a, ok := p.links[ifindex]; ok {
		_ = a.close()
		delete(p.links, ifindex)
	}
}

// close takes all programs away.
func (a *attachment) close() error {
	return errors.Join(a.answer.Close(), a.ahead.Close(), a.admit.Close())
}

// Links is the number of interfaces on which queries are answered, and of those on which they
// are only watched.
func (p *Path) Links() (answering, watched int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.links {
		if a.answers {
			answering++
		} else {
			watched++
		}
	}
	return answering, watched
}
