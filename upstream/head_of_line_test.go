// Inside the package: the tests use stream transports without a Pool.

package upstream

import (
	"strings"
	"sync"
	"testing"
	"time"
)

// namedQuery returns a query for name, ready to start.
func namedQuery(t *testing.T, name string) *query {
	t.Helper()
	q := fixedQuery(t)
	q.request = question(t, name)
	q.deadline = time.Now().Add(time.Hour)
	q.build(true)
	return q
}

// mustRoundTrip sends a query for name and requires a reply.
func mustRoundTrip(t *testing.T, via transport, name string) {
	t.Helper()
	if _, err := roundTrip(t.Context(), via, namedQuery(t, name), time.Now().Add(time.Minute)); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// isSlow reports whether r is for a slow name.
func isSlow(r request) bool { return strings.HasPrefix(r.Question[0].Name, "slow") }

// TestHeadOfLineBlocked: slow names of a server that answers in order do not delay other
// queries, whether there is one slow name, one for each usual connection, or more.
func TestHeadOfLineBlocked(t *testing.T) {
	release := make(chan struct{})
	f := startFake(t, func(r request) {
		if isSlow(r) {
			<-release
		}
		answerOK(r)
	})
	freed := sync.OnceFunc(func() { close(release) })
	t.Cleanup(freed) // before the server's end
	via := newStreamTransport(f.addr, streamOptions{expire: time.Hour}).(*streamTransport)
	t.Cleanup(via.close)
	t.Cleanup(freed)
	mustRoundTrip(t, via, "usual.test.")
	var waiting []*query
	for len(waiting) < maxConns+3 {
		q := namedQuery(t, "slow.test.")
		waiting = append(waiting, q)
		via.start(q)
		eventually(t, "it is seen to be held up", func() bool {
			via.mu.Lock()
			defer via.mu.Unlock()
			return q.conn != nil && via.rankOf(q.conn, time.Now()) >= rankBlocked
		})
		for range 5 {
			mustRoundTrip(t, via, "quick.test.")
		}
	}
	if n := openSocketCount(via); n <= maxConns || n > maxConnsInOrder {
		t.Errorf("%d connections are open, want more than %d and at most %d", n, maxConns, maxConnsInOrder)
	}
	freed()
	for _, q := range waiting {
		<-q.done
		if q.err != nil {
			t.Errorf("a slow name: %v", q.err)
		}
	}
}

// TestQueuedBehind: queries behind a slow name move to another connection.
func TestQueuedBehind(t *testing.T) {
	release := make(chan struct{})
	f := startFake(t, func(r request) {
		if isSlow(r) {
			<-release
		}
		answerOK(r)
	})
	freed := sync.OnceFunc(func() { close(release) })
	t.Cleanup(freed)
	via := newStreamTransport(f.addr, streamOptions{expire: time.Hour}).(*streamTransport)
	t.Cleanup(via.close)
	t.Cleanup(freed)
	mustRoundTrip(t, via, "usual.test.")
	calls := []*query{namedQuery(t, "slow.test.")}
	for range 10 {
		calls = append(calls, namedQuery(t, "quick.test."))
	}
	for _, q := range calls {
		via.start(q)
	}
	for _, q := range calls[1:] {
		<-q.done
		if q.err != nil {
			t.Errorf("behind a slow name: %v", q.err)
		}
	}
	select {
	case <-calls[0].done:
		t.Error("the slow name has ended")
	default:
	}
	freed()
	<-calls[0].done
	if err := calls[0].err; err != nil {
		t.Errorf("the slow name: %v", err)
	}
	if n := via.unexpected.Load(); n != 0 {
		t.Errorf("%d replies are strays, want those that come late to be dropped quietly", n)
	}
}

// TestOutOfOrderServer: a server that answers out of order gets one connection, however
// slow a name is.
func TestOutOfOrderServer(t *testing.T) {
	f := startFake(t, func(r request) {
		if !isSlow(r) {
			answerOK(r)
		}
	})
	via := newStreamTransport(f.addr, streamOptions{expire: time.Hour}).(*streamTransport)
	t.Cleanup(via.close)
	mustRoundTrip(t, via, "usual.test.")
	known := func() bool {
		via.mu.Lock()
		defer via.mu.Unlock()
		return via.outOfOrder
	}
	both := []*query{namedQuery(t, "slow.test."), namedQuery(t, "quick.test.")}
	if known() {
		t.Error("one reply is out of turn")
	}
	for _, q := range both {
		via.start(q)
	}
	<-both[1].done
	if !known() {
		t.Fatal("a reply out of turn is not seen")
	}
	before := openSocketCount(via)
	eventually(t, "the connection to be silent", func() bool {
		via.mu.Lock()
		defer via.mu.Unlock()
		return both[0].conn.replyOverdue(time.Now()) >= minBlockedDelay
	})
	mustRoundTrip(t, via, "quick.test.")
	if n := openSocketCount(via); n != before {
		t.Errorf("%d connections are open, want %d as before", n, before)
	}
	if !via.cancel(both[0]) {
		t.Error("the slow name has ended")
	}
}

// TestSurplusConnectionsExpire: a connection opened because of slow names expires when
// idle, like any other.
func TestSurplusConnectionsExpire(t *testing.T) {
	f := startFake(t, answerOK)
	via := newStreamTransport(f.addr, streamOptions{expire: time.Hour}).(*streamTransport)
	t.Cleanup(via.close)
	via.mu.Lock()
	via.dial(time.Now())
	via.mu.Unlock()
	eventually(t, "it is connected", func() bool {
		via.mu.Lock()
		defer via.mu.Unlock()
		return via.open[0].conn != nil
	})
	via.closeIdle(time.Now())
	if openSocketCount(via) != 1 {
		t.Error("it is gone before its time")
	}
	via.closeIdle(time.Now().Add(2 * time.Hour))
	if openSocketCount(via) != 0 {
		t.Error("it is still there")
	}
}
