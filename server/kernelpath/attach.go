package kernelpath

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

// reopenDelay is for how long an interface is only watched before queries are answered
// there again. By then every client that was admitted by a reply has expired, including
// those whose reply was dropped by a program behind ours.
const reopenDelay = 2 * time.Second

// attachment is the programs on one interface. Each has its own link. Which program a link
// runs changes in place, as other programs on the interface come and go.
type attachment struct {
	answer keptLink // runs nodens_answer or nodens_watch
	admit  keptLink // runs nodens_admit or nodens_idle
	front  keptLink // runs nodens_ahead in front of other programs; noLink if there are none
	count  keptLink // runs nodens_count; noLink without Options.Bypass
	// answering is set while queries are answered here; otherwise they are only watched.
	answering bool
	// positioned is set if the operator has chosen the position of answer. Programs behind
	// it are then meant not to see answered queries.
	positioned bool
	watchUntil time.Duration // earliest time to answer again, on the kernel's clock
}

// Update inspects the other programs on an interface and answers queries there if that
// bypasses none of them; otherwise it only watches. filtered says that the interface has
// tc filters, which run after all tcx programs. Call it for each new interface of a pod
// and then at short intervals, because the kernel has no notifications for tcx. An
// interface that is deleted takes its programs with it.
//
// On an error nothing is attached, and queries are not even watched. The error wraps
// [ErrGone] if the interface no longer exists.
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
		p.detach(ifindex) // the next Update starts afresh
		return false, fmt.Errorf("interface %d: %w", ifindex, err)
	}
	return a.answering, nil
}

// attachment returns the attachment of an interface. A new one neither answers nor admits.
func (p *Program) attachment(ifindex int) (*attachment, error) {
	if a := p.links[ifindex]; a != nil {
		return a, nil
	}
	a := &attachment{answer: noLink, admit: noLink, front: noLink, count: noLink}
	var err error
	if a.answer, a.positioned, err = p.attachIngress(ifindex, p.objects.NodensWatch); err != nil {
		return nil, fmt.Errorf("attaching to the ingress: %w", err)
	}
	if a.admit, err = attachEgress(ifindex, p.objects.NodensIdle); err != nil {
		_ = a.close()
		return nil, fmt.Errorf("attaching to the egress: %w", err)
	}
	if a.count, err = p.attachBypass(ifindex); err != nil {
		_ = a.close()
		return nil, fmt.Errorf("attaching the program that counts: %w", err)
	}
	p.links[ifindex] = a
	return a, nil
}

// attachIngress attaches program to the ingress, at the configured position.
func (p *Program) attachIngress(ifindex int, program *ebpf.Program) (s keptLink, ordered bool, err error) {
	anchor, ordered := p.anchor(ifindex)
	s, err = attach(link.TCXOptions{Interface: ifindex, Program: program, Attach: ebpf.AttachTCXIngress, Anchor: anchor})
	return s, ordered, err
}

// attachEgress attaches program to the egress, behind all others, so that it sees no reply
// that one of them has dropped.
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

// descriptor is implemented by every tcx link.
type descriptor interface{ FD() int }

// reconcile adapts a to the other programs on its interface.
func (p *Program) reconcile(a *attachment, ifindex int, filtered bool) error {
	there, err := p.otherPrograms(ifindex)
	if err != nil {
		return err
	}
	there.in.behind = there.in.behind && !a.positioned
	if a.answering && (filtered || there.bypassed()) { // swapping the programs does not block
		a.answering, a.watchUntil = false, kernelNow()+reopenDelay
		return errors.Join(a.answer.update(p.objects.NodensWatch), a.admit.update(p.objects.NodensIdle))
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

// mayAnswer reports whether a is not answering and reopenDelay has passed.
func (a *attachment) mayAnswer() bool { return !a.answering && kernelNow() >= a.watchUntil }

// startAdmitting starts to admit clients. If other programs are behind ours, ours moves
// behind them.
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

// startAnswering starts to answer queries. If other programs are behind ours, ours moves
// behind them.
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

// placeFront attaches a watching program in front of other programs, which may hide
// packets from the programs behind them and still deliver them to the node. It moves the
// program if others are in front of it, and removes it if there are no others.
func (p *Program) placeFront(a *attachment, ifindex int, in positions) (err error) {
	others := in.ahead || in.between || in.behind
	if others == (a.front != noLink) && !in.ahead {
		return nil
	}
	_ = a.front.Close() // no longer needed, or no longer the first
	a.front = noLink
	if others {
		a.front, err = attach(link.TCXOptions{
			Interface: ifindex, Program: p.objects.NodensAhead, Attach: ebpf.AttachTCXIngress, Anchor: link.Head(),
		})
	}
	return err
}

// anchor returns where on the ingress our program belongs, and whether the operator has
// chosen that position.
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

// findProgram returns the program with that name on an interface's ingress.
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

// checkOrder returns an error if the order depends on the name of another program, and the kernel does not tell this process names.
func (p *Program) checkOrder() error {
	if p.order.Before == "" && p.order.After == "" {
		return nil
	}
	program, err := ebpf.NewProgramFromID(p.own[0])
	if errors.Is(err, unix.EPERM) {
		return errors.New("--kernel-path-order=before:NAME and after:NAME need the capability SYS_ADMIN, to read the names of other programs: add it, or choose first or last")
	}
	if err != nil {
		return fmt.Errorf("reading the name of a program: %w", err)
	}
	return program.Close()
}

// programName returns the name of a program in the kernel, "" if it no longer exists or this process lacks the capability SYS_ADMIN.
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

// otherPrograms is where programs that are not p's are on an interface, relative to p's.
type otherPrograms struct{ in, out positions }

// bypassed reports whether another program would miss an answered query, or has dropped a
// reply that ours has already seen.
func (n otherPrograms) bypassed() bool { return n.in.behind || n.out.behind }

// positions describes the programs on one side of an interface: whether ours are present,
// and whether others are in front of our first, between ours, or behind our last.
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

// maxKnownPrograms limits how many programs isAgentProgram remembers. A node has about ten.
const maxKnownPrograms = 1024

// isAgentProgram reports whether a program belongs to another agent, during a hand-over, or is nodens_count.
// Such a program passes on everything that it does not answer.
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

// Detach undoes [Program.Update]. It is not needed for an interface that is gone, except
// before another interface has its index.
func (p *Program) Detach(ifindex int) {
	p.clients.forgetIdle(ifindex)
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

// close detaches all programs.
func (a *attachment) close() error {
	return errors.Join(a.answer.Close(), a.front.Close(), a.admit.Close(), a.count.Close())
}

// Links returns the number of interfaces on which queries are answered, and on which they
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

// attachBypass attaches the program that counts to an interface, behind the other programs, so that it does not run for queries
// that are answered. Without a reporter it returns noLink.
func (p *Program) attachBypass(ifindex int) (keptLink, error) {
	if p.bypass.reporter == nil {
		return noLink, nil
	}
	return attach(link.TCXOptions{Interface: ifindex, Program: p.objects.NodensCount, Attach: ebpf.AttachTCXIngress, Anchor: link.Tail()})
}
