// Package tail passes finished queries to `nodens tail` while it runs.
//
// A [Feed] belongs to the agent. The query path asks [Feed.Attached] for each finished query, which is
// one atomic load. While there are subscriptions it asks [Feed.Wants], and describes only the
// queries that one of them wants. A [Subscription] gets at most a thousand queries a second, and
// none while its queue is full: the query path never waits. It counts what it did not get.
package tail

import (
	"errors"
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
var ErrTooMany = errors.New("four others are watching already; end one of them")

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
	// Namespace is also (host) or (unknown).
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
	Latency            time.Duration
	Err                string
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
	// Selected says that only the clients of [Subscription.SetClients] count, at first none.
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

// Wants reports whether a subscription selects the query.
func (f *Feed) Wants(k *Key) bool {
	list := f.subscriptions.Load()
	if list == nil {
		return false
	}
	for _, s := range *list {
		if s.wants(k) {
			return true
		}
	}
	return false
}

// Send passes q to all subscriptions that select it. It does not block.
func (f *Feed) Send(k *Key, q *Query) {
	list := f.subscriptions.Load()
	if list == nil {
		return
	}
	for _, s := range *list {
		if s.wants(k) {
			s.send(k, q)
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
	clients atomic.Pointer[[]netip.Addr]
	// second is the last second with a query, count the queries in it.
	second, count atomic.Int64
	limited, slow atomic.Uint64
}

// Queries returns the channel of the queries. It is never closed.
func (s *Subscription) Queries() <-chan *Query { return s.queue }

// SetClients sets the selected clients. It keeps the list.
func (s *Subscription) SetClients(addrs []netip.Addr) { s.clients.Store(&addrs) }

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

// wants reports whether s selects the query.
func (s *Subscription) wants(k *Key) bool {
	f := &s.filter
	if k.Latency < f.Slow || f.HasRcode && (k.NoReply || k.Rcode != f.Rcode) {
		return false
	}
	if f.Selected {
		list := s.clients.Load()
		if list == nil || !slices.Contains(*list, k.Client.Unmap().WithZone("")) {
			return false
		}
	}
	return f.Name == "" || wire.Under(k.Name, f.Name)
}

// send queues q unless there are too many.
func (s *Subscription) send(k *Key, q *Query) {
	if now := int64(k.Now / time.Second); s.second.Swap(now) != now {
		s.count.Store(0)
	}
	if s.count.Add(1) > maxPerSecond {
		s.limited.Add(1)
		return
	}
	select {
	case s.queue <- q:
	default:
		s.slow.Add(1)
	}
}
