package kubernetes

import (
	"sync"
	"sync/atomic"

	"github.com/nodens-dns/nodens/internal/wire"
)

// maxEagerEndpoints is the number of endpoints up to which addresses are merged when a
// slice changes, which takes 10 µs.
const maxEagerEndpoints = 200

// lazyAddrs are the merged addresses of a large headless service. The first answer that
// needs them merges them, not the change of a slice: that would hold the view's lock for as
// long as there are endpoints.
type lazyAddrs struct {
	nearestOnly      bool
	endpoints        int
	once             sync.Once
	built            atomic.Bool
	v4, v6           string
	bounds4, bounds6 localityBounds
}

// updateHeadlessAddrs sets the addresses of a headless service's name. old is the service
// that s replaces, nil if none: if the slices are the same, its addresses are reused.
func (s *service) updateHeadlessAddrs(old *service, narrow bool) {
	if old != nil && old.kind == headless && old.lazy != nil && old.distribution == s.distribution && sameBacking(old.slices, s.slices) {
		s.lazy = old.lazy
		return
	}
	total, lists := 0, 0
	for _, sl := range s.slices {
		if sl.addrs != "" {
			total, lists = total+sl.len(), lists+1
		}
	}
	s.lazy = nil
	if lists > 1 && total > maxEagerEndpoints {
		s.v4, s.v6, s.bounds4, s.bounds6 = "", "", localityBounds{}, localityBounds{}
		s.lazy = &lazyAddrs{nearestOnly: narrow, endpoints: total}
		return
	}
	s.v4, s.bounds4 = s.headlessAddrs(4, narrow)
	s.v6, s.bounds6 = s.headlessAddrs(16, narrow)
}

// sameBacking reports whether a and b are the same slice in memory.
func sameBacking(a, b []*slice) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// addrs returns the packed RDATA of the addresses of qtype, and where the next distance
// begins in it. It returns nothing if b is exhausted.
func (s *service) addrs(qtype uint16, b *Budget) (packed string, cut localityBounds) {
	switch all := s.lazy; {
	case all == nil && qtype == wire.TypeA:
		return s.v4, s.bounds4
	case all == nil:
		return s.v6, s.bounds6
	case !all.built.Load() && !b.spend(dedupSteps*all.endpoints):
		return "", localityBounds{}
	default:
		all.once.Do(func() { all.build(s) })
		if qtype == wire.TypeA {
			return all.v4, all.bounds4
		}
		return all.v6, all.bounds6
	}
}

func (b *lazyAddrs) build(s *service) {
	b.v4, b.bounds4 = s.headlessAddrs(4, b.nearestOnly)
	b.v6, b.bounds6 = s.headlessAddrs(16, b.nearestOnly)
	b.built.Store(true)
}
