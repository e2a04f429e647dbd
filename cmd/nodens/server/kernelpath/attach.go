package kernelpath

import (
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Attach has queries that come in on a link answered. Attaching twice is no error. A link
// that goes takes what is attached along.
func (p *Path) Attach(ifindex int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.links[ifindex]; ok {
		return nil
	}
	// The one that admits is attached first, as nobody is answered without it, and stands
	// behind all others, so that it sees no reply that one of them has dropped.
	admit, err := link.AttachTCX(link.TCXOptions{
		Interface: ifindex, Program: p.objects.NodensAdmit, Attach: ebpf.AttachTCXEgress, Anchor: link.Tail(),
	})
	if err != nil {
		return fmt.Errorf("attaching to the egress of link %d: %w", ifindex, explain(err))
	}
	defer func() { _ = admit.Close() }()
	answer, err := link.AttachTCX(link.TCXOptions{
		Interface: ifindex, Program: p.objects.NodensAnswer, Attach: ebpf.AttachTCXIngress, Anchor: p.anchor(ifindex),
	})
	if err != nil {
		return fmt.Errorf("attaching to the ingress of link %d: %w", ifindex, explain(err))
	}
	defer func() { _ = answer.Close() }()
	p.links[ifindex], err = stow(answer.(descriptor).FD(), admit.(descriptor).FD())
	if err != nil {
		delete(p.links, ifindex)
	}
	return err
}

// descriptor is what every [link.Link] of this kind has.
type descriptor interface{ FD() int }

// anchor is where among the programs that see a pod's packets ours belongs.
func (p *Path) anchor(ifindex int) link.Anchor {
	if p.order.First {
		return link.Head()
	}
	for name, anchor := range map[string]func(ebpf.ProgramID) link.Anchor{
		p.order.Before: func(id ebpf.ProgramID) link.Anchor { return link.BeforeProgramByID(id) },
		p.order.After:  func(id ebpf.ProgramID) link.Anchor { return link.AfterProgramByID(id) },
	} {
		if id, ok := attached(ifindex, name); ok {
			return anchor(id)
		}
	}
	return link.Tail()
}

// attached finds the program of that name that sees a pod's packets.
func attached(ifindex int, name string) (ebpf.ProgramID, bool) {
	if name == "" {
		return 0, false
	}
	list, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return 0, false
	}
	for _, there := range list.Programs {
		program, err := ebpf.NewProgramFromID(there.ID)
		if err != nil {
			continue
		}
		info, err := program.Info()
		_ = program.Close()
		if err == nil && info.Name == name {
			return there.ID, true
		}
	}
	return 0, false
}

// Detach is the opposite of [Path.Attach]. It needs not be called for a link that is gone, but
// before another has its index.
func (p *Path) Detach(ifindex int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.detach(ifindex)
}

func (p *Path) detach(ifindex int) {
	if l, ok := p.links[ifindex]; ok {
		_ = l.Close()
		delete(p.links, ifindex)
	}
}

// Links is the number of links that have the program.
func (p *Path) Links() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// SetDoors says at which addresses the agent listens, and the number of what is served there,
// which is not 0: an answer is given only at a door of its own number. An empty map: at none.
// On an error there are no doors, or fewer.
func (p *Path) SetDoors(doors map[netip.AddrPort]uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	want, ports := make(map[programDoor]uint32), uint64(0)
	for at, n := range doors {
		want[doorOf(at)] = n
		ports |= 1 << (at.Port() & 63)
	}
	for d, n := range p.doors {
		if want[d] != n {
			if err := p.objects.Doors.Delete(&d); err != nil {
				return fmt.Errorf("closing a door: %w", err)
			}
			delete(p.doors, d)
		}
	}
	atomic.StoreUint64(&p.state.Ports, ports)
	for d, n := range want {
		if err := p.objects.Doors.Put(&d, n); err != nil {
			return fmt.Errorf("opening a door: %w", err)
		}
	}
	p.doors = want
	return nil
}

// doorOf is the key of an address: IPv4 in mapped form, and the port as in packets.
func doorOf(at netip.AddrPort) programDoor {
	b := at.Addr().As16()
	d := programDoor{Port: at.Port()<<8 | at.Port()>>8}
	for i := range d.Addr {
		d.Addr[i] = uint32(b[4*i]) | uint32(b[4*i+1])<<8 | uint32(b[4*i+2])<<16 | uint32(b[4*i+3])<<24
	}
	return d
}

// results are the names of what becomes of a query.
var results = [...]string{
	programResultANSWERED: "answered",
	programResultMISS:     "miss",
	programResultSHAPE:    "shape",
	programResultEXPIRED:  "expired",
	programResultCHANGED:  "changed",
	programResultLAPSED:   "lapsed",
	programResultSTRANGER: "stranger",
	programResultRENEWAL:  "renewal",
	programResultBUSY:     "busy",
	programResultFAILED:   "failed",
}

// Counters adds up what each CPU has counted.
func (p *Path) Counters() Counters {
	c := Counters{Results: make(map[string]uint64, len(results))}
	for i, name := range results {
		c.Results[name] = p.count(programResult(i))
	}
	return c
}

// count is one of the counters, of all CPUs.
func (p *Path) count(at programResult) (n uint64) {
	var each []uint64
	if p.objects.Counters.Lookup(uint32(at), &each) != nil {
		return 0
	}
	for _, v := range each {
		n += v
	}
	return n
}
