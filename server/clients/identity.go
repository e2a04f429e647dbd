package clients

import "time"

const (
	// maxIdentities bounds the identities, of which those that have ended are kept for an hour.
	maxIdentities = 1024
	// keepIdentity is the length of the longest window of names.
	keepIdentity = time.Hour
)

// identity is a client while its address has one owner. Names are counted by the number of an identity, so that
// they stay with the client that asked for them when the address gets another owner. Number 0 is (other).
type identity struct {
	key   addrKey
	known bool // whose it is
	kind  Kind
	pod   Pod
	// ended is when it ended; meaningless while it is live.
	live  bool
	ended time.Duration
}

// newIdentity gives c, which has a slot, an identity of a known or not yet known owner.
func (t *Table) newIdentity(c *client) {
	t.endIdentity(c)
	if len(t.identities) >= maxIdentities {
		t.dropOldestIdentity()
	}
	t.lastIdentity++
	c.identity = t.lastIdentity
	t.identities[c.identity] = &identity{key: c.key, kind: Unknown, live: true}
	if c.owner != nil {
		t.setOwner(c, c.owner)
	}
}

// setOwner makes o the owner of c, which has none.
func (t *Table) setOwner(c *client, o *owner) {
	c.owner = o
	if x := t.identities[c.identity]; x != nil && !x.known {
		x.known, x.kind, x.pod = true, o.kind, o.pod
	}
}

// renewIdentity gives c, which has lost its owner, a new identity if the owner was known.
func (t *Table) renewIdentity(c *client) {
	if x := t.identities[c.identity]; x == nil || !x.known {
		return
	}
	t.newIdentity(c)
	for i := range t.stripes {
		s := &t.stripes[i]
		s.mu.Lock()
		s.slots[c.slot].identity = c.identity
		s.mu.Unlock()
	}
}

// endIdentity ends c's identity, if it has one.
func (t *Table) endIdentity(c *client) {
	if x := t.identities[c.identity]; x != nil {
		x.live, x.ended = false, t.opts.Clock()
	}
	c.identity = 0
}

// dropOldestIdentity drops the identity that ended first. There are fewer slots than identities.
func (t *Table) dropOldestIdentity() {
	var oldest uint32
	for n, x := range t.identities {
		if !x.live && (oldest == 0 || x.ended < t.identities[oldest].ended) {
			oldest = n
		}
	}
	delete(t.identities, oldest)
}

// dropIdentities drops the identities that no window of names covers.
func (t *Table) dropIdentities(now time.Duration) {
	for n, x := range t.identities {
		if !x.live && now-x.ended >= keepIdentity {
			delete(t.identities, n)
		}
	}
}
