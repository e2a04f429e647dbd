// Package podrange knows which addresses belong to pods, and says which queries come from the
// same client.
//
// A client is one address if it is a pod's or an IPv4 address. Other IPv6 addresses are grouped
// by /64: a host chooses addresses freely within its /64 (RFC 8981), but a pod network gives
// each pod one address, and often gives all pods of a node one /64.
//
// Whatever limits or divides something by client uses [Ranges.Client] as the key: waiting
// places, the shares of a socket, connections, client_limit. Whatever looks up the pod of an
// address uses the address itself. So does [Ranges.IPv4Only], which says whose pod has no IPv6 address.
package podrange

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nodens-dns/nodens/internal/epoch"
)

// groupBits is the length of the prefix by which IPv6 addresses that are not pods' are grouped.
const groupBits = 64

// Ranges are the addresses of pods. [Ranges.Client], [Ranges.Has] and [Ranges.IPv4Only] take no lock and do not
// allocate; all methods are safe for concurrent use. The zero value and nil know no pods; only the zero value
// can learn of any.
type Ranges struct {
	// Epochs has the counter of [Ranges.Mark]. It is set before the first pod is; nil: there is none.
	Epochs *epoch.Table

	mu       sync.Mutex // serializes changes
	prefixes map[int][]netip.Prefix
	known    atomic.Pointer[known]
}

// known is what readers see. It is not changed in place.
type known struct {
	prefixes []netip.Prefix
	pods     map[netip.Addr]bool // whether the pod is known to have no IPv6 address
}

// Client returns the key of the client at addr: addr itself if it is an IPv4, loopback or
// link-local address or a pod's, otherwise the first address of its /64. An IPv4 address and
// its IPv6-mapped form have the same key, and zones are ignored.
func (r *Ranges) Client(addr netip.Addr) netip.Addr {
	if addr.Is4() {
		return addr
	}
	return r.client6(addr)
}

// client6 is Client for all other addresses, so that Client can be inlined.
func (r *Ranges) client6(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	if !addr.Is6() || addr.IsLoopback() || addr.IsLinkLocalUnicast() || r.has(addr) {
		return addr
	}
	group, err := addr.Prefix(groupBits)
	if err != nil {
		return addr // cannot happen: IPv6 addresses have 128 bits
	}
	return group.Addr()
}

// Has reports whether addr is a pod's. An IPv4 address and its IPv6-mapped form are the same, and zones are ignored.
func (r *Ranges) Has(addr netip.Addr) bool { return r.has(addr.Unmap().WithZone("")) }

// has is Has for an address in its plain form.
func (r *Ranges) has(addr netip.Addr) bool {
	if r == nil {
		return false
	}
	k := r.known.Load()
	if k == nil {
		return false
	}
	for _, p := range k.prefixes {
		if p.Contains(addr) {
			return true
		}
	}
	_, ok := k.pods[addr]
	return ok
}

// SetPrefixes replaces the ranges from which pods get their addresses, by one source: the
// podCIDRs of a Node. The ranges of several sources add up.
func (r *Ranges) SetPrefixes(source int, prefixes []netip.Prefix) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.prefixes == nil {
		r.prefixes = make(map[int][]netip.Prefix)
	}
	delete(r.prefixes, source)
	for _, p := range prefixes {
		if p.IsValid() && !p.Addr().Is4In6() {
			r.prefixes[source] = append(r.prefixes[source], p.Masked())
		}
	}
	k := r.copy()
	k.prefixes = nil
	for _, list := range r.prefixes {
		for _, p := range list {
			if !slices.Contains(k.prefixes, p) {
				k.prefixes = append(k.prefixes, p)
			}
		}
	}
	r.known.Store(k)
}

// SetPod records whether addr is a pod's address, and whether it is known that this pod has no IPv6 address. It takes
// time in proportion to the number of addresses of pods, which are those of one node.
func (r *Ranges) SetPod(addr netip.Addr, pod, ipv4Only bool) {
	addr = addr.Unmap().WithZone("")
	ipv4Only = ipv4Only && pod
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.copy()
	was, is := k.pods[addr]
	if is == pod && was == ipv4Only {
		return
	}
	if k.pods = maps.Clone(k.pods); k.pods == nil {
		k.pods = make(map[netip.Addr]bool)
	}
	if pod {
		k.pods[addr] = ipv4Only
	} else {
		delete(k.pods, addr)
	}
	if was == ipv4Only {
		r.known.Store(k)
		return
	}
	// Readers take no lock. What one has found out before the new state is visible ends with the second of the marks.
	r.Epochs.Bump(familyGroup)
	r.known.Store(k)
	r.Epochs.Bump(familyGroup)
}

// familyGroup is the group in [Ranges.Epochs] whose counter moves when a pod gets or loses its IPv6 addresses.
const familyGroup = 0

// IPv4Only reports whether addr is the address of a pod that has no IPv6 address. It is false for addresses of no known
// pod.
func (r *Ranges) IPv4Only(addr netip.Addr) bool {
	if r == nil {
		return false
	}
	k := r.known.Load()
	return k != nil && k.pods[addr.Unmap().WithZone("")]
}

// Mark returns the mark of all results of [Ranges.IPv4Only]: while it matches, these are what they were, if it was read before
// them and [epoch.Table.Any] has not moved in between. Its index is 0 without a table.
func (r *Ranges) Mark() epoch.Mark {
	if r == nil || r.Epochs == nil {
		return epoch.Mark{}
	}
	return r.Epochs.Mark(familyGroup)
}

// copy returns a shallow copy of what is known. The caller holds r.mu.
func (r *Ranges) copy() *known {
	if k := r.known.Load(); k != nil {
		c := *k
		return &c
	}
	return new(known)
}
