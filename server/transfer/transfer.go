// Package transfer transfers zones to other servers (RFC 5936, RFC 1995) and tells them about changes
// (RFC 1996), as CoreDNS's transfer directive does.
//
// A [Table] has the directives of one server block: who may transfer which zone, and who is told. A
// [Stream] turns the records of a zone into a sequence of messages: the SOA record, the other records, and the SOA
// record again, which [Table.Answer] begins. The caller fetches one message after the other as fast as the client takes them, so a transfer holds one
// message in memory, and the version of the zone that it began with. IXFR is answered with the whole zone, or
// with the SOA record alone if the client has the current version.
//
// [Transfers] bounds the transfers of all blocks: each client has one at a time, and all together a few. It
// counts them by zone and outcome.
package transfer

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// maxTransfers bounds the transfers at a time.
	maxTransfers = 8
	// maxQueueTime bounds how long a query waits for one of these places, or for the end of the client's last transfer.
	maxQueueTime = 5 * time.Second
	// maxDuration bounds the time of a transfer, of a client that is fast enough all the time (see [Pace]).
	maxDuration = 15 * time.Minute
)

// ErrBusy is the error of a transfer that finds no place in time.
var ErrBusy = errors.New("too many zone transfers at a time")

// Outcome is how a query for a transfer ends.
type Outcome uint8

// The outcomes. Their names are values of a metric's label.
const (
	Sent    Outcome = iota // the whole zone was sent
	Current                // the client has this version; it got the SOA record
	Refused                // the client may not transfer the zone, or has asked over UDP
	Busy                   // too many transfers at a time
	Failed                 // the zone is not loaded, or the transfer ended early
	outcomes
)

var outcomeNames = [outcomes]string{"sent", "current", "refused", "busy", "failed"}

func (o Outcome) String() string { return outcomeNames[o] }

// Transfers bounds and counts the transfers of all server blocks. It is created by [NewTransfers] and safe for
// concurrent use.
type Transfers struct {
	log *slog.Logger

	mu    sync.Mutex
	peers map[netip.Addr]struct{} // clients with a transfer
	// ended is closed and replaced when a transfer ends.
	ended  chan struct{}
	counts map[wire.Name]*[outcomes]uint64
	told   map[wire.Name]*notifyCounts
	// exchange sends a NOTIFY from the source and returns the rcode of the answer. ctx has a deadline.
	exchange func(ctx context.Context, source netip.Addr, to netip.AddrPort, soa wire.RR) (wire.Rcode, error)
}

// NewTransfers returns Transfers with all places free. log may be nil.
func NewTransfers(log *slog.Logger) *Transfers {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Transfers{
		log: log, peers: make(map[netip.Addr]struct{}), ended: make(chan struct{}),
		counts: make(map[wire.Name]*[outcomes]uint64), told: make(map[wire.Name]*notifyCounts), exchange: exchangeUDP,
	}
}

// Acquire takes a place for a transfer to client, which [Transfers.Release] gives back. It blocks for a few seconds
// at most; the error is [ErrBusy] or that of ctx.
func (t *Transfers) Acquire(ctx context.Context, client netip.Addr) error {
	timeout := time.NewTimer(maxQueueTime)
	defer timeout.Stop()
	for {
		ended := t.tryAcquire(client)
		if ended == nil {
			return nil
		}
		select {
		case <-ended:
		case <-timeout.C:
			return ErrBusy
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tryAcquire takes a place, or returns a channel that is closed when one may be free.
func (t *Transfers) tryAcquire(client netip.Addr) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, has := t.peers[client]; has || len(t.peers) >= maxTransfers {
		return t.ended
	}
	t.peers[client] = struct{}{}
	return nil
}

// Release gives the place of client back.
func (t *Transfers) Release(client netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.peers, client)
	close(t.ended)
	t.ended = make(chan struct{})
}

// Count counts a query for a transfer of zone, one of the configuration.
func (t *Transfers) Count(zone wire.Name, o Outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts[zone] == nil {
		t.counts[zone] = new([outcomes]uint64)
	}
	t.counts[zone][o]++
}

// EachCount calls f for each zone and outcome that has been counted, zones in order.
func (t *Transfers) EachCount(f func(zone, outcome string, n uint64)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, zone := range slices.Sorted(maps.Keys(t.counts)) {
		for o, n := range t.counts[zone] {
			if n > 0 {
				f(zone.String(), Outcome(o).String(), n)
			}
		}
	}
}

// EachNotify calls f for each zone of which a NOTIFY has been counted, by result, zones in order.
func (t *Transfers) EachNotify(f func(zone, result string, n uint64)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, zone := range slices.Sorted(maps.Keys(t.told)) {
		f(zone.String(), "accepted", t.told[zone].accepted)
		f(zone.String(), "failed", t.told[zone].failed)
	}
}

// Table is who may transfer the zones of a server block, and who is told of their changes. It is created by [New] and safe
// for concurrent use.
type Table struct {
	*Transfers
	rules   []*config.Transfer
	notices notices
}

// New returns the table of cfg and the directives chained to it.
func New(cfg *config.Transfer, all *Transfers) *Table {
	t := &Table{Transfers: all, notices: notices{
		pending: make(map[noticeKey]*notice), announced: make(map[wire.Name]announced), added: make(chan struct{}, 1),
	}}
	for ; cfg != nil; cfg = cfg.Next {
		t.rules = append(t.rules, cfg)
	}
	return t
}
