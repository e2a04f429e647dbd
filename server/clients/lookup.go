package clients

import "net/netip"

// Owner returns whose the address is now. The Pod is the zero value unless it is a pod of this node.
// It takes a lock that readings hold for some milliseconds. The addresses of a nil Table are
// unknown.
func (t *Table) Owner(addr netip.Addr) (Kind, Pod) {
	if t == nil {
		return Unknown, Pod{}
	}
	if o := t.owner(addr); o != nil && o.kind != Unknown {
		return o.kind, o.pod
	}
	if t.opts.Host != nil && t.opts.Host(addr.Unmap()) {
		return Host, Pod{}
	}
	return Unknown, Pod{}
}

// owner returns the owner of the address, nil if it is not known yet. Its kind and pod don't change.
func (t *Table) owner(addr netip.Addr) *owner {
	key := addrKey(addr.As16())
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.addrs[key]; c != nil {
		return c.owner
	}
	return nil
}

// Addrs returns the addresses, in no order, whose owners selects selects. It is called with a lock held, and
// must not call the Table.
func (t *Table) Addrs(selects func(Kind, Pod) bool) (list []netip.Addr) {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, c := range t.addrs {
		if c.owner != nil && selects(c.owner.kind, c.owner.pod) {
			list = append(list, key.addr())
		}
	}
	return list
}
