package upstream

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// maxEarly is how many queries go out on a connection before its first reply. How
// many the server allows is known only then, and the library waits for ever if more
// have been promised. Nobody allows fewer; half would hold up more at a start.
const maxEarly = 8

// webLink is one connection of a [doh]. The lock of its doh guards what is not atomic.
type webLink struct {
	conn     *http.ClientConn
	answered atomic.Bool // a reply has come

	since  time.Time // when it was made
	idle   time.Time // since when nothing is in flight; zero before the first flight
	owed   time.Time // since when a reply is owed and none has come; zero if none is
	flying int
}

// board takes a place on a connection for one request of a client that has held others in
// flight, and waits for it until ctx.
func (t *doh) board(ctx context.Context, held int) (*webLink, error) {
	for first := true; ; first = false {
		place := t.waiting.enter(held) // before looking, so that nothing is missed
		l, err := t.choose(first)
		if l != nil || err != nil {
			t.waiting.leave(place)
			return l, err
		}
		select {
		case err = <-place:
			if err != nil {
				return nil, err
			}
		case <-ctx.Done():
			t.waiting.leave(place)
			return nil, t.late(ctx)
		}
	}
}

// errNoRoom is the end of a query that was never sent.
var errNoRoom error = localError{errors.New("no connection to the server had a place in time")}

// late is the error of a query whose time was over before it had a place: the server's
// fault only where there is no connection.
func (t *doh) late(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.open) > 0 && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errNoRoom
	}
	return ctx.Err()
}

// choose takes a place on a connection if there is one, and has another connection
// made if not. first says that the query has not been counted.
func (t *doh) choose(first bool) (*webLink, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	now := time.Now()
	t.clear(now)
	l, more := t.best(now)
	switch {
	case l != nil:
		if first {
			t.hits.Add(1)
		}
		return l, nil
	case more && !t.making && len(t.live) < maxLinks:
		t.making = true
		t.misses.Add(1)
		t.tasks.Go(t.connect)
	}
	return nil, nil
}

// best takes a place on a connection, on one that is silent only where no other can be
// made. Without a place, more says that another connection is of use: not while there
// is one of which nobody knows what it will take. t is locked.
func (t *doh) best(now time.Time) (l *webLink, more bool) {
	var silent *webLink
	more = true
	for _, l := range t.open {
		known := l.answered.Load()
		switch {
		case l.silent(now) >= doubt:
			silent = l
		case (known || l.flying < maxEarly) && t.take(l, now):
			return l, false
		default:
			more = more && known
		}
	}
	if silent != nil && len(t.live) == maxLinks && t.take(silent, now) {
		return silent, false
	}
	return nil, more
}

// silent is for how long a reply is owed.
func (l *webLink) silent(now time.Time) time.Duration {
	if l.owed.IsZero() {
		return 0
	}
	return now.Sub(l.owed)
}

// take takes a place on l if there is one; t is locked.
func (t *doh) take(l *webLink, now time.Time) bool {
	if l.conn.Reserve() != nil {
		return false
	}
	if l.owed.IsZero() {
		l.owed = now
	}
	l.flying++
	return true
}

// clear lets go of connections that are broken, idle for too long or too old; t is
// locked.
func (t *doh) clear(now time.Time) {
	t.open = slices.DeleteFunc(t.open, func(l *webLink) bool {
		gone := l.conn.Err() != nil ||
			l.flying == 0 && !l.idle.IsZero() && now.Sub(l.idle) >= t.expire ||
			t.maxAge > 0 && now.Sub(l.since) >= t.maxAge
		if gone {
			t.retire(l)
		}
		return gone
	})
}

// retire closes l, which takes no more queries, unless some are in flight on it; t is
// locked. Whether it is broken already the last one will see.
func (t *doh) retire(l *webLink) {
	if l.conn.Err() != nil && l.flying > 0 {
		t.broken.Add(1)
	}
	if l.flying == 0 || l.conn.Err() != nil {
		delete(t.live, l)
		_ = l.conn.Close() // does not wait
	}
}

// leave gives back a place on l. heard says that a reply has come.
func (t *doh) leave(l *webLink, heard bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	l.flying--
	if heard {
		l.owed = time.Time{}
		if l.flying > 0 {
			l.owed = now
		}
	}
	if l.flying > 0 {
		return
	}
	l.idle = now
	i := slices.Index(t.open, l)
	if i >= 0 && (t.expire <= 0 || t.surplus()) {
		t.open = slices.Delete(t.open, i, i+1)
		i = -1
	}
	if _, live := t.live[l]; live && i < 0 {
		t.retire(l)
	}
}

// surplus reports whether more connections are idle than should be kept; t is locked.
func (t *doh) surplus() bool {
	idle := 0
	for _, l := range t.open {
		if l.flying == 0 {
			idle++
		}
	}
	return t.maxIdle > 0 && idle > t.maxIdle
}

// connect makes a connection and lets those that wait have it, or the error if there
// is no other.
func (t *doh) connect() {
	ctx, cancel := context.WithTimeout(t.ctx, connectTime)
	defer cancel()
	conn, err := t.client.NewClientConn(ctx, "https", t.url.Host)
	if err != nil {
		t.waiting.wake(-1, t.refused(err))
		return
	}
	if !t.connected(conn) {
		_ = conn.Close()
		t.waiting.wake(-1, nil)
		return
	}
	conn.SetStateHook(func(c *http.ClientConn) {
		if c.Err() != nil {
			t.waiting.wake(1, nil) // to have another one made
			return
		}
		t.waiting.wake(c.Available(), nil)
	})
	t.waiting.wake(conn.Available(), nil)
}

// connected takes in a connection that is made; false after close, and where it was
// made for those only who have gone.
func (t *doh) connected(conn *http.ClientConn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.making = false
	if t.closed || t.expire <= 0 && t.waiting.none() {
		return false
	}
	now := time.Now()
	l := &webLink{conn: conn, since: now}
	if t.waiting.none() {
		l.idle = now
	}
	t.open = append(t.open, l)
	t.live[l] = struct{}{}
	return true
}

// refused is what those that wait are told when no connection can be made because of
// err: nil, to wait on, if there is another one.
func (t *doh) refused(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.making = false
	t.broken.Add(1)
	if len(t.open) > 0 {
		return nil
	}
	return fmt.Errorf("connecting: %w", err)
}

// dial connects to the server, whatever the URL says.
func (t *doh) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	d := net.Dialer{KeepAlive: -1} // silence shows earlier than by keep-alives
	if t.source.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(t.source, 0))
	}
	return d.DialContext(ctx, "tcp", t.addr)
}

// sweep is [transport.sweep].
func (t *doh) sweep(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clear(now)
}

// waiting is the flights that wait for a place on a connection, in their order: a client
// that has few queries in flight is ahead of one that has many, and of those that have
// about as many, within a factor of two, the first that came. Its
// lock is taken last: the library calls back from within what a doh calls.
type waiting struct {
	mu     sync.Mutex
	places []chan error
	ranks  []int // of places
}

// enter puts in one more, of a client that has held queries in flight. Its channel gets one
// value at most: nil to look again, or the error to give up with.
func (w *waiting) enter(held int) chan error {
	w.mu.Lock()
	defer w.mu.Unlock()
	place, rank := make(chan error, 1), bits.Len(uint(held))
	i, _ := slices.BinarySearch(w.ranks, rank+1) // behind all of its rank
	w.ranks = slices.Insert(w.ranks, i, rank)
	w.places = slices.Insert(w.places, i, place)
	return place
}

// leave takes one out. What was meant for it goes to the next.
func (w *waiting) leave(place chan error) {
	w.mu.Lock()
	i := slices.Index(w.places, place)
	if i >= 0 {
		w.places, w.ranks = slices.Delete(w.places, i, i+1), slices.Delete(w.ranks, i, i+1)
	}
	w.mu.Unlock()
	if i < 0 && <-place == nil {
		w.wake(1, nil)
	}
}

// none reports whether nobody waits.
func (w *waiting) none() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.places) == 0
}

// wake lets the first n look again, or give up with err; all of them if n is negative.
func (w *waiting) wake(n int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n < 0 || n > len(w.places) {
		n = len(w.places)
	}
	for _, place := range w.places[:n] {
		place <- err
	}
	w.places, w.ranks = slices.Delete(w.places, 0, n), slices.Delete(w.ranks, 0, n)
}
