package kubernetes

import "strings"

// What an address belongs to is kept ready under it, in order. An answer that goes over it
// takes the view's lock for a few at a time: the lists are as long as tenants make them,
// and who has to change them is not to wait. So an answer may be made of two states; each
// record was true while it was made, and copies are let go if anything has changed.

// ownersPerLock is how many are looked at under the lock at once, about a microsecond. With a
// quarter of it taking the lock would cost as much as what is done under it; and where it
// is more, those behind the last one that finds room in a reply were looked at in vain.
const ownersPerLock = 16

// addrOwner is a slice that an address is in, and the service whose endpoint that makes it.
type addrOwner struct {
	*slice
	svc *service
}

// addrOwners are the slices that the address at is in and that make it an endpoint with a
// name. With a zone it is only those in namespaces that it shows; nil is all.
type addrOwners struct {
	view   *View
	at     addrKey
	zone   *Zone
	budget *Budget
}

// each goes over h, those of a service one after the other, until the budget is spent.
func (h addrOwners) each(yield func(addrOwner) bool) {
	var list [ownersPerLock]addrOwner
	var last *slice
	for more := true; more; {
		h.view.mu.RLock()
		var some []addrOwner
		some, last, more = h.view.index.nextOwners(h.at, last, h.zone, list[:], h.budget)
		h.view.mu.RUnlock()
		for _, x := range some {
			if !yield(x) {
				return
			}
		}
	}
}

// nextOwners gives those among the next slices behind last, nil being before all, as many as
// find room in list, and the last that was looked at. more says that there may be others.
// The view's lock is held.
func (x *index) nextOwners(at addrKey, last *slice, z *Zone, list []addrOwner, b *Budget) (some []addrOwner, end *slice, more bool) {
	r, ok := x.endpoints[at]
	if !ok {
		return nil, last, false
	}
	some, looked := list[:0], 0
	for s := range r.after(last, (*slice).compare) {
		if more = looked == ownersPerLock || len(some) == len(list); more || !b.spend(lookupSteps) {
			break
		}
		looked, last = looked+1, s
		svc := x.services[s.key]
		if svc.hasEndpoints() && (z == nil || z.exposesLocked(namespaceOf(s.key))) {
			some = append(some, addrOwner{s, svc})
		}
	}
	return some, last, more
}

// hasEndpoints reports whether s, which may be nil, is a service whose endpoints
// have names.
func (s *service) hasEndpoints() bool {
	return s != nil && (s.kind == clusterIP || s.kind == headless)
}

// selectingServices are the services that one of the agent's addresses is an endpoint of.
type selectingServices struct {
	view   *View
	budget *Budget
}

// each goes over the services with their keys, each once, until the budget is spent.
func (l selectingServices) each(yield func(string, *service) bool) {
	var seen map[string]struct{} // but for the last one
	last := ""
	for i, a := range l.view.addrs {
		for h := range (addrOwners{l.view, addrKeyOf(packAddr(a)), nil, l.budget}).each {
			if _, dup := seen[h.key]; dup || h.key == last {
				continue
			}
			last = h.key
			if i+1 < len(l.view.addrs) {
				if seen == nil {
					seen = make(map[string]struct{})
				}
				seen[h.key] = struct{}{}
			}
			if !yield(h.key, h.svc) {
				return
			}
		}
	}
}

// externalServices are the services that are reached at the address at from outside, of those in
// namespaces that the zone shows.
type externalServices struct {
	zone   *Zone
	at     addrKey
	budget *Budget
}

// each goes over the keys of l, until the budget is spent.
func (l externalServices) each(yield func(string) bool) {
	var list [ownersPerLock]string
	last := ""
	for more := true; more; {
		var some []string
		some, last, more = l.zone.nextExternalServices(l.at, last, list[:], l.budget)
		for _, key := range some {
			if !yield(key) {
				return
			}
		}
	}
}

// nextExternalServices gives those among the next keys behind last, as many as find room in list,
// and the last that was looked at. more says that there may be others.
func (z *Zone) nextExternalServices(at addrKey, last string, list []string, b *Budget) (some []string, end string, more bool) {
	z.view.mu.RLock()
	defer z.view.mu.RUnlock()
	r, ok := z.view.index.externalAddrs[at]
	if !ok {
		return nil, last, false
	}
	some, looked := list[:0], 0
	for key := range r.after(last, strings.Compare) {
		if more = looked == len(list); more || !b.spend(lookupSteps) {
			break
		}
		looked, last = looked+1, key
		if z.exposesLocked(namespaceOf(key)) {
			some = append(some, key)
		}
	}
	return some, last, more
}
