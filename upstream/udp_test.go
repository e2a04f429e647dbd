// Inside the package: the tests use the UDP transport and count its sockets.

package upstream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// newUDPPool returns a Pool whose only transport has these limits, and that transport.
func newUDPPool(t *testing.T, f *fake, bounds udpOptions) (*Pool, *udpTransport) {
	t.Helper()
	cfg := forwardTo(f)
	cfg.MaxFails, cfg.ReadTimeout = 0, time.Hour // no failures by time or probes
	p := newPool(t, cfg)
	s := p.servers()[0]
	via := newUDPTransport(f.addr, bounds, &s.unexpected)
	s.udp = via
	return p, via
}

// mustAnswer makes an exchange, which must succeed.
func mustAnswer(t *testing.T, p *Pool, name string) {
	t.Helper()
	_, err := p.Exchange(t.Context(), question(t, name), false)
	noError(t, err)
}

// holdReplies answers everything except names below hold.test.
func holdReplies(r request) {
	if !strings.HasSuffix(r.Question[0].Name, "hold.test.") {
		answerOK(r)
	}
}

// inFlightCount counts the queries on t's sockets.
func (t *udpTransport) inFlightCount() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for s := range t.live {
		n += s.inFlight
	}
	return n
}

// startHeld starts an exchange that gets no answer until the script changes.
func startHeld(t *testing.T, p *Pool, via *udpTransport, ctx context.Context) (result chan error) {
	t.Helper()
	before := via.inFlightCount()
	q := question(t, "hold.test.")
	result = make(chan error, 1)
	go func() {
		_, err := p.Exchange(ctx, q, false)
		result <- err
	}()
	eventually(t, "one more query is in flight", func() bool { return via.inFlightCount() == before+1 })
	return result
}

// TestRetiredSocketFinishes: a retired socket is closed after its last answer, not before.
func TestRetiredSocketFinishes(t *testing.T) {
	f := startFake(t, holdReplies)
	p, via := newUDPPool(t, f, udpOptions{maxInFlight: 8, maxOpen: 1, expire: time.Hour})
	mustAnswer(t, p, "first.test.")
	held := startHeld(t, p, via, t.Context())
	for range maxQueriesPerSocket - 2 {
		mustAnswer(t, p, "more.test.")
	}
	if hits, misses := via.reuse(); hits != maxQueriesPerSocket-1 || misses != 1 {
		t.Fatalf("%d queries found a port open and %d not, want all but the first to", hits, misses)
	}
	mustAnswer(t, p, "next.test.")
	if _, misses := via.reuse(); misses != 2 {
		t.Errorf("%d ports were opened for %d queries, want 2", misses, maxQueriesPerSocket+1)
	}
	count(t, openSocketCount(via), 2, "ports are live: the new one and the one that waits")
	var waits request
	for _, r := range f.requests() {
		if r.Question[0].Name == "hold.test." {
			waits = r
		}
	}
	answerOK(waits)
	if err := <-held; err != nil {
		t.Errorf("the answer to a retired port: %v", err)
	}
	eventually(t, "the retired port is closed", func() bool { return openSocketCount(via) == 1 })
}

// TestSocketExpires: an expired socket takes no query, and is closed even if none comes.
func TestSocketExpires(t *testing.T) {
	f := startFake(t, holdReplies)
	p, via := newUDPPool(t, f, udpOptions{maxInFlight: 8, maxOpen: 1, expire: time.Hour})
	mustAnswer(t, p, "first.test.")
	via.mu.Lock()
	via.open[nil][0].openedAt = time.Now().Add(-time.Hour)
	via.mu.Unlock()
	mustAnswer(t, p, "next.test.")
	if hits, misses := via.reuse(); hits != 0 || misses != 2 {
		t.Errorf("%d hits and %d misses, want a port for each", hits, misses)
	}
	ctx, cancel := context.WithCancel(t.Context())
	held := startHeld(t, p, via, ctx)
	via.closeIdle(time.Now().Add(2 * time.Hour))
	eventually(t, "the first port is closed", func() bool { return openSocketCount(via) == 1 })
	cancel()
	if err := <-held; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled on a retired port: %v", err)
	}
	eventually(t, "the second port is closed", func() bool { return openSocketCount(via) == 0 })
}

// TestIDGuesses: after maxUnexpected unexpected datagrams a socket gets no more queries,
// and those in flight still get their answers.
func TestIDGuesses(t *testing.T) {
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
	p, via := newUDPPool(t, f, udpOptions{maxInFlight: 8, maxOpen: 1, expire: time.Hour})
	mustAnswer(t, p, "first.test.")
	mustAnswer(t, p, "next.test.")
	if _, misses := via.reuse(); misses != 2 {
		t.Errorf("%d ports were opened, want a second one", misses)
	}
	count(t, p.Stats().Servers[0].UnexpectedReplies, maxUnexpected, "strays are counted")
	eventually(t, "the first port is closed", func() bool { return openSocketCount(via) == 1 })
}

// TestSocketsUnderLoad: sockets are opened while all others are busy, up to maxOpen, and
// queries are spread over them.
func TestSocketsUnderLoad(t *testing.T) {
	f := startFake(t, holdReplies)
	p, via := newUDPPool(t, f, udpOptions{maxInFlight: 400, maxOpen: 4, expire: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	var all []chan error
	for range 100 {
		all = append(all, startHeld(t, p, via, ctx))
	}
	from := map[netip.AddrPort]int{}
	eventually(t, "the server has all queries", func() bool { return len(f.requests()) == 100 })
	for _, r := range f.requests() {
		from[r.from]++
	}
	if len(from) != 4 || openSocketCount(via) != 4 {
		t.Errorf("100 queries at once came from %d ports, and %d are live; want 4", len(from), openSocketCount(via))
	}
	for port, n := range from {
		if n < 5 || n > 50 { // 25 expected; by chance once in a million runs
			t.Errorf("%d of 100 queries came from %v", n, port)
		}
	}
	cancel()
	for _, held := range all {
		if err := <-held; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	}
	count(t, via.inFlightCount(), 0, "queries are in flight after all were cancelled")
	mustAnswer(t, p, "next.test.")
	if hits, _ := via.reuse(); hits == 0 {
		t.Error("a port whose queries were cancelled is not used again")
	}
}

// TestRefused: an ICMP error immediately fails the query that it quotes, and no other on
// its socket, with an ErrLocal.
func TestRefused(t *testing.T) {
	f := startFake(t, holdReplies)
	p, via := newUDPPool(t, f, udpOptions{maxInFlight: 16, maxOpen: 1, expire: time.Hour})
	mustAnswer(t, p, "first.test.")
	ctx, cancel := context.WithCancel(t.Context())
	var all []chan error
	for range 4 {
		all = append(all, startHeld(t, p, via, ctx))
	}
	eventually(t, "the server has all queries", func() bool { return len(f.requests()) == 5 })
	f.server.Close()
	_, err := p.Exchange(t.Context(), question(t, "next.test."), false)
	if !errors.Is(err, ErrFailed) || !errors.Is(err, syscall.ECONNREFUSED) || !errors.Is(err, ErrLocal) {
		t.Errorf("with nobody there: %v, want ErrFailed and ErrLocal", err)
	}
	count(t, via.inFlightCount(), 4, "of 4 queries are in flight that were asked before")
	cancel()
	for _, held := range all {
		if err := <-held; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	}
}

// TestSendFails: an error of sending fails that query only, and is no timeout although
// EAGAIN looks like one. The socket takes no more queries.
func TestSendFails(t *testing.T) {
	f := startFake(t, ignore)
	_, via := newUDPPool(t, f, udpOptions{maxInFlight: 8, maxOpen: 1, expire: time.Hour})
	conn, err := net.DialUDP("udp", nil, via.remote)
	noError(t, err)
	defer conn.Close()
	s := &udpSocket{conn: conn, total: &via.inFlight}
	via.open[nil] = append(via.open[nil], s)
	var all []*query
	for range 3 {
		q := fixedQuery(t)
		s.add(q)
		all = append(all, q)
	}
	via.failUnsent(s, all[1], syscall.EAGAIN)
	for i, q := range all {
		over, err := completed(q)
		if over != (i == 1) || over && (!isLocal(err) || errors.Is(publicError(err), ErrTimeout)) {
			t.Errorf("call %d: landed %t, with %v", i, over, err)
		}
	}
	via.failUnsent(s, all[1], syscall.EAGAIN) // complete already
	if s.inFlight != 2 || via.inFlight != 2 || len(via.open) != 0 {
		t.Errorf("%d queries are in flight, %d ports are open", s.inFlight, len(via.open))
	}
}

// hostile is a server that delays replies and sends forged ones. The address in each
// correct answer is derived from its name.
type hostile struct {
	mu     sync.Mutex
	random *rand.Rand
	late   []request
}

func (h *hostile) script(r request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	good := r.answer(1)
	good.Answer[0].(*dns.A).A = addressOf(r.Question[0].Name)
	switch h.random.IntN(10) {
	case 0: // dropped
	case 1: // later, in another order, repeatedly
		h.late = append(h.late, r)
		h.random.Shuffle(len(h.late), func(i, j int) { h.late[i], h.late[j] = h.late[j], h.late[i] })
		for _, old := range h.late {
			m := old.answer(1)
			m.Answer[0].(*dns.A).A = addressOf(old.Question[0].Name)
			old.reply(m)
		}
		h.late = h.late[:len(h.late)/2]
	case 2:
		r.reply(good)
		r.reply(good)
	case 3: // an answer to another question with this ID
		other := good.Copy()
		other.Question[0].Name = fmt.Sprintf("n%d.test.", h.random.IntN(hostileNames))
		other.Answer[0].Header().Name = other.Question[0].Name
		r.reply(other)
		r.reply(good)
	case 4: // this answer with all nearby IDs
		for range 20 {
			other := good.Copy()
			other.Answer[0].(*dns.A).A = net.IPv4(10, 0, 0, 0)
			if other.Id = uint16(h.random.Uint32()); other.Id != r.Id {
				r.reply(other)
			}
		}
		r.reply(good)
	case 5:
		for _, b := range unexpectedReplies(r) {
			r.send(b)
		}
		r.reply(good)
	case 6:
		r.send(r.pack(good)[:h.random.IntN(headerLen)])
		r.reply(good)
	default:
		r.reply(good)
	}
}

const hostileNames = 3000

func addressOf(name string) net.IP {
	var n int
	fmt.Sscanf(name, "n%d.", &n)
	return net.IPv4(192, 1+byte(n>>16), byte(n>>8), byte(n))
}

// TestHostile makes many exchanges at once with a hostile server, a dead one and a closed
// port: each gets its own answer or an error, and nothing is left over.
func TestHostile(t *testing.T) {
	for name, plain := range map[string]bool{"recvmmsg": false, "recvfrom": true} {
		t.Run(name, func(t *testing.T) {
			goroutines, before := runtime.NumGoroutine(), openSockets(t)
			t.Run("exchanges", func(t *testing.T) { attackUDP(t, plain) })
			eventually(t, "goroutines and sockets are gone", func() bool {
				return runtime.NumGoroutine() <= goroutines && openSockets(t) <= before
			})
		})
	}
}

func attackUDP(t *testing.T, plain bool) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	h := &hostile{random: rand.New(rand.NewPCG(seed, 0))}
	bad, dead, gone := startFake(t, h.script), startFake(t, ignore), startFake(t, ignore)
	gone.server.Close()
	cfg := forwardTo(bad, dead, bad, gone)
	cfg.Policy = config.PolicyRoundRobin
	cfg.MaxFails, cfg.ReadTimeout = 0, 50*time.Millisecond
	p := newHedgingPool(t, cfg)
	for _, s := range p.servers() {
		via := newUDPTransport(s.addr, udpOptions{maxInFlight: 40, maxOpen: 4, expire: 20 * time.Millisecond}, &s.unexpected)
		via.batches.New = func() any {
			b := newBatch()
			b.noRecvmmsg = plain
			return b
		}
		s.udp = via
	}
	askHostile(t, p)
	for _, s := range p.servers() {
		u := s.udp.(*udpTransport)
		// A hedged query that lost ends after the answer.
		eventually(t, "no query is in flight to "+s.label, func() bool {
			return u.inFlightCount() == 0 && u.inFlight == 0
		})
	}
	if p.Stats().Servers[0].UnexpectedReplies == 0 {
		t.Error("no stray is counted")
	}
	p.Close()
	count(t, liveConns(p), 0, "sockets are held by a closed pool")
}

// exchangeHostile reports whether an exchange was answered, and fails the test if the
// answer is wrong. Some exchanges are canceled.
func exchangeHostile(t *testing.T, p *Pool, name string) bool {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if rand.IntN(10) == 0 {
		go cancel()
	}
	q := question(t, name)
	resp, err := p.Exchange(ctx, q, false)
	if err != nil {
		if !errors.Is(err, ErrTimeout) && !errors.Is(err, ErrFailed) && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		return false
	}
	var reply wire.Reply
	reply.Start(nil, q)
	reply.CopyRaw(resp.Packed)
	var m dns.Msg
	if err := m.Unpack(reply.Finish(wire.MaxMessage)); err != nil {
		t.Errorf("%s: the answer is no message: %v", name, err)
		return false
	}
	var got []string
	for _, rr := range m.Answer {
		got = append(got, rr.Header().Name+" "+rr.(*dns.A).A.String())
	}
	equal(t, []string{name + " " + addressOf(name).String()}, got, "%s has another's answer", name)
	return true
}

// openSockets counts the process's sockets.
func openSockets(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	noError(t, err)
	n := 0
	for _, f := range files {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

// askHostile asks p for all names at once; some must be answered.
func askHostile(t *testing.T, p *Pool) {
	t.Helper()
	var answered, next atomic.Int64
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for n := next.Add(1); n <= hostileNames; n = next.Add(1) {
				if exchangeHostile(t, p, fmt.Sprintf("n%d.test.", n)) {
					answered.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if answered.Load() == 0 {
		t.Error("no exchange was answered")
	}
}
