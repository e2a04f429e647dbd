// Inside the package: the tests use the stream transport and count its connections.

package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
)

func TestReuse(t *testing.T) {
	f := startFake(t, answerOK)
	p := newPool(t, forwardTo(f))
	for i := range 10 {
		if _, err := p.Exchange(t.Context(), question(t, "example.org."), i%2 == 0); err != nil {
			t.Fatal(err)
		}
	}
	got := p.Stats().Servers[0]
	equal(t, []Reuse{{Hits: 4, Misses: 1}, {Hits: 4, Misses: 1}}, []Reuse{got.UDP, got.TCP}, "UDP and TCP, five queries each")
	count(t, f.open(), 1, "TCP connections are open")
}

func TestStaleConnection(t *testing.T) {
	tests := []struct {
		name string
		// close is what the server does with the connection after the answer.
		close func(request)
	}{
		{"closed", func(r request) { r.conn.Close() }},
		{"reset", func(r request) { r.conn.(*net.TCPConn).SetLinger(0); r.conn.Close() }},
		{"closed at the next query", func(r request) {
			if r.nth == 2 {
				r.conn.Close()
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := startFake(t, func(r request) {
				if r.nth != 2 || tt.name != "closed at the next query" {
					answerOK(r)
				}
				tt.close(r)
			})
			p := newPool(t, forwardTo(f))
			for i := range 2 {
				if _, err := p.Exchange(t.Context(), question(t, "example.org."), true); err != nil {
					t.Fatalf("exchange %d: %v", i+1, err)
				}
			}
			got := p.Stats().Servers[0]
			// Whether the Pool notices the close before its next query is a race.
			if got.TCP.Misses != 2 || got.TCP.Hits > 1 {
				t.Errorf("connections %+v, want two misses, and at most one hit, which was stale", got.TCP)
			}
			for _, r := range f.requests() {
				if r.Question[0].Name == "." {
					t.Error("the stale connection counted as a failure: a probe was sent")
				}
			}
		})
	}
}

func TestExpire(t *testing.T) {
	f := startFake(t, answerOK)
	cfg := forwardTo(f)
	cfg.Expire = 5 * time.Millisecond
	p := newPool(t, cfg)
	for _, overTCP := range []bool{false, true} {
		if _, err := p.Exchange(t.Context(), question(t, "example.org."), overTCP); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the idle connections are closed", func() bool { return f.open() == 0 && liveConns(p) == 0 })
}

func TestExpireZeroKeepsNothing(t *testing.T) {
	f := startFake(t, answerOK)
	cfg := forwardTo(f)
	cfg.Expire = 0
	p := newPool(t, cfg)
	for _, overTCP := range []bool{false, true} {
		if _, err := p.Exchange(t.Context(), question(t, "example.org."), overTCP); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "nothing is kept", func() bool { return liveConns(p) == 0 })
}

// liveConns counts p's connections.
func liveConns(p *Pool) int {
	n := 0
	for _, s := range p.servers() {
		for _, via := range []transport{s.udp, s.tcp, s.probes} {
			n += openSocketCount(via)
		}
	}
	return n
}

// openSocketCount counts via's connections.
func openSocketCount(via transport) int {
	switch t := via.(type) {
	case *streamTransport:
		t.mu.Lock()
		defer t.mu.Unlock()
		return len(t.live)
	case *udpTransport:
		t.mu.Lock()
		defer t.mu.Unlock()
		return len(t.live)
	}
	return 0
}

// TestStartBehindClose: no connection is opened after close.
func TestStartBehindClose(t *testing.T) {
	f := startFake(t, answerOK)
	for _, via := range []transport{newUDPTransport(f.addr, udpOptions{maxInFlight: 1, expire: time.Hour}, new(atomic.Uint64)), newStreamTransport(f.addr, connOptions{})} {
		via.close()
		q := fixedQuery(t)
		if _, err := roundTrip(t.Context(), via, q, time.Now().Add(time.Minute)); !errors.Is(err, ErrClosed) {
			t.Errorf("%T after close: %v, want ErrClosed", via, err)
		}
		if openSocketCount(via) != 0 {
			t.Errorf("%T after close holds a connection", via)
		}
	}
	eventually(t, "no TCP connection is open", func() bool { return f.open() == 0 })
}

// newStreamPool returns a Pool that only uses TCP, and its transport to f.
func newStreamPool(t *testing.T, f *fake, opts connOptions) (*Pool, *streamTransport) {
	t.Helper()
	cfg := longTimeout(f)
	cfg.MaxFails, cfg.ReadTimeout, cfg.ForceTCP = 0, time.Hour, true // no failures by time or probes
	p := newPool(t, cfg)
	s := p.servers()[0]
	s.tcp.close()
	opts.unexpected = &s.unexpected
	via := newStreamTransport(f.addr, opts).(*streamTransport)
	s.tcp = via
	return p, via
}

// inFlightCount counts the queries on t's connections.
func (t *streamTransport) inFlightCount() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for c := range t.live {
		n += c.inFlight
	}
	return n
}

// startExchanges starts an exchange for each name and returns the channel of their results.
func startExchanges(t *testing.T, p *Pool, ctx context.Context, names ...string) chan error {
	t.Helper()
	results := make(chan error, len(names))
	for _, name := range names {
		q := question(t, name)
		go func() {
			r, err := p.Exchange(ctx, q, true)
			if err == nil && r.Answers != 1 {
				err = fmt.Errorf("%s: %d answers", name, r.Answers)
			}
			results <- err
		}()
	}
	return results
}

func numberedNames(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("n%d.test.", i))
	}
	return all
}

// TestOutOfOrder: replies arrive in another order than the queries were sent, over one
// connection, or two if the machine is so busy that the first one seems stalled.
func TestOutOfOrder(t *testing.T) {
	const n = 100
	var (
		mu   sync.Mutex // each connection has a goroutine
		held []request
	)
	f := startFake(t, func(r request) {
		mu.Lock()
		defer mu.Unlock()
		if held = append(held, r); len(held) == n {
			for i := range held {
				held[n-1-i].reply(held[n-1-i].answer(1))
			}
		}
	})
	p, via := newStreamPool(t, f, connOptions{expire: time.Hour})
	via.outOfOrder = true // as after an out-of-order reply
	results := startExchanges(t, p, t.Context(), numberedNames(n)...)
	for range n {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if hits, misses := via.reuse(); hits+misses != n || misses > 2 {
		t.Errorf("%d queries found a connection and %d not, want all but the first or two to", hits, misses)
	}
	count(t, p.Stats().Servers[0].UnexpectedReplies, 0, "strays are counted")
}

// TestBreakInFlight: queries in flight on a failed connection are sent again on another one
// and succeed.
func TestBreakInFlight(t *testing.T) {
	const n = 50
	ends := map[string]func(request){
		"closed": func(r request) { r.conn.Close() },
		"reset":  func(r request) { r.conn.(*net.TCPConn).SetLinger(0); r.conn.Close() },
		"inside a message": func(r request) {
			r.conn.Write([]byte{1, 0, 7, 7})
			r.conn.Close()
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			held := 0
			f := startFake(t, func(r request) {
				if r.nth == 1 || r.nth > 1+n {
					answerOK(r)
				} else if held++; held == n {
					end(r)
				}
			})
			var broken atomic.Uint64
			p, via := newStreamPool(t, f, connOptions{expire: time.Hour, brokenConns: &broken})
			noError(t, <-startExchanges(t, p, t.Context(), "first.test."))
			via.mu.Lock()
			via.outOfOrder = true // so that one connection takes all queries
			via.mu.Unlock()
			results := startExchanges(t, p, t.Context(), numberedNames(n)...)
			for range n {
				if err := <-results; err != nil {
					t.Error(err)
				}
			}
			if got := len(f.requests()); got != 1+2*n {
				t.Errorf("%d queries were sent, want each of %d twice", got, n)
			}
			if _, misses := via.reuse(); misses != 2 || broken.Load() != 1 {
				t.Errorf("%d connections were made and %d broke, want 2 and 1", misses, broken.Load())
			}
		})
	}
}

// TestResendsEnd: a query whose connections all fail ends with an error.
func TestResendsEnd(t *testing.T) {
	f := startFake(t, func(r request) {
		if r.Question[0].Name == "deadly.test." {
			r.conn.Close()
			return
		}
		answerOK(r)
	})
	_, via := newStreamPool(t, f, connOptions{expire: time.Hour})
	defer via.close()
	for i := range 5 {
		// Each connection has brought a reply before, so its failure is not the server's.
		via.mu.Lock()
		for c := range via.live {
			c.replies = 1
		}
		via.mu.Unlock()
		q := newQuery()
		q.request, q.payload = question(t, "deadly.test."), DefaultPayload
		q.build(true, new(server))
		_, err := roundTrip(t.Context(), via, q, time.Now().Add(time.Hour))
		if err == nil || !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("flight %d: %v; want that the server closed the connection", i, err)
		}
		if q.resends > maxStreamResends {
			t.Errorf("the query was sent %d times again", q.resends)
		}
	}
	count(t, via.inFlightCount(), 0, "queries are in flight")
	q := fixedQuery(t)
	q.deadline, q.resends = time.Now().Add(time.Hour), maxStreamResends
	via.mu.Lock()
	defer via.mu.Unlock()
	if via.resend(q, time.Now()) {
		t.Error("a query that was on too many connections is sent again")
	}
}

// TestConnsUnderLoad: connections are opened while all others are at their limit, up to
// maxConns, and no more queries are in flight than they can hold.
func TestConnsUnderLoad(t *testing.T) {
	f := startFake(t, ignore)
	_, via := newStreamPool(t, f, connOptions{expire: time.Hour})
	defer via.close()
	var calls []*query
	begin := func() *query {
		q := fixedQuery(t)
		q.deadline = time.Now().Add(time.Hour)
		q.client = share.Client(1 + len(calls)) // a single client would get half of the capacity
		via.start(q)
		calls = append(calls, q)
		return q
	}
	// settle waits until no connection is connecting, and resets the stall detection.
	settle := func() {
		eventually(t, "all connections are there", func() bool {
			via.mu.Lock()
			defer via.mu.Unlock()
			there := true
			for c := range via.live {
				c.owedSince = time.Time{}
				there = there && c.conn != nil
			}
			return there
		})
	}
	via.outOfOrder = true // otherwise the pipeline limit is lower
	crowded := func(links int) {
		t.Helper()
		eventually(t, "the server has all queries", func() bool { return len(f.requests()) == len(calls) })
		if n := openSocketCount(via); n != links || f.open() != links {
			t.Errorf("%d queries are in flight on %d connections, want %d", len(calls), n, links)
		}
	}
	for links := 1; links <= maxConns; links++ {
		for range pipelineLimit {
			settle()
			begin()
		}
		crowded(links)
	}
	for range maxConns*maxInFlightPerConn - len(calls) {
		settle()
		begin()
	}
	crowded(maxConns)
	if over, err := completed(begin()); !over || !errors.Is(err, ErrBusy) {
		t.Errorf("one more than may be in flight: landed %t, with %v; want ErrBusy", over, err)
	}
	via.mu.Lock()
	for c := range via.live {
		if len(c.queries) > maxInFlightPerConn {
			t.Errorf("%d IDs are taken on one connection", len(c.queries))
		}
	}
	via.mu.Unlock()
	for _, q := range calls[:len(calls)-1] {
		if !via.cancel(q) {
			t.Fatal("a call in flight can't be withdrawn")
		}
	}
	eventually(t, "connections full of queries that nobody waits for are closed", func() bool { return f.open() == 0 })
}

func TestLargeBufferIsNotKept(t *testing.T) {
	q := newQuery()
	q.growReply(maxKeptBuffer + 1)
	q.reset()
	if len(q.reply) != initialReplySize {
		t.Errorf("%d bytes are kept for the next query, want %d", len(q.reply), initialReplySize)
	}
}

func TestNoFreeConnection(t *testing.T) {
	arrived := make(chan request, 2)
	f := startFake(t, func(r request) { arrived <- r })
	cfg := forwardTo(f)
	p := newPool(t, cfg)
	p.servers()[0].udp = newUDPTransport(f.addr, udpOptions{maxInFlight: 1, expire: time.Hour}, new(atomic.Uint64))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	q := question(t, "example.org.")
	wg.Go(func() { p.Exchange(ctx, q, false) })
	<-arrived

	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := p.Exchange(gone, question(t, "example.org."), false); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting for a socket with a cancelled ctx: %v, want context.Canceled", err)
	}
	soon, stop := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer stop()
	if _, err := p.Exchange(soon, question(t, "example.org."), false); err == nil {
		t.Error("an exchange without a socket succeeded")
	}
	cancel()
	wg.Wait()
}

func TestTruncatedKeepsUDP(t *testing.T) {
	f := startFake(t, truncateUDP(1, 2))
	cfg := forwardTo(f)
	cfg.Policy = config.PolicyRandom
	p := newPool(t, cfg)
	for range 3 {
		r, err := p.Exchange(t.Context(), question(t, "example.org."), false)
		if err != nil || r.Answers != 2 {
			t.Fatalf("%d answers, %v; want 2", r.Answers, err)
		}
	}
	got := p.Stats().Servers[0]
	if got.UDP.Misses != 1 || got.TCP.Misses != 1 {
		t.Errorf("UDP %+v, TCP %+v; want one connection of each", got.UDP, got.TCP)
	}
}
