package share

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ErrEvicted is the error of a [Place] that its client has lost to another client. It is also
// a [context.Canceled].
var ErrEvicted error = evicted{}

type evicted struct{}

func (evicted) Error() string { return "the client waits in more places than others" }

// Is makes ErrEvicted match [context.Canceled].
func (evicted) Is(target error) bool { return target == context.Canceled }

// Place is one place of a [Limiter], and the context of the query that holds it. The context
// ends with [ErrEvicted] if the client loses the place, and with [context.Canceled] if the
// Limiter is closed. Otherwise it does not end: releasing the place leaves it as it is.
//
// The zero value is ready for [Limiter.Acquire]. After [Limiter.Release] it may be used for
// another place, unless a goroutine still uses the context. A Place must not be copied.
type Place struct {
	// OnLost, if it is not nil, runs on a goroutine of its own when the place is lost.
	// [Limiter.Release] waits for it. It must be set before the place is acquired.
	OnLost func()

	// These are the Limiter's, and guarded by its lock.
	limiter      *Limiter
	client       Client
	held         bool
	older, newer *Place // the client's places beside this one
	funcs        []*afterFunc

	done    chan struct{} // closed when state is no longer live
	state   atomic.Uint32
	running sync.WaitGroup // OnLost and functions of AfterFunc
}

// The states of a Place.
const (
	placeLive = iota
	placeEvicted
	placeClosed
)

// afterFunc is a function that runs when the place is lost; f is nil when it has run or must
// not run any more.
type afterFunc struct{ f func() }

var _ context.Context = (*Place)(nil)

// Client returns the number of the client that holds p; [NoClient] for background work.
func (p *Place) Client() Client { return p.client }

// Deadline returns that p has no deadline.
func (p *Place) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// Done returns a channel that is closed when p is lost.
func (p *Place) Done() <-chan struct{} { return p.done }

// Err returns why p is lost: [ErrEvicted] or [context.Canceled]; nil if it is not.
func (p *Place) Err() error {
	switch p.state.Load() {
	case placeEvicted:
		return ErrEvicted
	case placeClosed:
		return context.Canceled
	}
	return nil
}

// Value returns p for the key of [AddrOf]: it carries no other values.
func (p *Place) Value(key any) any {
	if key == (placeKey{}) {
		return p
	}
	return nil
}

// placeKey is the key of a Place as a context value.
type placeKey struct{}

// AddrOf returns the address of the client whose place ctx is, or is derived from; invalid for background work and other
// contexts. The place must be held.
func AddrOf(ctx context.Context) netip.Addr {
	p, _ := ctx.Value(placeKey{}).(*Place)
	if p == nil || p.client == NoClient {
		return netip.Addr{}
	}
	p.limiter.mu.Lock()
	defer p.limiter.mu.Unlock()
	return netip.AddrFrom16(p.limiter.clients[p.client].addr)
}

// AfterFunc runs f on a goroutine of its own when p is lost, or at once if it is lost already.
// [Limiter.Release] waits for f. If stop returns true, f does not run. Package context calls
// AfterFunc for contexts derived from p: they need no goroutine.
func (p *Place) AfterFunc(f func()) (stop func() bool) {
	l := p.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.state.Load() != placeLive {
		p.running.Go(f)
		return func() bool { return false }
	}
	a := &afterFunc{f: f}
	p.funcs = append(p.funcs, a)
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		if a.f == nil {
			return false
		}
		a.f = nil
		p.funcs = slices.DeleteFunc(p.funcs, func(other *afterFunc) bool { return other == a })
		return true
	}
}

// prepare makes p, which is not held, live.
func (p *Place) prepare(l *Limiter) {
	if p.done == nil || p.state.Load() != placeLive {
		p.done = make(chan struct{})
		p.state.Store(placeLive)
	}
	p.limiter = l
}

// end makes p lost, for the reason in state. The caller holds the Limiter's lock, and closes
// the channel that end returns when it has released the lock: that wakes another goroutine.
func (p *Place) end(state uint32) chan struct{} {
	p.state.Store(state)
	if p.OnLost != nil {
		p.running.Go(p.OnLost)
	}
	for _, a := range p.funcs {
		p.running.Go(a.f)
		a.f = nil
	}
	p.funcs = nil
	return p.done
}

// forget drops the functions of a place that is released. The Limiter is locked.
func (p *Place) forget() {
	for _, a := range p.funcs {
		a.f = nil
	}
	p.funcs = nil
}
