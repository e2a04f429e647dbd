// Inside the package: the tests use stream transports without a Pool.

package upstream

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// namedQuery returns a query for name, ready to start.
func namedQuery(t *testing.T, name string) *query {
	t.Helper()
	q := fixedQuery(t)
	q.request = question(t, name)
	q.deadline = time.Now().Add(time.Hour)
	q.build(true, new(server))
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

// newStream returns a transport to f over TCP, which is closed when the test ends.
func newStream(t *testing.T, f *fake) *streamTransport {
	via := newStreamTransport(f.addr, connOptions{expire: time.Hour}).(*streamTransport)
	t.Cleanup(via.close)
	return via
}

// newBlocked returns a transport to a server that answers slow names, and what is behind them, only when free is called.
func newBlocked(t *testing.T) (via *streamTransport, free func()) {
	release := make(chan struct{})
	via = newStream(t, startFake(t, func(r request) {
		if isSlow(r) {
			<-release
		}
		answerOK(r)
	}))
	free = sync.OnceFunc(func() { close(release) })
	t.Cleanup(free) // before the ends of the transport and the server
	return via, free
}

// TestHeadOfLineBlocked: slow names of a server that answers in order do not delay other
// queries, whether there is one slow name, one for each usual connection, or more.
func TestHeadOfLineBlocked(t *testing.T) {
	via, freed := newBlocked(t)
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

// TestManySlowNames: as many slow names at once as a busy node has don't delay other queries to a server that answers in order.
func TestManySlowNames(t *testing.T) {
	via, _ := newBlocked(t)
	mustRoundTrip(t, via, "usual.test.")
	via.mu.Lock()
	via.setOrder(false, time.Now())
	via.mu.Unlock()
	for range 100 {
		via.start(namedQuery(t, "slow.test."))
		mustRoundTrip(t, via, "quick.test.")
	}
}

// TestQueuedBehind: queries behind a slow name move to another connection.
func TestQueuedBehind(t *testing.T) {
	via, freed := newBlocked(t)
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
	count(t, via.unexpected.Load(), 0, "replies are strays: those that come late to be dropped quietly")
}

// TestQueuedBehindTwo: queries behind two slow names move to other connections, also if the first slow name is answered before the
// query behind it that has moved, and if all have waited for the connection.
func TestQueuedBehindTwo(t *testing.T) {
	names := []string{"slow1.test.", "quick1.test.", "slow2.test.", "quick2.test."}
	t.Run("connected", func(t *testing.T) { queueBehindTwo(t, true, names) })
	t.Run("connecting", func(t *testing.T) { queueBehindTwo(t, false, names) })
}

// TestSlowBehindSlow: if the query that moves is for a slow name, too, the ones behind it don't wait for it.
func TestSlowBehindSlow(t *testing.T) {
	via, _ := newBlocked(t)
	for i, q := range startTogether(t, via, []string{"slow1.test.", "slow2.test.", "quick1.test.", "quick2.test."}) {
		if i < 2 {
			continue
		}
		<-q.done
		if q.err != nil {
			t.Errorf("behind slow names: %v", q.err)
		}
	}
}

// startTogether starts queries on one connection.
func startTogether(t *testing.T, via *streamTransport, names []string) (all []*query) {
	t.Helper()
	via.mu.Lock()
	defer via.mu.Unlock()
	for _, name := range names {
		q := namedQuery(t, name)
		q.deadline = time.Now().Add(time.Minute)
		all = append(all, q)
		if c, err := via.assign(q, time.Now()); err != nil || c != all[0].conn {
			t.Errorf("%s: another connection, or %v", name, err)
		}
	}
	if c := all[0].conn; c.claimWrite() {
		via.tasks.Go(func() { via.write(c) })
	}
	return all
}

func queueBehindTwo(t *testing.T, connected bool, names []string) {
	first, second := make(chan struct{}), make(chan struct{})
	var moved atomic.Bool
	f := startFake(t, func(r request) {
		switch name := r.Question[0].Name; {
		case name == "slow1.test.":
			<-first
		case name == "slow2.test.", name == "quick1.test." && !moved.Swap(true): // the first connection still waits then
			<-second
		}
		answerOK(r)
	})
	freeFirst, freeSecond := sync.OnceFunc(func() { close(first) }), sync.OnceFunc(func() { close(second) })
	via := newStream(t, f)
	t.Cleanup(freeSecond)
	t.Cleanup(freeFirst)
	if connected {
		mustRoundTrip(t, via, "usual.test.")
	}
	all := startTogether(t, via, names)
	eventually(t, "the query behind the first slow name has moved", func() bool { return moved.Load() })
	freeFirst()
	for _, q := range []*query{all[0], all[3]} {
		<-q.done
		if q.err != nil {
			t.Errorf("beside slow names: %v", q.err)
		}
	}
	if done, _ := completed(all[2]); done {
		t.Error("the second slow name has ended")
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
	via := newStream(t, f)
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
	via := newStream(t, f)
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

// TestWrittenInOrderOfArrival: queries that wait for a connection, whether for its
// establishment or because another one has failed, are written in the order in which they
// came, so a server that answers in order does not seem to do otherwise.
func TestWrittenInOrderOfArrival(t *testing.T) {
	const n = 12
	f := startFake(t, ignore)
	for round := range 20 {
		via := newStreamTransport(f.addr, connOptions{expire: time.Hour}).(*streamTransport)
		before := len(f.requests())
		via.mu.Lock()
		via.setOrder(true, time.Now()) // so that no query moves to another connection on a slow machine
		c := via.dial(time.Now())
		for i := range n {
			c.add(namedQuery(t, numberedNames(n)[i]), time.Now())
		}
		via.mu.Unlock()
		eventually(t, "the server has the queries", func() bool { return len(f.requests()) == before+n })
		for i, r := range f.requests()[before:] {
			if want := numberedNames(n)[i]; r.Question[0].Name != want {
				t.Fatalf("round %d: query %d is for %s, want %s", round, i, r.Question[0].Name, want)
			}
		}
		via.mu.Lock()
		for i, q := range c.removeAll() {
			if want := numberedNames(n)[i]; string(q.request.Name()) != string(question(t, want).Name()) {
				t.Fatalf("round %d: after a failure, query %d is for %s, want %s", round, i, q.request.Name(), want)
			}
		}
		via.mu.Unlock()
		via.close()
	}
}

// TestBurstBeforeConnection: a burst that waits for the first connection leaves no wrong
// belief about a server that answers in order.
func TestBurstBeforeConnection(t *testing.T) {
	f := startFake(t, answerOK)
	for range 20 {
		via := newStreamTransport(f.addr, connOptions{expire: time.Hour}).(*streamTransport)
		var all []*query
		for _, name := range numberedNames(8) {
			q := namedQuery(t, name)
			all = append(all, q)
			via.start(q)
		}
		for _, q := range all {
			<-q.done
		}
		via.mu.Lock()
		if via.outOfOrder {
			t.Error("the server seems to answer out of order")
		}
		via.mu.Unlock()
		via.close()
	}
}

// TestIdleConnectionFirst: a query prefers an idle connection to one with a query in
// flight.
func TestIdleConnectionFirst(t *testing.T) {
	f := startFake(t, holdReplies)
	via := newStream(t, f)
	mustRoundTrip(t, via, "first.test.")
	via.mu.Lock()
	second := via.dial(time.Now())
	via.mu.Unlock()
	eventually(t, "it is connected", func() bool {
		via.mu.Lock()
		defer via.mu.Unlock()
		return second.conn != nil
	})
	held, next := namedQuery(t, "a.hold.test."), namedQuery(t, "b.hold.test.")
	via.start(held)
	via.start(next)
	via.mu.Lock()
	defer via.mu.Unlock()
	if held.conn == second || next.conn != second {
		t.Error("two queries share a connection while another one is idle")
	}
}

// TestOrderIsLearnedAgain: what was seen of the order of a server's replies lapses, and
// gives way to what is seen later.
func TestOrderIsLearnedAgain(t *testing.T) {
	now := time.Now()
	var l learned
	l.setOrder(true, now)
	if l.forget(now.Add(orderLifetime - 1)); !l.outOfOrder {
		t.Error("it is forgotten too early")
	}
	if l.forget(now.Add(orderLifetime)); l.outOfOrder || l.inOrder {
		t.Error("it is never forgotten")
	}

	f := startFake(t, ignore)
	via := newStream(t, f)
	via.outOfOrder = true // as after an out-of-order reply
	var all []*query
	for _, name := range numberedNames(3) {
		q := namedQuery(t, name)
		all = append(all, q)
		via.start(q)
	}
	eventually(t, "the server has the queries", func() bool { return len(f.requests()) == 3 })
	via.mu.Lock()
	c := all[0].conn
	c.owedSince = time.Now().Add(-stalledAfter)
	for _, q := range all {
		q.assignedAt = c.owedSince
	}
	via.mu.Unlock()
	var replies []byte
	for _, r := range f.requests() {
		replies = append(replies, prefixed(r.pack(r.answer(1)))...)
	}
	f.requests()[0].conn.Write(replies)
	for _, q := range all {
		<-q.done
	}
	via.mu.Lock()
	defer via.mu.Unlock()
	if via.outOfOrder || via.inOrder {
		t.Errorf("after replies that waited for an earlier one: out of order %t, in order %t; want that neither is known", via.outOfOrder, via.inOrder)
	}
}

// TestInOrderIsLearned: replies that arrive together after a slow one, while other
// connections bring replies, show that the server answers in order. They do not if all
// connections were silent, as on a busy machine.
func TestInOrderIsLearned(t *testing.T) {
	for _, busy := range []bool{false, true} {
		via := &streamTransport{live: map[*streamConn]struct{}{}}
		c := testConn(time.Now())
		defer c.timer.Stop()
		now := time.Now()
		for range 2 {
			c.add(fixedQuery(t), now)
		}
		for range 40 { // on another connection
			now = now.Add(minBlockedDelay / 4)
			if !busy {
				via.observeReply(time.Millisecond, now)
			}
		}
		for _, q := range c.inFlightQueries() {
			silence := c.replyOverdue(now)
			if got, ok := c.deliver(answerA(append([]byte(nil), q.message()...)), now); got != q || !ok {
				t.Fatal("the reply is not taken")
			}
			via.recordReply(c, q, silence, now)
		}
		if via.inOrder == busy {
			t.Errorf("busy %t: in order %t", busy, via.inOrder)
		}
	}
}

// TestTypicalRTTRecovers: a time in which a slow name delays others does not raise the
// typical RTT to their waiting time, and a long silence of the server makes it forget.
func TestTypicalRTTRecovers(t *testing.T) {
	var l learned
	now := time.Now()
	for range 100 {
		now = now.Add(time.Second)
		l.observeReply(time.Hour, now)
	}
	if d := l.blockedAfter(); d > stalledAfter {
		t.Errorf("a connection counts as blocked after %v", d)
	}
	l.observeReply(time.Millisecond, now.Add(orderLifetime))
	if l.typicalRTT != time.Millisecond {
		t.Errorf("after a minute without replies the typical RTT is %v", l.typicalRTT)
	}
}

// TestBlockedChecksStayApart: a silent connection whose queries can't be moved is not checked in a loop.
func TestBlockedChecksStayApart(t *testing.T) {
	now := time.Now()
	for name, queries := range map[string]int{"blocked": 2, "not accepted": 1} {
		via := &streamTransport{live: map[*streamConn]struct{}{}}
		c := testConn(now)
		for range queries {
			c.add(namedQuery(t, "silent.test."), now)
		}
		late := now.Add(2 * unansweredConnAfter)
		c.timerAt = time.Time{}
		if via.scheduleBlockedCheck(c, late); c.timerAt.Before(late.Add(minBlockedDelay)) {
			t.Errorf("%s: the next check is %v after the last", name, c.timerAt.Sub(late))
		}
		c.timer.Stop()
	}
}

// TestFewAtATime: a server that works on few queries of a connection at a time is known by replies that are late with many queries before
// them, and not with few. It gets more connections then.
func TestFewAtATime(t *testing.T) {
	now := time.Now()
	for name, took := range map[string][2]time.Duration{
		"far away":       {40 * time.Millisecond, 60 * time.Millisecond},
		"quick":          {time.Millisecond, 15 * time.Millisecond},
		"never measured": {0, time.Second},
	} {
		var l learned
		for range 2 * crowdedReplies {
			if took[0] > 0 {
				l.observeWait(fewInFlight-1, took[0], now)
			}
			l.observeWait(fewInFlight, took[1], now)
		}
		if l.worksOnFew(now) {
			t.Errorf("%s: it is believed to work on few", name)
		}
	}
	var l learned
	l.observeWait(0, time.Millisecond, now)
	for i := range crowdedReplies {
		if l.worksOnFew(now) {
			t.Fatalf("it is believed to work on few after %d late replies", i)
		}
		l.observeWait(fewInFlight, time.Second, now)
	}
	if !l.worksOnFew(now) {
		t.Fatal("it is not believed to work on few")
	}

	via, _ := newBlocked(t)
	mustRoundTrip(t, via, "usual.test.")
	via.mu.Lock()
	via.setOrder(true, now)
	via.fewUntil = now.Add(time.Hour)
	via.mu.Unlock()
	for range (maxConns + 2) * fewInFlight {
		via.start(namedQuery(t, "slow.test."))
		eventually(t, "its connection is there", func() bool {
			via.mu.Lock()
			defer via.mu.Unlock()
			return via.connected() == len(via.live)
		})
	}
	if n := openSocketCount(via); n <= maxConns || n > maxConns+2 {
		t.Errorf("%d connections for %d queries", n, (maxConns+2)*fewInFlight)
	}
}
