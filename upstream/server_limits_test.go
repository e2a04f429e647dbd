// Inside the package: the tests use stream transports without a Pool.

package upstream

import (
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// perConn counts the queries of each connection of a fake.
type perConn struct {
	mu    sync.Mutex
	count map[net.Conn]int
}

// add counts a query of c and returns its number.
func (p *perConn) add(c net.Conn) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.count == nil {
		p.count = map[net.Conn]int{}
	}
	p.count[c]++
	return p.count[c]
}

// reset closes c with an RST.
func reset(c net.Conn) {
	if n, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = n.NetConn()
	}
	c.(*net.TCPConn).SetLinger(0)
	c.Close()
}

// startLimitedFake starts a fake over TCP or TLS, and a transport to it.
func startLimitedFake(t *testing.T, secure bool, s script) (*fake, *streamTransport) {
	t.Helper()
	f := &fake{t: t}
	opts := connOptions{expire: time.Hour}
	if secure {
		a := newAuthority(t)
		f.tls, opts.tls = a.server("dns.test"), a.client("dns.test")
	}
	f.run(s)
	via := newStreamTransport(f.addr, opts).(*streamTransport)
	t.Cleanup(via.close)
	return f, via
}

// TestFewQueriesPerConnection: queries that a server leaves unanswered because their
// connection has had its number are sent again, and soon no connection gets more than that.
func TestFewQueriesPerConnection(t *testing.T) {
	const clients, each = 20, 20
	ends := map[string]func(net.Conn){
		"closed": func(c net.Conn) { c.Close() },
		"reset":  reset,
		"inside a message": func(c net.Conn) {
			c.Write([]byte{1, 0, 7, 7})
			c.Close()
		},
	}
	for _, secure := range []bool{false, true} {
		for name, end := range ends {
			for _, limit := range []int{1, 2, 10, 100} {
				t.Run(fmt.Sprintf("tls %t, %s after %d", secure, name, limit), func(t *testing.T) {
					var had perConn
					f, via := startLimitedFake(t, secure, func(r request) {
						switch n := had.add(r.conn); {
						case n < limit:
							answerOK(r)
						case n == limit:
							answerOK(r)
							end(r.conn)
						}
					})
					askConcurrently(t, via, clients, each)
					sent := len(f.requests())
					if most := 2 * clients * each; sent > most {
						t.Errorf("%d queries were sent, want at most %d", sent, most)
					}
					if n, most := f.server.AllConns(), 2*clients*each/limit+2*maxConnsFewQueries; n > most {
						t.Errorf("%d connections were opened, want at most %d", n, most)
					}
				})
			}
		}
	}
}

// askConcurrently asks via for as many names as each client asks, one after the other; all
// must be answered.
func askConcurrently(t *testing.T, via transport, clients, each int) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for j := range each {
				q := namedQuery(t, fmt.Sprintf("n%d-%d.test.", i, j))
				if _, err := roundTrip(t.Context(), via, q, time.Now().Add(time.Minute)); err != nil {
					t.Errorf("query %d of client %d: %v", j, i, err)
				}
			}
		})
	}
	wg.Wait()
}

// TestQueryLimitLapses: a server that no longer closes connections gets more queries on one.
func TestQueryLimitLapses(t *testing.T) {
	via := newStreamTransport(startFake(t, answerOK).addr, connOptions{expire: time.Hour}).(*streamTransport)
	t.Cleanup(via.close)
	via.mu.Lock()
	via.queryLimit, via.queryLimitUntil = 1, time.Now().Add(time.Hour)
	via.mu.Unlock()
	for _, want := range []uint64{1, 2, 3, 3} {
		if want == 3 {
			via.mu.Lock()
			via.queryLimitUntil = time.Now()
			via.mu.Unlock()
		}
		mustRoundTrip(t, via, "n.test.")
		if _, misses := via.reuse(); misses != want {
			t.Errorf("%d connections were opened, want %d", misses, want)
		}
	}
}

// TestQueryLimitIsLearned: which ends of connections show that the server answers few
// queries on each.
func TestQueryLimitIsLearned(t *testing.T) {
	start := time.Now()
	type end struct {
		replies int
		begun   time.Duration
		silent  time.Duration // since the last reply
		refused bool          // it is a failed attempt to connect
	}
	tests := []struct {
		name string
		ends []end // one second apart
		want int
	}{
		{"one end, as of a restart", []end{{replies: 1}}, 0},
		{"twice after as many replies", []end{{replies: 5}, {replies: 5}}, 5},
		{"ends of connections that were open at a restart", []end{{replies: 5}, {replies: 3}, {replies: 4}}, 0},
		{"a connection begun after the first end", []end{{replies: 5}, {replies: 3, begun: 500 * time.Millisecond}}, 3},
		{"fewer replies later", []end{{replies: 5}, {replies: 5}, {replies: 2}}, 2},
		{"idle for too long", []end{{replies: 1, silent: promptClose}, {replies: 1, silent: promptClose}}, 0},
		{"no reply at all", []end{{}, {}}, 0},
		{"twice after as many replies, in a restart", []end{{replies: 5}, {replies: 5}, {refused: true}, {replies: 5}, {replies: 5}}, 0},
	}
	for _, tt := range tests {
		via := &streamTransport{live: map[*streamConn]struct{}{}}
		for i, e := range tt.ends {
			now := start.Add(time.Duration(i) * time.Second)
			c := testConn(start.Add(e.begun))
			c.replies, c.repliedAt = e.replies, now.Add(-e.silent)
			c.add(fixedQuery(t), now)
			if e.refused {
				c.conn = nil
				via.pause.start(syscall.ECONNREFUSED, now)
				via.learnFromEnd(c, syscall.ECONNREFUSED, now)
			} else {
				via.learnFromEnd(c, io.EOF, now)
			}
			c.timer.Stop()
		}
		if via.queryLimit != tt.want {
			t.Errorf("%s: the limit is %d, want %d", tt.name, via.queryLimit, tt.want)
		}
	}
}

// TestFewConnections: a server that accepts few connections answers all queries on these.
func TestFewConnections(t *testing.T) {
	refusals := map[string]func(net.Conn){
		"closed": func(c net.Conn) { c.Close() },
		"reset":  reset,
	}
	for _, secure := range []bool{false, true} {
		for name, refuse := range refusals {
			for _, limit := range []int{1, 2, 8} {
				t.Run(fmt.Sprintf("tls %t, %s beyond %d", secure, name, limit), func(t *testing.T) {
					var mu sync.Mutex
					var accepted []net.Conn
					f, via := startLimitedFake(t, secure, func(r request) {
						mu.Lock()
						known := slices.Contains(accepted, r.conn)
						if !known && len(accepted) < limit {
							accepted, known = append(accepted, r.conn), true
						}
						mu.Unlock()
						if known {
							answerOK(r)
						} else {
							refuse(r.conn)
						}
					})
					via.inOrder = true // so that each query may get a connection
					mustRoundTrip(t, via, "first.test.")
					askConcurrently(t, via, 20, 20)
					if n := f.server.AllConns(); n > limit+3*maxConnsFewQueries {
						t.Errorf("%d connections were opened", n)
					}
				})
			}
		}
	}
}

// TestConnectionNotAccepted: queries on a connection that the server leaves in its backlog
// are answered on another one.
func TestConnectionNotAccepted(t *testing.T) {
	var mu sync.Mutex
	var accepted net.Conn
	f, via := startLimitedFake(t, false, func(r request) {
		mu.Lock()
		defer mu.Unlock()
		if accepted == nil {
			accepted = r.conn
		}
		if accepted == r.conn {
			answerOK(r)
		}
	})
	mustRoundTrip(t, via, "first.test.")
	for range 2 {
		via.mu.Lock()
		c := via.dial(time.Now())
		q := namedQuery(t, "silent.test.")
		c.add(q, time.Now())
		via.mu.Unlock()
		eventually(t, "the query is sent", func() bool {
			via.mu.Lock()
			defer via.mu.Unlock()
			return c.conn != nil && len(c.writeBuf) == 0 && !c.writing
		})
		via.mu.Lock()
		c.owedSince = time.Now().Add(-unansweredConnAfter)
		via.mu.Unlock()
		mustRoundTrip(t, via, "next.test.")
		via.onTimer(c)
		if <-q.done; q.err != nil {
			t.Errorf("on a connection that is not accepted: %v", q.err)
		}
	}
	via.mu.Lock()
	defer via.mu.Unlock()
	if via.connLimit != 1 {
		t.Errorf("the limit is %d connections, want 1", via.connLimit)
	}
	if n := len(f.requests()); n > 7 {
		t.Errorf("%d queries were sent", n)
	}
}

// TestSlowNamesOnNewConnections: a server whose first replies on one connection arrive after a second has accepted
// the other one, too. It has not if it answers later queries on the first.
func TestSlowNamesOnNewConnections(t *testing.T) {
	for name, later := range map[string]time.Duration{"sent together": 0, "sent later": unansweredConnAfter / 2} {
		now := time.Now()
		via := &streamTransport{live: map[*streamConn]struct{}{}}
		silent, replying := testConn(now), testConn(now)
		defer silent.timer.Stop()
		defer replying.timer.Stop()
		silent.add(fixedQuery(t), now)
		q := fixedQuery(t)
		replying.add(q, now.Add(later))

		now = now.Add(unansweredConnAfter)
		silence := replying.replyOverdue(now)
		if _, ok := replying.deliver(answerA(append([]byte(nil), q.message()...)), now); !ok {
			t.Fatal("the reply is not taken")
		}
		via.recordReply(replying, q, silence, now)
		if got, want := via.seemsNotAccepted(silent, now), later > 0; got != want {
			t.Errorf("%s: the silent connection seems not accepted: %t, want %t", name, got, want)
		}
	}
}
