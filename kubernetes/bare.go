package kubernetes

import (
	"sync"
	"sync/atomic"

	"github.com/nodens-dns/nodens/internal/wire"
)

// The bare name of a headless service gives the addresses of all its slices, each once, the
// nearest first. To put them together takes as long as there are endpoints, and that with
// each change of a slice: where there are many it is not done under the view's lock, but for
// the first answer that needs them.

// fewEndpoints is how many are put together when a slice changes. That takes 10 µs; with
// twice as many, all who ask would wait that much longer, and with half, the second slice
// of a service would make its first answer after a change slower.
const fewEndpoints = 200

// bare is the addresses of a service's bare name, as fields of the service have them
// elsewhere.
type bare struct {
	narrow     bool
	total      int // endpoints
	once       sync.Once
	made       atomic.Bool
	v4, v6     string
	far4, far6 places
}

// unite prepares the addresses of the bare name of s, which takes the place of old (nil:
// none).
func (s *service) unite(old *service, narrow bool) {
	if old != nil && old.kind == headless && old.bare != nil && old.nearest == s.nearest && sameList(old.slices, s.slices) {
		s.bare = old.bare
		return
	}
	total, lists := 0, 0
	for _, sl := range s.slices {
		if sl.addrs != "" {
			total, lists = total+sl.len(), lists+1
		}
	}
	s.bare = nil
	if lists > 1 && total > fewEndpoints {
		s.v4, s.v6, s.far4, s.far6 = "", "", places{}, places{}
		s.bare = &bare{narrow: narrow, total: total}
		return
	}
	s.v4, s.far4 = s.union(4, narrow)
	s.v6, s.far6 = s.union(16, narrow)
}

// sameList reports whether a and b are one list, not only alike.
func sameList(a, b []*slice) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// addrs is the packed RDATA of the addresses of qtype, and where those of the next distance
// begin. Once b is spent it is nothing.
func (s *service) addrs(qtype uint16, b *Budget) (packed string, cut places) {
	switch all := s.bare; {
	case all == nil && qtype == wire.TypeA:
		return s.v4, s.far4
	case all == nil:
		return s.v6, s.far6
	case !all.made.Load() && !b.take(seenSteps*all.total):
		return "", places{}
	default:
		all.once.Do(func() { all.make(s) })
		if qtype == wire.TypeA {
			return all.v4, all.far4
		}
		return all.v6, all.far6
	}
}

func (b *bare) make(s *service) {
	b.v4, b.far4 = s.union(4, b.narrow)
	b.v6, b.far6 = s.union(16, b.narrow)
	b.made.Store(true)
}
