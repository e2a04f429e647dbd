package resolver

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/upstream"
)

const (
	// loopProbes is how many probes in a row must come back before there is a loop. Each
	// has a name of its own.
	loopProbes = 3
	// loopInterval is between two looks while there is a loop, or may be one: it bounds how
	// long a zone goes without forwarding after its loop has ended.
	loopInterval = 5 * time.Second
	// loopLooks is how many looks without a clear result are enough: nothing comes back.
	// It is also how many looks there are after the end of a loop.
	loopLooks = 3
	// loopSummary is between two log lines while there is a loop.
	loopSummary = time.Minute
)

// errLoop is why a query is not forwarded.
var errLoop = errors.New("forwarding loop")

// LoopOptions is what a [Loop] needs beside its zone. Nil fields do without.
type LoopOptions struct {
	// Logger is told when forwarding stops and when it goes on.
	Logger *slog.Logger
	// Sources says which clients a query may come back from that went to the servers: the
	// probes of others don't count. It is called once for each probe; what it returns is
	// called by readers, which it must not hold up. nil: none may.
	Sources func(servers []netip.Addr) func(client netip.Addr) bool
	// Was is the loop of an earlier configuration with the same upstreams, nil if there
	// was none: while it has stopped forwarding, the new one begins with that.
	Was *Loop
}

// Loop finds out whether the queries that a zone forwards come back to the agent, and
// stops forwarding while they do. It asks the zone's upstreams for a name that nobody
// else asks for, and waits for a query for that name.
//
// A query that comes back has gone through the upstreams, so it comes from one of them or
// from this node. Only such queries count: otherwise an upstream, which sees the name, and
// a pod to which it gives the name could stop the zone's forwarding.
//
// It is safe for concurrent use. A nil Loop never sees anything.
type Loop struct {
	zone wire.Name
	opts LoopOptions
	pool *upstream.Pool // that probes go to
	// ask asks the upstreams; nil if the zone has none. servers are their addresses.
	ask      func(ctx context.Context, q *wire.Query) (wire.Response, error)
	servers  func() []netip.Addr
	interval time.Duration // loopInterval, but in tests

	probe   atomic.Pointer[probe] // under way; nil is none
	stopped atomic.Bool
	since   atomic.Int64  // when it was stopped, in Unix nanoseconds
	refused atomic.Uint64 // queries that were not forwarded since then
	told    time.Time     // when the log was told last; Run's own
}

// probe is one query that is sent to find a loop.
type probe struct {
	name     wire.Name
	expected func(client netip.Addr) bool
	returned atomic.Bool
	stranger atomic.Pointer[netip.Addr] // who has sent it without being expected
}

// NewLoop makes the detector of a zone that forwards to pools. It sends nothing until
// [Loop.Run]. It is an error if the zone's name is too long to have a probe below it.
func NewLoop(zone wire.Name, pools []*upstream.Pool, opts LoopOptions) (*Loop, error) {
	name, err := probeName(zone)
	if err != nil {
		return nil, err
	}
	l := &Loop{zone: zone, opts: opts, interval: loopInterval}
	l.opts.Was = nil // or all that ever were would be kept
	if opts.Logger == nil {
		l.opts.Logger = slog.New(slog.DiscardHandler)
	}
	for _, p := range pools {
		if p.Covers([]byte(name)) {
			l.pool = p
			l.ask = func(ctx context.Context, q *wire.Query) (wire.Response, error) { return p.Exchange(ctx, q, false) }
			l.servers = func() []netip.Addr { return servers(p) }
			break
		}
	}
	if was := opts.Was; was.Stopped() {
		l.stopped.Store(true)
		l.since.Store(was.since.Load())
		l.refused.Store(was.refused.Load())
	}
	return l, nil
}

// servers are the addresses that p asks.
func servers(p *upstream.Pool) (list []netip.Addr) {
	for _, s := range p.Stats().Servers {
		list = append(list, s.To.Addr().Unmap())
	}
	return list
}

// probeName makes a name in zone with 64 random bits, so that neither a cache on the way
// nor anybody's own query is taken for a probe.
func probeName(zone wire.Name) (wire.Name, error) {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	text := "loop-" + hex.EncodeToString(b[:]) + "."
	if zone != wire.Root {
		text += zone.String()
	}
	name, err := wire.ParseName(text)
	if err != nil {
		return "", fmt.Errorf("loop: no room for a probe below the zone %s: %w", zone, err)
	}
	return name, nil
}

// Stopped reports whether the zone's queries are not forwarded.
func (l *Loop) Stopped() bool { return l != nil && l.stopped.Load() }

// stops reports whether queries to p are not forwarded.
func (l *Loop) stops(p *upstream.Pool) bool { return l.Stopped() && p == l.pool }

// guard is ask, which asks p, or fails with [errLoop] while forwarding is stopped.
func (l *Loop) guard(p *upstream.Pool, ask cache.ExchangeFunc) cache.ExchangeFunc {
	if !l.stops(p) {
		return ask
	}
	return func(context.Context, *wire.Query) (wire.Response, error) {
		return wire.Response{}, fmt.Errorf("%w: %w", cache.ErrLocal, errLoop)
	}
}

// fail makes r the reply to a query that is not forwarded.
func (l *Loop) fail(r *wire.Reply) {
	if l != nil { // a zone that shares the cache may have no detector
		l.refused.Add(1)
	}
	r.Fail(wire.ServFail)
	r.SetEDEText(wire.EDEOther, errLoop.Error())
}

// observe reports whether q, from client, is the probe under way, and remembers it.
func (l *Loop) observe(q *wire.Query, client netip.Addr) bool {
	if l == nil {
		return false
	}
	p := l.probe.Load()
	if p == nil || string(q.Name()) != string(p.name) {
		return false
	}
	client = client.Unmap()
	if p.expected(client) {
		p.returned.Store(true)
	} else {
		p.stranger.Store(&client)
	}
	return true
}

// Run looks for a loop now, and goes on looking while there is one, or may be one. It
// returns when nothing comes back, or when ctx ends. The server must be listening. It is
// called once.
func (l *Loop) Run(ctx context.Context) {
	if l.ask == nil {
		return
	}
	known := l.Stopped()
	l.told = time.Now()
	for left := loopLooks; left > 0; left-- {
		found := l.look(ctx)
		if ctx.Err() != nil || found == clean && !known {
			return
		}
		if l.settle(found, left == 1) {
			known, left = true, loopLooks+1
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(l.interval):
		}
	}
}

// settle does what follows from a look: stops forwarding, resumes it, or logs that it is
// still stopped. It reports whether more looks are needed to trust the result. last says
// that none are left: as many as there may be were unclear.
func (l *Loop) settle(found finding, last bool) (more bool) {
	switch {
	case found == looped:
		more = true
		l.stop()
	case l.Stopped() && (found == clean || last):
		more = true
		l.resume()
	}
	if l.Stopped() && time.Since(l.told) >= loopSummary {
		l.told = time.Now()
		l.opts.Logger.Error("forwarding is still stopped: the zone's queries come back from its upstreams", l.outage()...)
	}
	return more
}

// finding is what a look for a loop comes to.
type finding uint8

const (
	clean   finding = iota // the upstreams have answered, and nothing came back
	unclear                // no answer, or not all probes came back, or from strangers
	looped                 // every probe came back
)

// look sends probes, one after the other. While there is a loop one is enough.
func (l *Loop) look(ctx context.Context) finding {
	probes := loopProbes
	if l.Stopped() {
		probes = 1
	}
	for i := range probes {
		p, answered := l.send(ctx)
		if p.returned.Load() {
			continue
		}
		if from := p.stranger.Load(); from != nil {
			l.opts.Logger.Warn("a loop probe came back from a client that is neither an upstream nor this node, and does not count",
				"zone", l.zone.String(), "client", from.String())
			return unclear
		}
		if i > 0 || !answered {
			return unclear
		}
		return clean
	}
	return looped
}

// send sends one probe and waits for what the upstreams say to it; answered is false if
// that is nothing, or a failure.
func (l *Loop) send(ctx context.Context) (p *probe, answered bool) {
	p = &probe{expected: func(netip.Addr) bool { return false }}
	p.name, _ = probeName(l.zone) // NewLoop has seen that it can be made
	if l.opts.Sources != nil {
		p.expected = l.opts.Sources(l.servers())
	}
	var q wire.Query
	q.Parse(wire.AppendQuery(nil, 0, []byte(p.name), wire.TypeHINFO, nil, wire.MinUDP))
	l.probe.Store(p)
	defer l.probe.Store(nil)
	resp, err := l.ask(ctx, &q)
	return p, err == nil && resp.Rcode != wire.ServFail
}

// stop stops forwarding, if it is not stopped already.
func (l *Loop) stop() {
	if l.Stopped() {
		return
	}
	l.told = time.Now()
	l.since.Store(l.told.UnixNano())
	l.refused.Store(0)
	l.stopped.Store(true)
	l.opts.Logger.Error("forwarding stopped: the zone's queries come back from its upstreams; what the agent knows itself is still answered",
		"zone", l.zone.String(), "upstreams", l.servers(),
		"fix", "take the agent's own address out of the forward directive, out of the resolv.conf it names, or out of the DNS servers that these upstreams forward to")
}

// resume goes on forwarding.
func (l *Loop) resume() {
	l.stopped.Store(false)
	l.opts.Logger.Info("forwarding resumed: the zone's queries do not come back any more", l.outage()...)
}

// outage are the log fields of the time in which forwarding is stopped.
func (l *Loop) outage() []any {
	return []any{
		"zone", l.zone.String(), "lasted", time.Since(time.Unix(0, l.since.Load())).Round(time.Second), "servfail", l.refused.Load(),
	}
}
