package app

import (
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
)

// hostAddrs knows the addresses of this machine. It caches them for hostAddrsAge, because a
// node of a large cluster may have thousands. It is safe for concurrent use. A nil hostAddrs
// knows only loopback addresses.
type hostAddrs struct {
	list func() ([]net.Addr, error) // net.InterfaceAddrs

	cached     atomic.Pointer[hostAddrList] // nil: not read yet
	refreshing atomic.Bool
}

// hostAddrList is the list as it was read. It is not changed.
type hostAddrList struct {
	known map[netip.Addr]struct{}
	at    time.Duration // when it was read, by package clock
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
	if h.stale() {
		h.refresh()
	}
	return h.lists(addr)
}

// knows is has for callers that must not wait: it takes no lock, and the list may be read again while it
// answers from the previous one.
func (h *hostAddrs) knows(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	if addr.IsLoopback() || h == nil {
		return addr.IsLoopback()
	}
	if h.stale() && h.refreshing.CompareAndSwap(false, true) {
		go func() {
			defer h.refreshing.Store(false)
			h.refresh()
		}()
	}
	return h.lists(addr)
}

// stale reports whether the list has to be read.
func (h *hostAddrs) stale() bool {
	list := h.cached.Load()
	return list == nil || clock.Now()-list.at > hostAddrsAge
}

// lists reports whether the list has addr.
func (h *hostAddrs) lists(addr netip.Addr) bool {
	list := h.cached.Load()
	if list == nil {
		return false
	}
	_, ok := list.known[addr]
	return ok
}

// refresh reads the list now. On an error it keeps the previous one.
func (h *hostAddrs) refresh() {
	if h == nil {
		return
	}
	next := &hostAddrList{}
	list, err := h.list() // some milliseconds on a node with thousands of addresses
	if err == nil {
		next.known = make(map[netip.Addr]struct{}, len(list))
		for _, a := range list {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				next.known[p.Addr().Unmap()] = struct{}{}
			}
		}
	} else if before := h.cached.Load(); before != nil {
		next.known = before.known
	}
	next.at = clock.Now()
	h.cached.Store(next)
}
