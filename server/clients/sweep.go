package clients

import "time"

// keepEnded is how long owners without an address, and series without a pod, are kept.
const keepEnded = time.Minute

// Sweep settles all counts, rotates the windows, logs which clients are limited, and frees what is not used any
// more. [Table.Run] calls it every five seconds.
func (t *Table) Sweep() {
	for _, line := range t.sweep() {
		line.log(t.opts.Log)
	}
}

// sweep does what [Table.Sweep] does, except for writing the lines, which it returns.
func (t *Table) sweep() []limitLine {
	t.classify()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settleAll()
	now := t.opts.Clock()
	t.rotate(now)
	lines := t.limitLines(now)
	t.restoreEnded(now)
	t.freeIdle(now)
	t.forget(keepEnded)
	t.endSeries(now)
	t.dropIdentities(now)
	t.names.advance(now)
	return lines
}

// classify decides for each client that is no pod whether it is the node itself. [Options.Host]
// is called without the lock.
func (t *Table) classify() {
	host := make(map[addrKey]bool)
	t.mu.Lock()
	for key, c := range t.addrs {
		if c.owner == nil || c.owner.kind != PodClient {
			host[key] = false
		}
	}
	t.mu.Unlock()
	if t.opts.Host != nil {
		for key := range host {
			host[key] = t.opts.Host(key.addr())
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, isHost := range host {
		if c := t.addrs[key]; c != nil {
			t.setHost(c, isHost)
		}
	}
}

// setHost makes the node, or unknown, the owner of c if it is no pod.
func (t *Table) setHost(c *client, isHost bool) {
	switch {
	case c.owner == nil && !isHost:
		t.setUnknown(c)
	case c.owner == nil:
		t.setOwner(c, t.host)
		t.host.live++
	case c.owner.kind == PodClient || isHost == (c.owner == t.host):
	default:
		t.settle(c)
		t.detach(c)
		t.setHost(c, isHost)
	}
}

// settleAll settles all counts, except for clients that are not classified yet.
func (t *Table) settleAll() {
	for _, c := range t.addrs {
		if c.owner != nil {
			t.settle(c)
		}
	}
	for i := range t.stripes {
		s := &t.stripes[i]
		s.mu.Lock()
		if !s.other.empty() {
			t.credit(t.rest, &s.other)
		}
		s.mu.Unlock()
	}
}

// freeIdle frees the slots of clients that are no pods and have been idle; if no slot is left
// also those of pods.
func (t *Table) freeIdle(now time.Duration) {
	full := len(t.free) == 0
	for key, c := range t.addrs {
		isPod := c.owner != nil && c.owner.kind == PodClient
		if c.slot != noSlot && now-c.active >= maxIdle && (full || !isPod) {
			t.dropSlot(key)
		}
	}
}

// forget drops the owners that have had no address for so long.
func (t *Table) forget(after time.Duration) {
	now := t.opts.Clock()
	for p, o := range t.pods {
		if o.live == 0 && now-o.ended >= after {
			delete(t.pods, p)
		}
	}
	for o := range t.others {
		if o.kind == Unknown && o.live == 0 && now-o.ended >= after {
			delete(t.others, o)
		}
	}
}
