package upstream

import (
	"errors"
	"net/netip"
	"time"
)

const (
	// dropCheckInterval is the time between two reads of the counter of dropped packets.
	dropCheckInterval = time.Second
	// minAutoLimit is the lowest limit that `max_rate auto` sets, in queries per second. Drops that other programs cause
	// on the same interface must not stop the agent.
	minAutoLimit = 50
	// After packets were dropped, the limit rises by fastStep of the rate at which they were dropped per second, until it
	// is within slowPart of that rate, and then by slowStep. So it is back at seven eighths after six seconds,
	// and beyond it drops a few packets every 15 seconds at most.
	fastStep, slowStep, slowPart = 1.0 / 16, 1.0 / 64, 7.0 / 8
	// growAbove is the part of the limit that must be used for it to rise.
	growAbove = 0.75
	// autoLogInterval is the time between two log lines about an address.
	autoLogInterval = time.Minute
)

// autoLimit finds the budget of an address by the packets that are dropped beyond it: additive increase, multiplicative
// decrease, as in TCP (RFC 5681). The lock of its budget guards it.
type autoLimit struct {
	read  func() (uint64, error)
	limit float64 // queries per second; 0: nothing was dropped yet
	// ceiling is the rate at which packets were dropped last.
	ceiling float64

	drops     uint64    // the counter when it was last read
	checkedAt time.Time // when that was
	sent      float64   // queries since then
	checking  bool      // the timer is set
	timer     *time.Timer
	loggedAt  time.Time
}

// setAuto adds or removes `max_rate auto`; b is locked.
func (b *budget) setAuto(on bool) {
	if !on && b.auto != nil {
		b.auto.timer.Stop()
		b.auto = nil
	}
	if !on || b.auto != nil {
		return
	}
	a := &autoLimit{}
	a.timer = time.AfterFunc(time.Hour, func() { b.checkDrops(a) })
	a.timer.Stop()
	b.auto = a
	read, err := b.opts.drops(b.to.Addr())
	if err == nil {
		a.drops, err = read()
	}
	if err != nil {
		b.opts.Logger.Warn("max_rate auto sets no limit: no counter of dropped packets", "to", b.to.String(), "err", err)
		return
	}
	a.read = read
}

// drops is Drops, which may be nil.
func (o *BudgetOptions) drops(to netip.Addr) (read func() (uint64, error), err error) {
	if o.Drops == nil {
		return nil, errors.New("not available here")
	}
	return o.Drops(to)
}

// querySent notes that a query is sent. The counter is read only while there are queries.
func (a *autoLimit) querySent(now time.Time) {
	a.sent++
	if a.read == nil || a.checking {
		return
	}
	a.checking, a.checkedAt, a.sent = true, now, 1
	a.timer.Reset(dropCheckInterval)
}

// checkDrops reads the counter and changes the limit.
func (b *budget) checkDrops(a *autoLimit) {
	drops, err := a.read()
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.auto != a {
		return
	}
	rate := a.sent / max(now.Sub(a.checkedAt), time.Millisecond).Seconds()
	before := a.drops
	if err != nil || drops < before { // the interface is gone or new
		before = drops
	}
	if err == nil {
		a.drops = drops
	}
	if dropped := drops - before; dropped > 0 {
		if a.limit == 0 {
			a.limit = rate
		}
		a.ceiling = max(a.limit, minAutoLimit)
		a.limit = max(a.limit/2, minAutoLimit)
		b.logDrops(a, dropped, now)
	} else {
		a.increase(rate)
	}
	a.checkedAt = now
	if a.checking = a.sent > 0; a.checking {
		a.timer.Reset(dropCheckInterval)
	}
	a.sent = 0
	b.applyLimit(now)
}

// increase raises the limit if the rate has come near it.
func (a *autoLimit) increase(rate float64) {
	if a.limit == 0 || rate < growAbove*a.limit {
		return
	}
	step := slowStep
	if a.limit < slowPart*a.ceiling {
		step = fastStep
	}
	a.limit += step * a.ceiling
}

// logDrops logs a decrease; b is locked.
func (b *budget) logDrops(a *autoLimit, dropped uint64, now time.Time) {
	if !a.loggedAt.IsZero() && now.Sub(a.loggedAt) < autoLogInterval {
		return
	}
	a.loggedAt = now
	b.opts.Logger.Warn("the network drops queries beyond a budget: fewer are sent", "to", b.to.String(), "dropped", dropped,
		"limit", int(a.limit), "fix", "set max_rate to the network's limit, or ask the upstream less")
}
