package kubernetes

// The owners of an address are kept in order. An answer that iterates over them takes the
// view's lock for a few at a time: tenants decide how long the lists are, and changes must
// not wait. So an answer may mix two states. Each record was true when it was written, and
// copies of the answer are invalid after any change.

// ownersPerLock is how many owners are looked at under one lock, for about a microsecond.
// Owners beyond the last one that the reply has room for are looked at in vain.
const ownersPerLock = 16

// addrOwner is a slice that contains an address, and its service.
type addrOwner struct {
	*slice
	svc *service
}

// addrOwners iterates over the slices that contain the address at, and thereby give it a
// name. zone limits them to the namespaces that it exposes; nil is all.
type addrOwners struct {
	view   *View
	at     addrKey
	zone   *Zone
	budget *Budget
}

// each yields the owners, grouped by service, until the budget is exhausted.
func (h addrOwners) each(yield func(addrOwner) bool) {
	var list [ownersPerLock]addrOwner
	var last *sliceRef
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

// selectingServices iterates over the services that one of the agent's addresses is an
// endpoint of.
type selectingServices struct {
	view   *View
	budget *Budget
}

// each yields each service once with its key, until the budget is exhausted.
func (l selectingServices) each(yield func(string, *service) bool) {
	var seen map[string]struct{} // except the last
	last := ""
	for i, a := range l.view.addrs {
		if l.view.IsClusterIP(a) {
			continue // no pod has it, but any tenant can write it into a slice
		}
		for h := range (addrOwners{l.view, addrKeyOf(packAddr(a)), nil, l.budget}).each {
			if _, dup := seen[h.key]; dup || h.key == last {
				continue
			}
			last = h.key
			if !l.view.trustsSlicesOf(h.key) {
				continue // any tenant can write the agent's address into a slice
			}
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

// trustsSlicesOf reports whether slices of the service with that key may have the agent's
// addresses: it is in the agent's own namespace, or that is unknown.
func (v *View) trustsSlicesOf(key string) bool {
	return v.ownNamespace == "" || namespaceOf(key) == v.ownNamespace
}

// externalServices iterates over the services that are externally reachable at an address,
// in namespaces that the zone exposes.
type externalServices struct {
	zone   *Zone
	at     addrKey
	budget *Budget
}

// each yields the services' keys until the budget is exhausted.
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
