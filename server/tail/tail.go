// Package tail passes finished queries to `nodens tail` while it runs.
//
// A [Feed] belongs to the agent. The query path asks [Feed.Attached] for each finished query, which is
// one atomic load. While there are subscriptions it asks [Feed.Watches] for the client, then
// [Feed.Take], and describes only the queries that a subscription takes. A [Subscription] takes at most a
// thousand queries a second, and none while its queue is full: the query path never waits. It counts
// what it did not take.
package tail

import (
	"errors"
	"math/bits"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// maxSubscribers bounds the subscriptions at once: a few operators.
	maxSubscribers = 4
	// maxPerSecond bounds the queries of a subscription in each second.
	maxPerSecond = 1000
	// maxQueued bounds the queries that wait for the reader of a subscription, some 300 bytes
	// each.
	maxQueued = 1024
)

// ErrTooMany is the error of [Feed.Subscribe] beyond four subscriptions.
var ErrTooMany = errors.New("four commands follow queries already; end one of them")

// Key is what filters look at.
type Key struct {
	Client netip.Addr
	// Name is in lower case and wire form.
	Name []byte
	// NoReply says that the client got no reply; Rcode is meaningless.
	NoReply bool
	Rcode   wire.Rcode
	Latency time.Duration
	// Now is the time of the reply by package clock.
	Now time.Duration
}

// Query describes a finished query. Texts that do not apply are empty. It is immutable.
type Query struct {
	Time   time.Time // of the arrival
	Client netip.AddrPort
	// Namespace is (host) for the node itself, and (unknown) for an address of no known pod.
	Namespace, Pod, Workload string
	Proto, Name, Type        string
	Rcode                    string // "" without a reply
	Zone, View, Source       string
	// Cache is hit, stale or miss. Age is the time since the reply came from upstream, -1 if it is
	// not known.
	Cache    string
	Age      time.Duration
	Upstream string
	// Exchange is the time for which the query has waited for upstreams, and ViewWait the time for the
	// view of the cluster.
	Exchange, ViewWait time.Duration
	Hedged             bool
	HedgeWon           bool
	SearchPath         string
	// Policy is the DNSPolicy that denies the name, or would if it were not in audit mode, as NAMESPACE/NAME.
	Policy  string
	Latency time.Duration
	Err     string
}

// Filter selects queries. The zero Filter selects all.
type Filter struct {
	// Name selects this name and all names below it; "" selects all.
	Name wire.Name
	// HasRcode selects by Rcode.
	HasRcode bool
	Rcode    wire.Rcode
	// Slow is the least latency.
	Slow time.Duration
	// Selected limits the subscription to the clients of [Subscription.SetClients]; before the first call, to none.
	Selected bool
}

// Feed passes finished queries to subscriptions. The zero Feed is ready; a nil one has no
// subscriptions. It is safe for concurrent use.
type Feed struct {
	subscriptions atomic.Pointer[[]*Subscription] // nil: none
	mu            sync.Mutex                      // of changes
}

// Attached reports whether there are subscriptions.
func (f *Feed) Attached() bool { return f != nil && f.subscriptions.Load() != nil }

// Watches reports whether a subscription selects the client. It does not allocate.
func (f *Feed) Watches(client netip.Addr) bool {
	if f == nil {
		return false
	}
	list := f.subscriptions.Load()
	if list == nil {
		return false
	}
	for _, s := range *list {
		if s.watches(client) {
			return true
		}
	}
	return false
}

// Takers are the subscriptions that take a query.
type Takers struct {
	list *[]*Subscription
	set  uint8 // bit i: the i-th one of list
}

// Any reports whether a subscription takes the query.
func (t Takers) Any() bool { return t.set != 0 }

// Take returns the subscriptions that take the query: those that select it, except where the limit of the
// second is reached or the queue is full. The caller describes the query only for these.
func (f *Feed) Take(k *Key) (t Takers) {
	t.list = f.subscriptions.Load()
	if t.list == nil {
		return t
	}
	for i, s := range *t.list {
		if s.selects(k) && s.admit(k) {
			t.set |= 1 << i
		}
	}
	return t
}

// Send passes q to the takers. It does not block.
func (t Takers) Send(q *Query) {
	for set := t.set; set != 0; set &= set - 1 {
		s := (*t.list)[bits.TrailingZeros8(set)]
		select {
		case s.queue <- q:
		default: // other queries have filled it since Take
			s.slow.Add(1)
		}
	}
}

// Subscribe adds a subscription. The caller closes it.
func (f *Feed) Subscribe(filter Filter) (*Subscription, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.list()
	if len(list) >= maxSubscribers {
		return nil, ErrTooMany
	}
	s := &Subscription{feed: f, filter: filter, queue: make(chan *Query, maxQueued)}
	list = append(list, s)
	f.subscriptions.Store(&list)
	return s, nil
}

// list returns a copy of the subscriptions.
func (f *Feed) list() []*Subscription {
	if list := f.subscriptions.Load(); list != nil {
		return slices.Clone(*list)
	}
	return nil
}

// Subscription receives queries.
type Subscription struct {
	feed   *Feed
	filter Filter
	queue  chan *Query
	// clients are the selected clients; nil: none.
	clients atomic.Pointer[addrSet]
	// second is the last second with a query, count the queries in it.
	second, count atomic.Int64
	limited, slow atomic.Uint64
}

// Queries returns the channel of the queries. It is never closed.
func (s *Subscription) Queries() <-chan *Query { return s.queue }

// SetClients sets the selected clients. It keeps the list, which must not change.
func (s *Subscription) SetClients(addrs []netip.Addr) { s.clients.Store(newAddrSet(addrs)) }

// fewAddrs is the length up to which a list is faster than a map.
const fewAddrs = 8

// addrSet is a set of addresses. It is immutable.
type addrSet struct {
	list []netip.Addr            // if there are few
	all  map[netip.Addr]struct{} // else
}

func newAddrSet(addrs []netip.Addr) *addrSet {
	if len(addrs) <= fewAddrs {
		return &addrSet{list: addrs}
	}
	set := &addrSet{all: make(map[netip.Addr]struct{}, len(addrs))}
	for _, addr := range addrs {
		set.all[addr] = struct{}{}
	}
	return set
}

// has reports whether addr is in the set. A nil set is empty.
func (x *addrSet) has(addr netip.Addr) bool {
	if x == nil {
		return false
	}
	if x.all == nil {
		return slices.Contains(x.list, addr)
	}
	_, ok := x.all[addr]
	return ok
}

// Lost returns how many queries the subscription did not get since the last call: limited because of the
// limit for each second, slow because its reader was too slow.
func (s *Subscription) Lost() (limited, slow uint64) { return s.limited.Swap(0), s.slow.Swap(0) }

// Close ends the subscription. It may be called again.
func (s *Subscription) Close() {
	f := s.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	list := slices.DeleteFunc(f.list(), func(other *Subscription) bool { return other == s })
	if len(list) == 0 {
		f.subscriptions.Store(nil)
		return
	}
	f.subscriptions.Store(&list)
}

// watches reports whether s selects the client.
func (s *Subscription) watches(client netip.Addr) bool {
	return !s.filter.Selected || s.clients.Load().has(client.Unmap().WithZone(""))
}

// selects reports whether s selects the query.
func (s *Subscription) selects(k *Key) bool {
	f := &s.filter
	if k.Latency < f.Slow || f.HasRcode && (k.NoReply || k.Rcode != f.Rcode) || !s.watches(k.Client) {
		return false
	}
	return f.Name == "" || wire.Under(k.Name, f.Name)
}

// admit reports whether s takes a query that it selects. It counts the queries that it does not take.
func (s *Subscription) admit(k *Key) bool {
	if now := int64(k.Now / time.Second); s.second.Swap(now) != now {
		s.count.Store(0)
	}
	switch {
	case s.count.Add(1) > maxPerSecond:
		s.limited.Add(1)
	case len(s.queue) == cap(s.queue):
		s.slow.Add(1)
	default:
		return true
	}
	return false
}
