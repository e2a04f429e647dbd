package fastpath

import (
	"fmt"
	"net/netip"
	"sync/atomic"
)

// anyPort is the number that the address of a door has where the port does not count.
const anyPort = 1

// SetListeners says at which addresses the agent listens, and the number of what is served there,
// which is not 0: an answer is given only at a door of its own number. An empty map: at none.
// On an error there are no doors, or fewer.
func (p *Program) SetListeners(doors map[netip.AddrPort]uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	want, ports := make(map[programDoor]uint32), uint64(0)
	for at, n := range doors {
		d := listenerKey(at)
		want[d], want[programDoor{Addr: d.Addr, Any: 1}] = n, anyPort
		ports |= 1 << (at.Port() & 63)
	}
	for d, n := range p.listeners {
		if want[d] != n {
			if err := p.objects.Doors.Delete(&d); err != nil {
				return fmt.Errorf("closing a door: %w", err)
			}
			delete(p.listeners, d)
		}
	}
	atomic.StoreUint64(&p.state.Ports, ports)
	for d, n := range want {
		if err := p.objects.Doors.Put(&d, n); err != nil {
			return fmt.Errorf("opening a door: %w", err)
		}
	}
	p.listeners = want
	return nil
}

// listenerKey is the key of an address: IPv4 in mapped form, and the port as in packets.
func listenerKey(at netip.AddrPort) programDoor {
	b := at.Addr().As16()
	d := programDoor{Port: at.Port()<<8 | at.Port()>>8}
	for i := range d.Addr {
		d.Addr[i] = uint32(b[4*i]) | uint32(b[4*i+1])<<8 | uint32(b[4*i+2])<<16 | uint32(b[4*i+3])<<24
	}
	return d
}
