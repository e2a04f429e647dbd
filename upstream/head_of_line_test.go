package upstream

import (
	"strings"
	"sync"
	"testing"
	"time"
)

// named is a call for a name, to be started.
func named(t *testing.T, name string) *query {
	t.Helper()
	q := fixedCall(t)
	q.request = question(t, name)
	q.deadline = time.Now().Add(time.Hour)
	q.build(true)
	return q
}

// through has a name answered by way of via.
func through(t *testing.T, via transport, name string) {
	t.Helper()
	if _, err := roundTrip(t.Context(), via, named(t, name), time.Now().Add(time.Minute)); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// slow reports whether r is for a name that takes its time.
func slow(r request) bool { return strings.HasPrefix(r.Question[0].Name, "slow") }

// TestHeldUp: a server that answers one query of a connection after the other has slow
// names hold up nobody: not the first one, nor as many as there are usually connections,
// nor more.
func TestHeldUp(t *testing.T) {
	release := make(chan struct{})
	f := startFake(t, func(r request) {
		if slow(r) {
			<-release
		}
		answers(r)
	})
	freed := sync.OnceFunc(func() { close(release) })
	t.Cleanup(freed) // before the server's end
	via := newStreamTransport(f.addr, streamOptions{expire: time.Hour}).(*streamTransport)
	t.Cleanup(via.close)
	t.Cleanup(freed)
	through(t, via, "usual.test.")
	var waiting []*query
	for len(waiting) < maxConns+3 {
		q := named(t, "slow.test.")
		waiting = append(waiting, q)
		via.start(q)
		eventually(t, "it is seen to be held up", func() bool {
			via.mu.Lock()
			defer via.mu.Unlock()
			return q.conn != nil && via.rankOf(q.conn, time.Now()) >= rankBlocked
		})
		for range 5 {
			through(t, via, "quick.test.")
		}
	}
	if n := sockets(via); n <= maxConns || n > maxConnsInOrder {
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

// TestBehind: what was put on a connection behind a slow name is taken elsewhere.
func TestBehind(t *testing.T) {
	release := make(chan struct{})
	f := startFake(t, func(r request) {
		if slow(r) {
			<-release
		}
		answers(r)
	})
	freed := sync.OnceFunc(func() { close(release) })
	t.Cleanup(freed)
	via := newStreamTransport(f.addr, streamOptions{expire: time.Hour}).(*streamTransport)
	t.Cleanup(via.close)
	t.Cleanup(freed)
	through(t, via, "usual.test.")
	calls := []*query{named(t, "slow.test.")}
	for range 10 {
		calls = append(calls, named(t, "quick.test."))
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

// TestAnyTurn: a server that answers out of turn keeps to one connection, however long a
// slow name takes.
func TestAnyTurn(t *testing.T) {
	f := startFake(t, func(r request) {
		if !slow(r) {
			answers(r)
		}
	})
	via := newStreamTransport(f.addr, streamOptions{expire: time.Hour}).(*streamTransport)
	t.Cleanup(via.close)
	through(t, via, "usual.test.")
	known := func() bool {
		via.mu.Lock()
		defer via.mu.Unlock()
		return via.outOfOrder
	}
	both := []*query{named(t, "slow.test."), named(t, "quick.test.")}
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
	before := sockets(via)
	eventually(t, "the connection to be silent", func() bool {
		via.mu.Lock()
		defer via.mu.Unlock()
		return both[0].conn.replyOverdue(time.Now()) >= minBlockedDelay
	})
	through(t, via, "quick.test.")
	if n := sockets(via); n != before {
		t.Errorf("%d connections are open, want %d as before", n, before)
	}
	if !via.cancel(both[0]) {
		t.Error("the slow name has ended")
	}
}

// TestUnused: a connection that was opened for a crowd, and that nobody needed in the end,
// goes when it has been idle for long enough, as all others do.
func TestUnused(t *testing.T) {
	f := startFake(t, answers)
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
	if sockets(via) != 1 {
		t.Error("it is gone before its time")
	}
	via.closeIdle(time.Now().Add(2 * time.Hour))
	if sockets(via) != 0 {
		t.Error("it is still there")
	}
}
