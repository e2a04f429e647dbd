package upstream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"
)

// age makes via's connections owe a reply for so long, and gives them.
func age(via *streamTransport, by time.Duration) (all []*streamConn) {
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

// TestSilentConnection: a connection that owes a reply for too long gets no queries
// while there is another; when it speaks again it does; when it does not, it is closed.
func TestSilentConnection(t *testing.T) {
	f := startFake(t, holding)
	p, via := solo(t, f, streamOptions{expire: time.Hour})
	held := many(t, p, t.Context(), "a.hold.test.")
	eventually(t, "the server has the query", func() bool { return len(f.requests()) == 1 })
	age(via, stalledAfter)
	if err := <-many(t, p, t.Context(), "next.test."); err != nil {
		t.Fatal(err)
	}
	all := f.requests()
	if all[1].from == all[0].from {
		t.Error("the query went to the connection that is silent")
	}
	answers(all[0])
	if err := <-held; err != nil {
		t.Errorf("an answer after a long time: %v", err)
	}
	if err := <-many(t, p, t.Context(), "last.test."); err != nil {
		t.Fatal(err)
	}
	if all = f.requests(); all[2].from != all[0].from {
		t.Error("the connection that speaks again is not used")
	}

	ctx, cancel := context.WithCancel(t.Context())
	held = many(t, p, ctx, "b.hold.test.")
	eventually(t, "the server has the query", func() bool { return len(f.requests()) == 4 })
	cancel()
	if err := <-held; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	age(via, closeStalledAfter)
	if err := <-many(t, p, t.Context(), "after.test."); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the connection that stays silent is closed", func() bool { return f.open() == 1 })
	all = f.requests()
	if all[4].from != all[1].from {
		t.Error("the query did not go to the connection that was there")
	}
}

// TestTimeoutRetires: a connection on which a query's time ends, without a word for as
// long as one has patience, is given up.
func TestTimeoutRetires(t *testing.T) {
	f := startFake(t, silence)
	_, via := solo(t, f, streamOptions{expire: time.Hour})
	q := fixedCall(t)
	q.deadline = time.Now().Add(time.Hour)
	via.start(q)
	c := age(via, closeStalledAfter)[0]
	via.mu.Lock()
	q.deadline = time.Now()
	via.mu.Unlock()
	via.onTimer(c)
	if over, err := landed(q); !over || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("landed %t, with %v", over, err)
	}
	if n := sockets(via); n != 0 {
		t.Errorf("%d connections are kept", n)
	}
}

// TestStuckConnections: with every place taken by connections that drain, the oldest is
// broken for a new one, and what was in flight there is asked again.
func TestStuckConnections(t *testing.T) {
	f := startFake(t, holding)
	p, via := solo(t, f, streamOptions{expire: time.Hour})
	var held []chan error
	for i := range maxConns {
		if err := <-many(t, p, t.Context(), "first.test."); err != nil {
			t.Fatal(err)
		}
		held = append(held, many(t, p, t.Context(), fmt.Sprintf("n%d.hold.test.", i)))
		eventually(t, "one more is in flight", func() bool { return via.inFlightCount() == i+1 })
		via.mu.Lock()
		via.retire(via.open[0], time.Now())
		via.mu.Unlock()
	}
	if n := sockets(via); n != maxConns {
		t.Fatalf("%d connections drain, want %d", n, maxConns)
	}
	f.become(answers)
	if err := <-many(t, p, t.Context(), "next.test."); err != nil {
		t.Error(err)
	}
	if err := <-held[0]; err != nil {
		t.Errorf("what was in flight on the oldest: %v", err)
	}
	if n := sockets(via); n != maxConns {
		t.Errorf("%d connections are open, want %d", n, maxConns)
	}
}

// TestLateReply: a reply that comes when nobody waits is dropped, and is no stray.
func TestLateReply(t *testing.T) {
	f := startFake(t, holding)
	p, via := solo(t, f, streamOptions{expire: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	held := many(t, p, ctx, "a.hold.test.")
	eventually(t, "the server has the query", func() bool { return len(f.requests()) == 1 })
	cancel()
	if err := <-held; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	answers(f.requests()[0])
	if err := <-many(t, p, t.Context(), "next.test."); err != nil { // behind it on the connection
		t.Fatal(err)
	}
	via.mu.Lock()
	defer via.mu.Unlock()
	if c := via.open[0]; len(c.queries) != 0 || c.orphans != 0 {
		t.Errorf("%d IDs are taken, %d lost; want none", len(c.queries), c.orphans)
	}
	if n := p.servers()[0].unexpected.Load(); n != 0 {
		t.Errorf("%d strays are counted", n)
	}
}

// TestLostQueries: a connection on which too many queries are never answered is given
// up for a new one.
func TestLostQueries(t *testing.T) {
	f := startFake(t, silence)
	_, via := solo(t, f, streamOptions{expire: time.Hour})
	for range maxOrphans {
		q := fixedCall(t)
		q.deadline = time.Now().Add(time.Hour)
		via.start(q)
		eventually(t, "the connection is there", func() bool {
			via.mu.Lock()
			defer via.mu.Unlock()
			return q.conn.conn != nil // what is withdrawn before is never sent
		})
		age(via, 0)
		via.cancel(q)
	}
	if n := sockets(via); n != 0 {
		t.Errorf("%d connections are kept", n)
	}
}

// TestStrayFlood: a connection that brings too much that nobody asked for is given up.
func TestStrayFlood(t *testing.T) {
	f := startFake(t, func(r request) {
		if r.nth == 1 {
			for range maxUnexpected {
				wrong := r.answer(2)
				wrong.Id++
				r.reply(wrong)
			}
		}
		answers(r)
	})
	p, via := solo(t, f, streamOptions{expire: time.Hour})
	for range 2 {
		if err := <-many(t, p, t.Context(), "n1.test."); err != nil {
			t.Fatal(err)
		}
	}
	if _, misses := via.reuse(); misses != 2 {
		t.Errorf("%d connections were made, want a second one", misses)
	}
	if n := p.Stats().Servers[0].UnexpectedReplies; n != maxUnexpected {
		t.Errorf("%d strays are counted, want %d", n, maxUnexpected)
	}
}

// TestMaxAge: a connection older than max_age takes no query, and is closed.
func TestMaxAge(t *testing.T) {
	f := startFake(t, answers)
	p, via := solo(t, f, streamOptions{expire: time.Hour, maxAge: 2 * time.Hour})
	for i := range 3 {
		if err := <-many(t, p, t.Context(), "n1.test."); err != nil {
			t.Fatal(err)
		}
		if _, misses := via.reuse(); misses != uint64(i+1) {
			t.Errorf("%d connections were made, want %d", misses, i+1)
		}
		via.mu.Lock()
		via.open[0].begunAt = time.Now().Add(-2 * time.Hour)
		via.mu.Unlock()
	}
	via.closeIdle(time.Now())
	eventually(t, "the old connection is closed", func() bool { return f.open() == 0 })
}

// TestMaxIdle: no more idle connections are kept than max_idle_conns.
func TestMaxIdle(t *testing.T) {
	for keep, want := range []int{2, 1, 2} { // 0 is no bound
		f := startFake(t, holding)
		p, via := solo(t, f, streamOptions{expire: time.Hour, maxIdle: keep})
		held := many(t, p, t.Context(), "a.hold.test.")
		eventually(t, "the server has the query", func() bool { return len(f.requests()) == 1 })
		age(via, stalledAfter)
		if err := <-many(t, p, t.Context(), "next.test."); err != nil {
			t.Fatal(err)
		}
		answers(f.requests()[0])
		if err := <-held; err != nil {
			t.Fatal(err)
		}
		if n := sockets(via); n != want {
			t.Errorf("max_idle_conns %d: %d connections are kept, want %d", keep, n, want)
		}
	}
}
