package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/nodens-dns/nodens/internal/wire"
)

// ErrLoop is what [Loop.Probe] found: the upstreams of a zone lead back here.
var ErrLoop = errors.New("forwarding loop")

// Loop finds out whether what a zone forwards comes back to it: it asks the
// zone's upstreams for a name nobody else asks for, and looks whether that name
// is then asked here. A nil Loop never sees anything.
type Loop struct {
	probe  wire.Name
	active atomic.Bool
	seen   atomic.Bool
}

// NewLoop makes the detector of a zone. Its probe name has 64 random bits, so
// neither a cache on the way nor a stranger's query can be taken for it.
func NewLoop(zone wire.Name) (*Loop, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, fmt.Errorf("making a probe name for loop: %w", err)
	}
	probe, err := wire.ParseName("loop-" + hex.EncodeToString(b[:]) + "." + zone.String())
	if zone == wire.Root {
		probe, err = wire.ParseName("loop-" + hex.EncodeToString(b[:]) + ".")
	}
	if err != nil {
		return nil, fmt.Errorf("making a probe name for loop in zone %s: %w", zone, err)
	}
	l := &Loop{probe: probe}
	l.active.Store(true)
	return l, nil
}

// sees reports whether q is the probe on its way back, and remembers it.
func (l *Loop) sees(q *wire.Query) bool {
	if l == nil || q.Type != wire.TypeHINFO || !l.active.Load() || string(q.Name()) != string(l.probe) {
		return false
	}
	l.seen.Store(true)
	return true
}

// Probe sends the probe to z's upstreams, once, and waits for what comes of it
// until ctx ends. The server must be listening. It returns an error wrapping
// [ErrLoop] if the probe came back, else nil: upstreams that don't answer are
// no loop.
func (z *Zone) Probe(ctx context.Context) error {
	l := z.Loop
	if l == nil {
		return nil
	}
	defer l.active.Store(false)
	var q wire.Query
	q.Parse(wire.AppendQuery(nil, 0, []byte(l.probe), wire.TypeHINFO, nil, wire.MinUDP))
	if pool := z.upstreams(&q); pool != nil {
		_, _ = pool.Exchange(ctx, &q, false) // a dead upstream is not this check's business
	}
	if l.seen.Load() {
		return fmt.Errorf("%w: a query for %s sent to the upstreams of zone %s came back to this server; "+
			"take its own address out of the forward directive or the resolv.conf it names", ErrLoop, l.probe, z.Name)
	}
	return nil
}
