package main

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
)

// hostAddrs tells the addresses of this machine from others. They are read when somebody
// asks, and again a minute later: addresses come and go, and a node of a large cluster
// may have thousands. It is safe for concurrent use. A nil hostAddrs knows only loopback
// addresses.
type hostAddrs struct {
	list func() ([]net.Addr, error) // net.InterfaceAddrs

	mu    sync.Mutex
	known map[netip.Addr]struct{}
	at    time.Duration // when known was read, by package clock
}

// hostAddrsAge is how old the list of addresses may be.
const hostAddrsAge = time.Minute

func newHostAddrs() *hostAddrs { return &hostAddrs{list: net.InterfaceAddrs} }

// has reports whether addr is an address of this machine. Nobody else can complete a TCP
// handshake from one: the reply never leaves the machine.
func (h *hostAddrs) has(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	if addr.IsLoopback() || h == nil {
		return addr.IsLoopback()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known == nil || clock.Now()-h.at > hostAddrsAge {
		h.read()
	}
	_, ok := h.known[addr]
	return ok
}

// read reads the list anew. If that fails, the one before stays. The caller holds h.mu.
func (h *hostAddrs) read() {
	h.at = clock.Now()
	list, err := h.list()
	if err != nil {
		return
	}
	h.known = make(map[netip.Addr]struct{}, len(list))
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			h.known[p.Addr().Unmap()] = struct{}{}
		}
	}
}
