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
	// loopProbes is the number of consecutive probes that must come back before a loop is
	// certain. Each has its own name.
	loopProbes = 3
	// loopInterval is the time between two checks during a loop or a suspected one. It bounds
	// how long forwarding stays stopped after the loop has ended.
	loopInterval = 5 * time.Second
	// loopLooks is the number of unclear checks after which there is no loop, and the number of
	// checks after the end of a loop.
	loopLooks = 3
	// loopSummary is the time between two log lines during a loop.
	loopSummary = time.Minute
)

// errLoop is the error of a query that is not forwarded because of a loop.
var errLoop = errors.New("forwarding loop")

// LoopOptions are the dependencies of a [Loop]. All fields may be nil.
type LoopOptions struct {
	// Logger logs when forwarding stops and resumes.
	Logger *slog.Logger
	// Sources returns a function that reports whether a probe sent to servers may come back
	// from client; other clients' probes do not count. Sources is called for each probe.
	// Readers call its result, which must not block. nil: no client may.
	Sources func(servers []netip.Addr) func(client netip.Addr) bool
	// Was is the loop of an earlier configuration with the same upstreams, nil for none. If it
	// has stopped forwarding, the new loop begins with forwarding stopped.
	Was *Loop
}

// Loop detects that a zone's forwarded queries come back to the agent, and stops forwarding
// while they do. It sends a probe, a query for a random name, to the zone's upstreams and
// watches for a query for that name.
//
// A probe that comes back has gone through the upstreams, so it comes from one of them or from
// this node. Only those count. Otherwise an upstream, which sees the name, and a pod that it
// tells could stop the zone's forwarding.
//
// It is safe for concurrent use. A nil Loop never finds a loop.
type Loop struct {
	zone wire.Name
	opts LoopOptions
	pool *upstream.Pool // that probes go to
	// ask sends a query to the upstreams; nil if the zone has none. servers returns their
	// addresses.
	ask      func(ctx context.Context, q *wire.Query) (wire.Response, error)
	servers  func() []netip.Addr
	interval time.Duration // loopInterval, but in tests

	probe   atomic.Pointer[probe] // under way; nil is none
	stopped atomic.Bool
	since   atomic.Int64  // when it was stopped, in Unix nanoseconds
	refused atomic.Uint64 // queries that were not forwarded since then
	told    time.Time     // when the log was told last; Run's own
}

// probe is one query that looks for a loop.
type probe struct {
	name     wire.Name
	expected func(client netip.Addr) bool
	returned atomic.Bool
	stranger atomic.Pointer[netip.Addr] // who has sent it without being expected
}

// NewLoop makes the detector of a zone that forwards to pools. It sends nothing until
// [Loop.Run]. It returns an error if the zone's name is too long for a probe below it.
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

// servers returns the addresses of p's servers.
func servers(p *upstream.Pool) (list []netip.Addr) {
	for _, s := range p.Stats().Servers {
		list = append(list, s.To.Addr().Unmap())
	}
	return list
}

// probeName makes a name in zone with 64 random bits, which no cache has and no client asks
// for.
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

// guard returns ask, or while forwarding to p is stopped a function that fails with [errLoop].
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

// probeOf returns the current probe if q is it, else nil.
func (l *Loop) probeOf(q *wire.Query) *probe {
	if l == nil {
		return nil
	}
	if p := l.probe.Load(); p != nil && string(q.Name()) == string(p.name) {
		return p
	}
	return nil
}

// observe reports whether q, from client, is the current probe, and records that it came back.
func (l *Loop) observe(q *wire.Query, client netip.Addr) bool {
	p := l.probeOf(q)
	if p == nil {
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

// Run looks for a loop, and goes on while there is one or may be one. It returns when no probe
// comes back, or when ctx ends. The server must be listening. Run is called once.
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

// settle stops or resumes forwarding after a check, or logs that it is still stopped. It
// reports whether more checks are needed. last says that none are left and all were unclear.
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

// finding is the result of a check.
type finding uint8

const (
	clean   finding = iota // the upstreams have answered, and nothing came back
	unclear                // no answer, or not all probes came back, or from strangers
	looped                 // every probe came back
)

// look sends probes, one after the other. During a loop one probe is enough.
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

// send sends one probe and waits for the reply of the upstreams. answered is false if there is
// none, or SERVFAIL.
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

// stop stops forwarding if it is not stopped already.
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

// resume resumes forwarding.
func (l *Loop) resume() {
	l.stopped.Store(false)
	l.opts.Logger.Info("forwarding resumed: the zone's queries do not come back any more", l.outage()...)
}

// outage returns the log fields of the time in which forwarding was stopped.
func (l *Loop) outage() []any {
	return []any{
		"zone", l.zone.String(), "lasted", time.Since(time.Unix(0, l.since.Load())).Round(time.Second), "servfail", l.refused.Load(),
	}
}

// observeProbe reports whether r is a loop probe of z, or of a zone with the same name, that
// has come back.
func (rt *Routes) observeProbe(z *Zone, r *Request) bool {
	if r.Query.Type != wire.TypeHINFO {
		return false
	}
	for z = rt.zones[z.Name]; z != nil; z = z.next {
		if r.trace != nil { // without recording it
			if z.Loop.probeOf(&r.Query) != nil {
				return true
			}
			continue
		}
		if z.Loop.observe(&r.Query, r.Client.Addr()) {
			return true
		}
	}
	return false
}
