package clients

import "net/netip"

// CountKernel counts answered queries of addr that the kernel has answered, nxdomain of them
// with NXDOMAIN and the others with NOERROR, since the last call. wasted is the number of answers in nxdomain
// that are search waste. A nil Table counts nothing.
func (t *Table) CountKernel(addr netip.Addr, answered, nxdomain, wasted uint64) {
	if t == nil || answered == 0 {
		return
	}
	key := addrKey(addr.As16())
	h := t.hash(&key)
	t.countTaken(&t.stripes[0], key, h, func(sl *slot) {
		sl.add(noError, answered-nxdomain)
		sl.add(nxDomain, nxdomain)
		sl.add(hits, answered)
		sl.add(kernel, answered)
		sl.add(waste, wasted)
	})
}

// SetKernelSample says that one in n of the answers that [Table.CountKernel] counts is passed to
// [Table.SampleKernel], chosen at random. A nil Table ignores it.
func (t *Table) SetKernelSample(n int) {
	if t != nil {
		t.kernelSample.Store(uint32(n))
	}
}

// SampleKernel adds an answer of the kernel to the tables of names, with the number of answers that it stands for as
// its weight. name and wasted are as in [Query]. A nil Table ignores it.
func (t *Table) SampleKernel(addr netip.Addr, name []byte, wasted bool) {
	if t == nil || len(name) == 0 {
		return
	}
	t.mu.Lock()
	id := uint32(0)
	if c := t.takeSlot(addr.As16()); c != nil {
		id = c.identity
	}
	t.mu.Unlock()
	t.names.addSample(&t.stripes[0], id, &Query{Name: name, Waste: wasted, Now: t.opts.Clock()}, uint64(t.kernelSample.Load()), false)
}
