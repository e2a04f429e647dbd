package fastpath

import (
	"fmt"
	"net/netip"
	"sync/atomic"
)

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
