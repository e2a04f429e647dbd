package app

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
)

// hostAddrs knows the addresses of this machine. It caches them for hostAddrsAge, because a
// node of a large cluster may have thousands. It is safe for concurrent use. A nil hostAddrs
// knows only loopback addresses.
type hostAddrs struct {
	list func() ([]net.Addr, error) // net.InterfaceAddrs

	mu    sync.Mutex
	known map[netip.Addr]struct{} // not changed in place
	at    time.Duration           // when known was read, by package clock
}

// hostAddrsAge is the age at which the list of addresses is read again.
const hostAddrsAge = time.Minute

func newHostAddrs() *hostAddrs { return &hostAddrs{list: net.InterfaceAddrs} }

// has reports whether addr is an address of this machine. Other machines cannot complete a TCP
// handshake from one, because the reply never leaves this machine.
func (h *hostAddrs) has(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	if addr.IsLoopback() || h == nil {
		return addr.IsLoopback()
	}
	known, at := h.cached()
	if known == nil || clock.Now()-at > hostAddrsAge {
		h.refresh()
		known, _ = h.cached()
	}
	_, ok := known[addr]
	return ok
}

func (h *hostAddrs) cached() (known map[netip.Addr]struct{}, at time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.known, h.at
}

// refresh reads the list now. On an error it keeps the previous one.
func (h *hostAddrs) refresh() {
	if h == nil {
		return
	}
	list, err := h.list() // some milliseconds on a node with thousands of addresses
	var known map[netip.Addr]struct{}
	if err == nil {
		known = make(map[netip.Addr]struct{}, len(list))
		for _, a := range list {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				known[p.Addr().Unmap()] = struct{}{}
			}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at = clock.Now(); known != nil {
		h.known = known
	}
}
