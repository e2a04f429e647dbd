// Inside the package: the tests change the times of a connection.

package upstream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"
)

// ageConns makes via's connections owe a reply for the given time, and returns them.
func ageConns(via *streamTransport, by time.Duration) (all []*streamConn) {
	via.mu.Lock()
	defer via.mu.Unlock()
	for c := range via.live {
		if !c.owedSince.IsZero() {
			c.owedSince = time.Now().Add(-by)
		}
		all = append(all, c)
	}
	return all
}

// TestStalledConnection: a stalled connection gets no queries while there is another one.
// After a reply it gets them again; without one it is closed.
func TestStalledConnection(t *testing.T) {
	f := startFake(t, holdReplies)
	p, via := newStreamPool(t, f, connOptions{expire: time.Hour})
	held := startExchanges(t, p, t.Context(), "a.hold.test.")
	eventually(t, "the server has the query", func() bool { return len(f.requests()) == 1 })
	ageConns(via, stalledAfter)
	noError(t, <-startExchanges(t, p, t.Context(), "next.test."))
	all := f.requests()
	if all[1].from == all[0].from {
		t.Error("the query went to the connection that is silent")
	}
	answerOK(all[0])
	if err := <-held; err != nil {
		t.Errorf("an answer after a long time: %v", err)
	}
	noError(t, <-startExchanges(t, p, t.Context(), "last.test."))
	if all = f.requests(); all[2].from != all[0].from {
		t.Error("the connection that speaks again is not used")
	}

	ctx, cancel := context.WithCancel(t.Context())
	held = startExchanges(t, p, ctx, "b.hold.test.")
	eventually(t, "the server has the query", func() bool { return len(f.requests()) == 4 })
	cancel()
	if err := <-held; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	ageConns(via, closeStalledAfter)
	noError(t, <-startExchanges(t, p, t.Context(), "after.test."))
	eventually(t, "the connection that stays silent is closed", func() bool { return f.open() == 1 })
	all = f.requests()
	if all[4].from != all[1].from {
		t.Error("the query did not go to the connection that was there")
	}
}

// TestTimeoutRetires: a connection that stays silent past closeStalledAfter is retired when
// a query on it expires.
func TestTimeoutRetires(t *testing.T) {
	f := startFake(t, ignore)
	_, via := newStreamPool(t, f, connOptions{expire: time.Hour})
	q := startLong(t, via)
	c := ageConns(via, closeStalledAfter)[0]
	via.mu.Lock()
	q.deadline = time.Now()
	via.mu.Unlock()
	via.onTimer(c)
	if over, err := completed(q); !over || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("landed %t, with %v", over, err)
	}
	count(t, openSocketCount(via), 0, "connections are kept")
}

// TestStuckConnections: if retired connections use up the limit, the oldest is closed for a
// new one, and its queries are sent again.
func TestStuckConnections(t *testing.T) {
	f := startFake(t, holdReplies)
	p, via := newStreamPool(t, f, connOptions{expire: time.Hour})
	var held []chan error
	for i := range maxConns {
		noError(t, <-startExchanges(t, p, t.Context(), "first.test."))
		held = append(held, startExchanges(t, p, t.Context(), fmt.Sprintf("n%d.hold.test.", i)))
		eventually(t, "one more is in flight", func() bool { return via.inFlightCount() == i+1 })
		via.mu.Lock()
		via.retire(via.open[0], time.Now())
		via.mu.Unlock()
	}
	if n := openSocketCount(via); n != maxConns {
		t.Fatalf("%d connections drain, want %d", n, maxConns)
	}
	f.setScript(answerOK)
	if err := <-startExchanges(t, p, t.Context(), "next.test."); err != nil {
		t.Error(err)
	}
	if err := <-held[0]; err != nil {
		t.Errorf("what was in flight on the oldest: %v", err)
	}
	if n := openSocketCount(via); n > maxConns { // another one that drains may have ended since
		t.Errorf("%d connections are open, want %d at most", n, maxConns)
	}
}

// TestLateReply: the reply to a canceled query is dropped, and does not count as
// unexpected.
func TestLateReply(t *testing.T) {
	f := startFake(t, holdReplies)
	p, via := newStreamPool(t, f, connOptions{expire: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	held := startExchanges(t, p, ctx, "a.hold.test.")
	eventually(t, "the server has the query", func() bool { return len(f.requests()) == 1 })
	cancel()
	if err := <-held; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	answerOK(f.requests()[0])
	if err := <-startExchanges(t, p, t.Context(), "next.test."); err != nil { // queued behind it on the connection
		t.Fatal(err)
	}
	via.mu.Lock()
	defer via.mu.Unlock()
	if c := via.open[0]; len(c.queries) != 0 || c.orphans != 0 {
		t.Errorf("%d IDs are taken, %d lost; want none", len(c.queries), c.orphans)
	}
	count(t, p.servers()[0].unexpected.Load(), 0, "strays are counted")
}

// TestOrphanLimit: a connection with too many unanswered queries is replaced.
func TestOrphanLimit(t *testing.T) {
	f := startFake(t, ignore)
	_, via := newStreamPool(t, f, connOptions{expire: time.Hour})
	via.outOfOrder = true // so that one connection takes all queries
	for range maxOrphans {
		q := startLong(t, via)
		eventually(t, "the connection is there", func() bool {
			via.mu.Lock()
			defer via.mu.Unlock()
			return q.conn.conn != nil // a query canceled before that is never sent
		})
		ageConns(via, 0)
		via.cancel(q)
	}
	count(t, openSocketCount(via), 0, "connections are kept")
}

// TestUnexpectedReplyFlood: a connection with too many unexpected messages is retired.
func TestUnexpectedReplyFlood(t *testing.T) {
	f := startFake(t, func(r request) {
		if r.nth == 1 {
			for range maxUnexpected {
				wrong := r.answer(2)
				wrong.Id++
				r.reply(wrong)
			}
		}
		answerOK(r)
	})
	p, via := newStreamPool(t, f, connOptions{expire: time.Hour})
	for range 2 {
		noError(t, <-startExchanges(t, p, t.Context(), "n1.test."))
	}
	if _, misses := via.reuse(); misses != 2 {
		t.Errorf("%d connections were made, want a second one", misses)
	}
	count(t, p.Stats().Servers[0].UnexpectedReplies, maxUnexpected, "strays are counted")
}

// TestMaxAge: a connection older than max_age gets no queries, and is closed.
func TestMaxAge(t *testing.T) {
	f := startFake(t, answerOK)
	p, via := newStreamPool(t, f, connOptions{expire: time.Hour, maxAge: 2 * time.Hour})
	for i := range 3 {
		noError(t, <-startExchanges(t, p, t.Context(), "n1.test."))
		if _, misses := via.reuse(); misses != uint64(i+1) {
			t.Errorf("%d connections were made, want %d", misses, i+1)
		}
		via.mu.Lock()
		via.open[0].openedAt = time.Now().Add(-2 * time.Hour)
		via.mu.Unlock()
	}
	via.closeIdle(time.Now())
	eventually(t, "the old connection is closed", func() bool { return f.open() == 0 })
}

// TestMaxIdle: no more idle connections are kept than max_idle_conns.
func TestMaxIdle(t *testing.T) {
	for keep, want := range []int{2, 1, 2} { // 0 means no limit
		f := startFake(t, holdReplies)
		p, via := newStreamPool(t, f, connOptions{expire: time.Hour, maxIdle: keep})
		held := startExchanges(t, p, t.Context(), "a.hold.test.")
		eventually(t, "the server has the query", func() bool { return len(f.requests()) == 1 })
		ageConns(via, stalledAfter)
		noError(t, <-startExchanges(t, p, t.Context(), "next.test."))
		answerOK(f.requests()[0])
		noError(t, <-held)
		if n := openSocketCount(via); n != want {
			t.Errorf("max_idle_conns %d: %d connections are kept, want %d", keep, n, want)
		}
	}
}
