package upstream

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// pooling is the bounds on the connections of one transport.
type pooling struct {
	// busy is the most connections in use; who needs another one waits.
	busy int
	// spare is the most kept for later; 0 keeps none.
	spare int
	// expire is how long an idle connection is kept; 0 keeps none.
	expire time.Duration
}

// protocol is what sets one transport apart from another.
type protocol interface {
	// dial connects. It blocks until until or ctx.
	dial(ctx context.Context, until time.Time) (net.Conn, error)
	// talk writes c's query to conn, whose deadlines are set, and reads until c
	// accepts a reply, which it returns in c's buffer. keep is false if conn
	// can't carry another query.
	talk(conn net.Conn, c *call) (msg []byte, keep bool, err error)
}

// conns is a transport that has one query at a time on each connection and
// keeps connections for the next one.
//
// A connection is in live from dial to close, and in idle between two queries.
// It is closed instead of kept after any error: a reply that comes late must not
// be read by the next query.
type conns struct {
	protocol protocol
	pooling
	slots slots // one value per connection in use

	mu     sync.Mutex
	idle   []*conn
	live   map[*conn]struct{}
	closed bool

	hits, misses atomic.Uint64
}

// conn is one connection.
type conn struct {
	net.Conn
	since time.Time // what expire counts from
}

func newConns(p protocol, bounds pooling) *conns {
	return &conns{
		protocol: p,
		pooling:  bounds,
		slots:    make(slots, bounds.busy),
		live:     make(map[*conn]struct{}),
	}
}

// start is [transport.start].
func (t *conns) start(c *call) {
	ctx, cancel := context.WithCancel(context.Background())
	c.stop = cancel
	go func() {
		defer cancel()
		msg, err := t.exchange(ctx, c, c.until)
		c.got = len(msg)
		copy(c.reply, msg)
		c.land(err)
	}()
}

// withdraw is [transport.withdraw].
func (t *conns) withdraw(c *call) bool {
	c.stop()
	return false
}

// exchange is the whole flight of c. A server may close a connection while it is
// idle, which shows only when it is used: such a failure says nothing about the
// server, so the query is sent once more, on a connection made for it.
func (t *conns) exchange(ctx context.Context, c *call, until time.Time) ([]byte, error) {
	if err := t.slots.take(ctx, until); err != nil {
		return nil, err
	}
	defer t.slots.leave()
	if k := t.take(); k != nil {
		t.hits.Add(1)
		msg, err := t.talk(ctx, k, c, until)
		if err == nil || timedOut(err) || ctx.Err() != nil {
			return msg, err
		}
	}
	k, err := t.dial(ctx, until)
	if err != nil {
		return nil, err
	}
	return t.talk(ctx, k, c, until)
}

// take gives an idle connection that has not expired, or nil.
func (t *conns) take() *conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.idle) - 1
	if n < 0 {
		return nil
	}
	k := t.idle[n]
	if time.Since(k.since) >= t.expire {
		return nil // sweep closes it
	}
	t.idle[n] = nil
	t.idle = t.idle[:n]
	return k
}

func (t *conns) dial(ctx context.Context, until time.Time) (*conn, error) {
	t.misses.Add(1)
	c, err := t.protocol.dial(ctx, until)
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	k := &conn{Conn: c, since: time.Now()}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		c.Close()
		return nil, ErrClosed
	}
	t.live[k] = struct{}{}
	return k, nil
}

// talk has one exchange on k and then keeps or closes k.
func (t *conns) talk(ctx context.Context, k *conn, c *call, until time.Time) ([]byte, error) {
	if err := k.SetDeadline(until); err != nil {
		t.drop(k)
		return nil, t.cause(err)
	}
	whole := true // nothing has touched the deadline
	var msg []byte
	var keep bool
	var err error
	if ctx.Done() == nil {
		msg, keep, err = t.protocol.talk(k.Conn, c)
	} else {
		stop := context.AfterFunc(ctx, func() { k.SetDeadline(time.Unix(1, 0)) })
		msg, keep, err = t.protocol.talk(k.Conn, c)
		whole = stop()
	}
	if err != nil {
		t.drop(k)
		return nil, t.cause(err)
	}
	if !keep || !whole || !t.keep(k) {
		t.drop(k)
	}
	return msg, nil
}

// cause is err, or ErrClosed if close was what broke the connection.
func (t *conns) cause(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrClosed
	}
	return err
}

// keep puts k with the idle ones; false means that there is no place for it.
func (t *conns) keep(k *conn) bool {
	if t.expire <= 0 {
		return false
	}
	k.since = time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || len(t.idle) >= t.spare {
		return false
	}
	t.idle = append(t.idle, k)
	return true
}

func (t *conns) drop(k *conn) {
	t.mu.Lock()
	delete(t.live, k)
	t.mu.Unlock()
	k.Close()
}

// sweep is [transport.sweep].
func (t *conns) sweep(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := t.idle[:0]
	for _, k := range t.idle {
		if now.Sub(k.since) < t.expire {
			kept = append(kept, k)
			continue
		}
		delete(t.live, k)
		k.Close() // does not block: nothing is written
	}
	clear(t.idle[len(kept):])
	t.idle = kept
}

// close is [transport.close].
func (t *conns) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for k := range t.live {
		k.Close()
	}
	clear(t.live)
	t.idle = nil
}

// reuse is [transport.reuse].
func (t *conns) reuse() (hits, misses uint64) { return t.hits.Load(), t.misses.Load() }
