package kernelpath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
)

// ClientLimit limits the queries over UDP of each client to the listeners, whether the program answers
// them or passes them on. A client is an address on one interface.
type ClientLimit struct {
	// Rate is how many queries per second each client may send, and Burst how many at once. A Rate of 0
	// means that nothing is limited, a Burst of 0 means 1.
	Rate, Burst uint32
	// Drop drops all queries above the limit. Otherwise as many queries as the limit allows are passed on
	// in addition, for the agent to refuse or to truncate, and the rest is dropped.
	Drop bool
	// Exempt is the addresses that are never limited, at most MaxExempt prefixes.
	Exempt []netip.Prefix
}

// MaxExempt is the largest number of prefixes in [ClientLimit.Exempt].
const MaxExempt = int(programBoundMAX_EXEMPT)

// ErrTooManyExempt means that [ClientLimit.Exempt] has more than MaxExempt prefixes.
var ErrTooManyExempt = errors.New("too many exempt prefixes")

// clientLimiter is the limit that the program keeps. Its user holds the Program's lock.
type clientLimiter struct {
	ClientLimit
	state    *programState
	prefixes *ebpf.Map                // the program's, of Exempt
	exempt   map[programPrefix]uint32 // what prefixes has
}

// set replaces the limit. What clients have used of the old limit counts towards the new one, up to its burst. It does
// not block. On an error the limit has not changed, but some of the prefixes may have.
func (c *clientLimiter) set(l ClientLimit) error {
	want, err := exemptions(l.Exempt)
	if err != nil {
		return err
	}
	if err := c.setExempt(want); err != nil {
		return err
	}
	c.ClientLimit = l
	c.Exempt = slices.Clone(l.Exempt)
	atomic.StoreUint64(&c.state.Drop, uint64(flag(l.Drop)))
	atomic.StoreUint64(&c.state.Burst, l.burst())
	atomic.StoreUint64(&c.state.Limit, l.interval())
	return nil
}

// interval returns the time between two queries of a client at its limit, in nanoseconds; 0 without a limit.
func (l *ClientLimit) interval() uint64 {
	if l.Rate == 0 {
		return 0
	}
	return max(1, uint64(time.Second)/uint64(l.Rate))
}

// burst returns how far ahead of its limit a client may be, in nanoseconds.
func (l *ClientLimit) burst() uint64 { return uint64(max(1, l.Burst)) * l.interval() }

// result returns what comes of the next query of addr at now, on the kernel's clock: LIMITED, EXCEEDED, or
// RESULTS if it is within the limit.
func (l *ClientLimit) result(addr netip.Addr, b *programBucket, now uint64) programResult {
	over := func(due *uint64) bool { return max(atomic.LoadUint64(due), now)+l.interval() > now+l.burst() }
	switch {
	case l.Rate == 0 || !over(&b.Due) || slices.ContainsFunc(l.Exempt, func(p netip.Prefix) bool { return p.Contains(addr) }):
		return programResultRESULTS
	case l.Drop || over(&b.Excess):
		return programResultLIMITED
	}
	return programResultEXCEEDED
}

// exemptions returns the entries of the program's map for the exempt prefixes.
func exemptions(prefixes []netip.Prefix) (map[programPrefix]uint32, error) {
	if len(prefixes) > MaxExempt {
		return nil, fmt.Errorf("%w: %d, at most %d", ErrTooManyExempt, len(prefixes), MaxExempt)
	}
	const v4Bits = 96 // of the prefix that IPv4 addresses have in mapped form
	v4 := netip.AddrFrom16([16]byte{10: 0xFF, 11: 0xFF})
	want := make(map[programPrefix]uint32)
	for _, prefix := range prefixes {
		bits := prefix.Bits()
		if prefix.Addr().Is4() {
			bits += v4Bits
		} else if bits < v4Bits && prefix.Contains(v4) {
			// A range of IPv6 addresses has no IPv4 addresses, although it has their mapped forms.
			if key := prefixKey(v4, v4Bits); want[key] == 0 {
				want[key] = notExempt
			}
		}
		want[prefixKey(prefix.Masked().Addr(), bits)] = isExempt
	}
	return want, nil
}

// The values of the map of exempt prefixes.
const (
	notExempt = 0
	isExempt  = 1
)

// prefixKey returns the map key of the first bits of addr in mapped form.
func prefixKey(addr netip.Addr, bits int) programPrefix {
	return programPrefix{Bits: uint32(bits), Client: newClient(addr)}
}

// newClient returns addr as the program has it.
func newClient(addr netip.Addr) programClient {
	return programClient{Addr: listenerKey(netip.AddrPortFrom(addr, 0)).Addr}
}

// setExempt replaces the entries of the map of exempt prefixes. New entries come first, so that no
// address is limited that is exempt before and afterwards.
func (c *clientLimiter) setExempt(want map[programPrefix]uint32) error {
	for key, value := range want {
		if old, ok := c.exempt[key]; ok && old == value {
			continue
		}
		if err := c.prefixes.Put(&key, value); err != nil {
			return fmt.Errorf("exempting a prefix from the limit: %w", err)
		}
		c.exempt[key] = value
	}
	for key := range c.exempt {
		if _, ok := want[key]; ok {
			continue
		}
		if err := c.prefixes.Delete(&key); err != nil {
			return fmt.Errorf("limiting an exempt prefix: %w", err)
		}
		delete(c.exempt, key)
	}
	return nil
}

// limitedCounts reads how many queries of each client the program has dropped because of the limit. Its user
// holds the lock of clients.
type limitedCounts struct {
	buckets  []programBucket // of the numbers of clients; memory shared with the program
	reported []uint64        // of each bucket
	// senders has the buckets of clients without a number, and on a second interface.
	senders         *ebpf.Map
	reportedSenders map[programSender]uint64
	total           uint64 // the counter of all clients when senders was read last
	// keys and values are scratch space for the buckets in senders; nil until something is dropped.
	keys   []programSender
	values []programBucket
}

// take returns the number of dropped queries of the client with number n since the last call.
func (l *limitedCounts) take(n uint32) uint64 {
	now := atomic.LoadUint64(&l.buckets[n].Limited)
	added := now - l.reported[n]
	l.reported[n] = now
	return added
}

// full reports whether the client with number n may send its whole burst. now is on the kernel's clock.
func (l *limitedCounts) full(n uint32, now time.Duration) bool {
	return atomic.LoadUint64(&l.buckets[n].Due) <= uint64(now)
}

// reset clears the bucket of a number that the program can't find.
func (l *limitedCounts) reset(n uint32) { l.buckets[n], l.reported[n] = programBucket{}, 0 }

// takeSenders calls report with the dropped queries of clients in senders since the last call. total is the
// counter of all clients. A client loses what was not reported if another takes its place in the map.
func (l *limitedCounts) takeSenders(total uint64, report func(c *programClient, n uint64)) {
	if total == l.total {
		return
	}
	l.total = total
	if l.keys == nil {
		size := l.senders.MaxEntries()
		l.keys, l.values = make([]programSender, size), make([]programBucket, size)
	}
	var cursor ebpf.MapBatchCursor
	n, err := l.senders.BatchLookup(&cursor, l.keys, l.values, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) { // the latter: these are all
		return // the next call reads them
	}
	now := make(map[programSender]uint64)
	for i, key := range l.keys[:n] {
		limited, before := l.values[i].Limited, l.reportedSenders[key]
		if limited < before {
			before = 0 // it has lost its place meanwhile
		}
		if limited > before {
			report(&key.Client, limited-before)
		}
		if limited > 0 {
			now[key] = limited
		}
	}
	l.reportedSenders = now
}
