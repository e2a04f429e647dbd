package zonefile

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/authority"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/outage"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// firstRetry and maxRetry are the first and the longest time between two attempts to get a zone that has no data:
	// CoreDNS's.
	firstRetry, maxRetry = 250 * time.Millisecond, 10 * time.Second
	// minInterval is the least time between two checks of a loaded zone, whatever its SOA record and NOTIFYs say.
	minInterval = time.Second
	// refreshJitter and retryJitter are added to the times in the SOA record, at most a quarter of
	// them, so that the agents of a cluster don't all ask at once.
	refreshJitter, retryJitter = 5 * time.Second, 2 * time.Second
)

// Primaries holds what the secondary zones of an agent share: the number of transfers at once, and counters. It
// is safe for concurrent use.
type Primaries struct {
	// Dial connects to a primary server; nil is TCP.
	Dial func(ctx context.Context, to netip.AddrPort) (net.Conn, error)

	places chan struct{}
	stats  TransferStats
}

// TransferStats counts what the secondary zones of an agent have done.
type TransferStats struct {
	// Transferred counts the zones that were transferred, Failed the transfers and checks at a primary server that
	// failed, Checked the checks that found the serial unchanged, Notified the NOTIFY messages from primary servers, and
	// Ignored those from other addresses.
	Transferred, Failed, Checked, Notified, Ignored atomic.Uint64
}

// NewPrimaries returns a Primaries without any transfer.
func NewPrimaries() *Primaries { return &Primaries{places: make(chan struct{}, maxTransfers)} }

// Stats returns the counters, which go on counting.
func (p *Primaries) Stats() *TransferStats { return &p.stats }

// secondary keeps one zone up to date from its primary servers (RFC 1034, 4.3.5; RFC 1996). Its goroutine owns it, but for
// notified and tried.
type secondary struct {
	t         *Table
	z         *served
	primaries *Primaries
	from      []netip.AddrPort
	outage    outage.Log
	notified  chan struct{} // holds one
	tried     atomic.Bool   // the first attempt has ended

	newest  *Zone     // also after it has expired
	checked time.Time // when newest was last found to be the primary server's
	began   time.Time // of the last attempt
	backoff time.Duration
}

// NewSecondary returns the table of the zones of cfg and of the directives chained to it. They are SERVFAIL until [Table.Run] has
// transferred them. primaries is the agent's.
func NewSecondary(cfg *config.Secondary, primaries *Primaries, opts Options) *Table {
	t := newTable(opts)
	zones := make(map[wire.Name]*served)
	var list []*secondary
	for _, d := range cfg.All() {
		t.fallsThrough = t.fallsThrough || d.Fallthrough != nil
		for _, origin := range d.Zones {
			s := &secondary{t: t, primaries: primaries, from: d.From, notified: make(chan struct{}, 1), backoff: firstRetry}
			s.z = &served{origin: origin, through: d.Fallthrough, secondary: s}
			s.outage = outage.Log{Logger: t.log.With("zone", origin), Level: slog.LevelWarn, Messages: outage.Messages{
				Start: "can't get the zone from its primary servers; trying again", Ongoing: "still can't get the zone from its primary servers", End: "the primary servers of the zone answer again",
			}}
			zones[origin] = s.z
			list = append(list, s)
		}
	}
	t.zones.Store(&zones)
	t.maintain = func(ctx context.Context) {
		var running sync.WaitGroup
		for _, s := range list {
			running.Go(func() { s.run(ctx) })
		}
		running.Wait()
	}
	return t
}

// Settled reports whether each zone of the table is loaded, or the first attempt to transfer it has failed. It is true for
// files.
func (t *Table) Settled() bool {
	for _, z := range *t.zones.Load() {
		if z.secondary != nil && !z.secondary.tried.Load() {
			return false
		}
	}
	return true
}

// Zones returns the number of zones, and of those that have no data: not loaded yet, or expired.
func (t *Table) Zones() (all, empty int) {
	zones := *t.zones.Load()
	for _, z := range zones {
		if z.data.Load() == nil {
			empty++
		}
	}
	return len(zones), empty
}

// Notify triggers a check of the zone with this name, if from is one of its primary servers. It does not block: NOTIFYs that
// come during a check lead to one further check, a second later at the earliest.
func (t *Table) Notify(origin []byte, from netip.Addr) authority.NotifyResult {
	z := (*t.zones.Load())[wire.Name(origin)]
	if z == nil || z.secondary == nil {
		return authority.NotSecondary
	}
	return z.secondary.notify(from.Unmap())
}

func (s *secondary) notify(from netip.Addr) authority.NotifyResult {
	if !slices.ContainsFunc(s.from, func(p netip.AddrPort) bool { return p.Addr().Unmap().WithZone("") == from.WithZone("") }) {
		s.primaries.stats.Ignored.Add(1)
		return authority.Ignored
	}
	s.primaries.stats.Notified.Add(1)
	select {
	case s.notified <- struct{}{}:
	default: // there will be a check already
	}
	return authority.Notified
}

// run keeps the zone up to date until ctx ends.
func (s *secondary) run(ctx context.Context) {
	defer s.outage.Stop()
	for {
		s.began = time.Now()
		err := s.update(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.primaries.stats.Failed.Add(1)
			s.outage.Fail(err)
		} else {
			s.outage.Recover()
		}
		s.tried.Store(true)
		if !s.wait(ctx, s.delay(err)) {
			return
		}
	}
}

// delay returns the time until the next update, after one with this error.
func (s *secondary) delay(err error) time.Duration {
	if s.newest == nil {
		d := s.backoff
		s.backoff = min(2*d, maxRetry)
		return d
	}
	refresh, retry, expire := s.newest.timers()
	d, jitter := refresh, refreshJitter
	if err != nil {
		d, jitter = retry, retryJitter
	}
	d = max(min(d, expire/2), minInterval) // a zone that is checked less often than it expires would be gone in between
	return d + rand.N(min(jitter, d/4))
}

// seconds reads the time that begins this many bytes before the end of data.
func seconds(data []byte, fromEnd int) time.Duration {
	return time.Duration(binary.BigEndian.Uint32(data[len(data)-fromEnd:])) * time.Second
}

// wait waits for d, or for a NOTIFY; false when ctx has ended. The zone expires meanwhile if its time has come.
func (s *secondary) wait(ctx context.Context, d time.Duration) bool {
	until, notified := time.Now().Add(d), s.notified
	for {
		next := until
		if s.z.data.Load() != nil && !s.t.keepsExpired {
			if at := s.expires(); at.Before(next) {
				next = at
			}
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-notified:
			timer.Stop()
			notified = nil
			if at := s.began.Add(minInterval); at.Before(until) {
				until = at
			}
		case <-timer.C:
		}
		s.expire()
		if !time.Now().Before(until) {
			return true
		}
	}
}

// expires returns when the data are too old to be served.
func (s *secondary) expires() time.Time {
	_, _, expire := s.newest.timers()
	return s.checked.Add(max(expire, minInterval))
}

// expire takes data that are too old out of service (RFC 1035, 3.3.13). Old rules of a response policy zone are better than none.
func (s *secondary) expire() {
	if s.t.keepsExpired || s.z.data.Load() == nil || time.Now().Before(s.expires()) {
		return
	}
	s.z.data.Store(nil)
	s.t.log.Warn("the zone has expired: its primary servers have not answered for the time in its SOA record; its names are SERVFAIL",
		"zone", s.z.origin, "serial", s.newest.serial)
}

// update asks the primary servers, in order, whether the zone has changed, and transfers it if so. The error is nil if
// one of them has the zone's current state, and the agent has it, too.
func (s *secondary) update(ctx context.Context) error {
	var failed []string
	var current, newer bool
	for _, from := range s.from {
		state, err := s.updateFrom(ctx, from)
		switch {
		case state == transferred:
			return nil
		case err != nil:
			failed = append(failed, fmt.Sprintf("%s: %v", from, err))
			newer = newer || state == outdated
		default:
			current = true
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if !current || newer {
		return errors.New(strings.Join(failed, "; "))
	}
	s.primaries.stats.Checked.Add(1)
	s.checked = time.Now()
	if s.z.data.Load() == nil { // they had expired
		s.serve(s.newest)
	}
	return nil
}

// serve puts data into service.
func (s *secondary) serve(data *Zone) {
	s.newest, s.checked, s.backoff = data, time.Now(), firstRetry
	s.z.data.Store(data)
	s.t.changed(data)
}

// updateState is what [secondary.updateFrom] has found.
type updateState uint8

const (
	upToDate    updateState = iota // the server has no newer data
	outdated                       // the server has newer data, which could not be transferred
	transferred                    // the newer data are in service
)

// updateFrom updates the zone from one server.
func (s *secondary) updateFrom(ctx context.Context, from netip.AddrPort) (updateState, error) {
	if s.newest != nil {
		serial, err := s.primaries.serial(ctx, from, s.z.origin)
		if err != nil || !s.newer(serial) {
			return upToDate, err
		}
	}
	data, err := s.primaries.transfer(ctx, from, s.z.origin, s.t.scale)
	switch {
	case err != nil:
		return outdated, err
	case s.newest != nil && !s.newer(data.serial): // another server behind the same address
		return upToDate, nil
	}
	if data.outside > 0 {
		s.t.log.Warn("left out records that are not in the zone", "zone", s.z.origin, "records", data.outside)
	}
	s.primaries.stats.Transferred.Add(1)
	s.serve(data)
	s.t.log.Info("zone transferred", "zone", s.z.origin, "from", from, "serial", data.serial, "records", data.records)
	return transferred, nil
}

// newer reports whether a zone with this serial replaces the newest data: its serial is later (RFC 1982) or, once the data have expired,
// another one.
func (s *secondary) newer(serial uint32) bool {
	if s.z.data.Load() == nil {
		return serial != s.newest.serial
	}
	return int32(serial-s.newest.serial) > 0
}
