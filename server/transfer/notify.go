package transfer

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// maxNotifying bounds the NOTIFYs that wait for their answers at a time.
	maxNotifying = 8
	// notifyTimeout is how long one of them waits, and how long after the first attempt the second one follows. Each further
	// interval is twice as long (RFC 1996, 3.6).
	notifyTimeout = 2 * time.Second
	// maxAttempts bounds the NOTIFYs to one server about one version of a zone.
	maxAttempts = 5
)

// Notify tells the servers of the zone's directive that the zone with this SOA record has changed. It does not block:
// [Table.Run] sends. A change that was not told yet is replaced.
func (t *Table) Notify(soa wire.RR) {
	rule, _ := t.match(soa.Owner)
	if rule == nil || len(rule.To) == 0 {
		return
	}
	soa.Owner, soa.Data = bytes.Clone(soa.Owner), bytes.Clone(soa.Data)
	t.notices.mu.Lock()
	for _, to := range rule.To {
		t.notices.pending[noticeKey{wire.Name(soa.Owner), to}] = &notice{soa: soa, rule: rule, due: time.Now()}
	}
	t.notices.mu.Unlock()
	select {
	case t.notices.added <- struct{}{}:
	default:
	}
}

// notices are the NOTIFYs that no answer has come to. There is one at most for each zone and server.
type notices struct {
	mu      sync.Mutex
	pending map[noticeKey]*notice
	// announced are the versions that Announce has told of.
	announced map[wire.Name]announced
	added     chan struct{} // has room for one signal
}

type noticeKey struct {
	zone wire.Name
	to   netip.AddrPort
}

// notice is a change that a server is told of.
type notice struct {
	soa      wire.RR
	rule     *config.Transfer
	attempts int
	due      time.Time // of the next attempt
	sending  bool
}

// Run sends NOTIFYs until ctx ends.
func (t *Table) Run(ctx context.Context) {
	var sending sync.WaitGroup
	defer sending.Wait()
	places := make(chan struct{}, maxNotifying)
	for {
		key, n, wait := t.notices.next(time.Now())
		if n == nil {
			timer := time.NewTimer(wait)
			select {
			case <-t.notices.added:
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return
			}
			timer.Stop()
			continue
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return
		}
		sending.Go(func() {
			defer func() { <-places }()
			t.attempt(ctx, key, n)
		})
	}
}

// next returns a notice that is due, and marks it as being sent. Without one, wait is how long none will be.
func (l *notices) next(now time.Time) (key noticeKey, n *notice, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wait = time.Hour
	for k, v := range l.pending {
		if v.sending {
			continue
		}
		if left := v.due.Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		v.sending = true
		return k, v, 0
	}
	return noticeKey{}, nil, wait
}

// attempt sends n once. Without an answer it will be sent again.
func (t *Table) attempt(ctx context.Context, key noticeKey, n *notice) {
	began := time.Now()
	tried, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	rcode, err := t.exchange(tried, n.rule.Source, key.to, n.soa)
	answered := err == nil
	if answered && rcode != wire.NoError {
		err = fmt.Errorf("the answer is %s", rcode)
	}
	if ctx.Err() != nil {
		return
	}
	if t.notices.finish(key, n, answered, began) {
		t.countNotify(key, n, err)
	}
}

// finish ends an attempt. It returns false if another one follows, or the zone has changed meanwhile.
func (l *notices) finish(key noticeKey, n *notice, answered bool, began time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n.sending = false
	if l.pending[key] != n {
		return false
	}
	if n.attempts++; !answered && n.attempts < maxAttempts {
		n.due = began.Add(notifyTimeout << (n.attempts - 1))
		select {
		case l.added <- struct{}{}:
		default:
		}
		return false
	}
	delete(l.pending, key)
	return true
}

// countNotify counts and logs the end of n.
func (t *Table) countNotify(key noticeKey, n *notice, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.told[key.zone]
	if c == nil {
		c = new(notifyCounts)
		t.told[key.zone] = c
	}
	if err != nil {
		c.failed++
		t.log.Warn("the server does not accept the NOTIFY", "zone", key.zone, "to", key.to, "serial", n.soa.Serial(), "err", err)
		return
	}
	c.accepted++
	t.log.Info("NOTIFY accepted", "zone", key.zone, "to", key.to, "serial", n.soa.Serial())
}

// notifyCounts counts the NOTIFYs of a zone.
type notifyCounts struct{ accepted, failed uint64 }

// exchangeUDP sends one NOTIFY and returns the rcode of the answer. ctx has a deadline.
func exchangeUDP(ctx context.Context, source netip.Addr, to netip.AddrPort, soa wire.RR) (wire.Rcode, error) {
	var d net.Dialer
	if source.IsValid() && source.Is4() == to.Addr().Is4() {
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
	}
	conn, err := d.DialContext(ctx, "udp", to.String())
	if err != nil {
		return 0, err
	}
	defer conn.Close() //nolint:errcheck // nothing is buffered
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	id := uint16(rand.Uint32())
	if _, err := conn.Write(wire.AppendNotify(nil, id, soa)); err != nil {
		return 0, err
	}
	buf := make([]byte, wire.MinUDP)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return 0, err
		}
		if rcode, ok := wire.NotifyReply(buf[:n], id); ok {
			return rcode, nil
		}
	}
}

// announceInterval is the least time between two versions of a zone that [Table.Announce] tells of. The attempts to tell of one
// version end before.
const announceInterval = time.Minute

// announced is the version of a zone that was told last.
type announced struct {
	serial uint32
	at     time.Time
}

// Notifies reports whether servers are told of changes of the zone with this name.
func (t *Table) Notifies(zone wire.Name) bool {
	rule, _ := t.match([]byte(zone))
	return rule != nil && len(rule.To) > 0
}

// Announce is [Table.Notify] for a zone that changes often, with its current SOA record: it tells of a version only
// once, and of one a minute at most. The caller calls it regularly, so that the newest version is told in the end.
func (t *Table) Announce(soa wire.RR) {
	if t.announces(wire.Name(soa.Owner), soa.Serial(), time.Now()) {
		t.Notify(soa)
	}
}

// announces reports whether to tell of the version with this serial now, and notes it.
func (t *Table) announces(zone wire.Name, serial uint32, now time.Time) bool {
	t.notices.mu.Lock()
	defer t.notices.mu.Unlock()
	if last, ok := t.notices.announced[zone]; ok && (last.serial == serial || now.Sub(last.at) < announceInterval) {
		return false
	}
	t.notices.announced[zone] = announced{serial, now}
	return true
}
