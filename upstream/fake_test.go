// Inside the package: a Pool for tests has no budget for hedges.

package upstream

import (
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"github.com/quic-go/quic-go"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// fake is a scripted DNS server on one loopback port: a [fakedns.Server] over UDP and TCP, or over TLS, or a server of its own
// over QUIC. It gives scripts the connection itself, to write parts of frames and to close it.
type fake struct {
	t      *testing.T
	tls    *tls.Config     // for DNS over TLS; nil for UDP and TCP
	quic   *fakeQUIC       // for DNS over QUIC; nil for the others
	server *fakedns.Server // nil for QUIC
	addr   netip.AddrPort
	script atomic.Pointer[script]

	mu   sync.Mutex
	seen []request
}

// request is one query that reached a fake, and the way to reply.
type request struct {
	*dns.Msg
	over string         // "udp", "tcp", also with TLS, or "quic"
	from netip.AddrPort // the client
	nth  int            // of all queries, from 1
	conn net.Conn       // nil for UDP and QUIC

	query    *fakedns.Query // nil for QUIC
	stream   *quic.Stream   // nil for the others
	quicConn *quic.Conn     // the same
	fake     *fake
}

// script decides how a fake answers a query. Doing nothing leaves it unanswered.
type script func(r request)

// startFake starts a fake that runs until the test ends.
func startFake(t *testing.T, s script) *fake {
	t.Helper()
	f := &fake{t: t}
	f.run(s)
	return f
}

// run starts a configured fake.
func (f *fake) run(s script) {
	f.t.Helper()
	f.script.Store(&s)
	if f.quic != nil {
		f.runQUIC()
		return
	}
	f.server = fakedns.Start(f.t, func(q *fakedns.Query) {
		r := request{Msg: q.Msg, over: "udp", from: q.From, conn: q.Conn(), query: q}
		if r.conn != nil {
			r.over = "tcp"
		}
		f.take(r)
	}, fakedns.Options{TLS: f.tls, Malformed: func(msg []byte) { f.t.Errorf("the pool sent what is no query: %x", msg) }})
	f.addr = f.server.Addr()
}

// take passes a query to the script.
func (f *fake) take(r request) {
	r.fake = f
	f.mu.Lock()
	r.nth = len(f.seen) + 1
	f.seen = append(f.seen, r)
	f.mu.Unlock()
	(*f.script.Load())(r)
}

// requests returns the queries received so far.
func (f *fake) requests() []request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]request(nil), f.seen...)
}

// open returns the number of connections that clients have not closed.
func (f *fake) open() int { return f.server.Conns() }

// send sends b unchanged, with a length prefix over TCP and QUIC; a stream of QUIC ends behind it.
func (r request) send(b []byte) {
	if r.stream != nil {
		r.stream.Write(prefixed(b))
		r.stream.Close()
		return
	}
	r.query.Send(b)
}

// prefixed returns b behind its length.
func prefixed(b []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)
}

// reply sends m.
func (r request) reply(m *dns.Msg) { r.send(r.pack(m)) }

func (r request) pack(m *dns.Msg) []byte {
	m.Compress = true
	b, err := m.Pack()
	if err != nil {
		r.fake.t.Errorf("the script's reply does not pack: %v", err)
	}
	return b
}

// answer returns an answer with n addresses.
func (r request) answer(n int) *dns.Msg {
	m := new(dns.Msg).SetReply(r.Msg)
	for i := range n {
		m.Answer = append(m.Answer, &dns.A{
			Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60},
			A:   net.IPv4(192, 0, byte(i>>8), byte(i)),
		})
	}
	return m
}

// rcode returns an error reply with the question.
func (r request) rcode(c int) *dns.Msg { return new(dns.Msg).SetRcode(r.Msg, c) }

// headerOnly returns an error reply that is only a header.
func (r request) headerOnly(c int) []byte {
	m := r.rcode(c)
	m.Question = nil
	return r.pack(m)
}

// Common scripts.
func answerOK(r request) { r.reply(r.answer(1)) }
func ignore(request)     {}

// question returns a parsed query for name's A records.
func question(t testing.TB, name string) *wire.Query {
	t.Helper()
	m := new(dns.Msg).SetQuestion(name, dns.TypeA)
	b, err := m.Pack()
	noError(t, err)
	var q wire.Query
	if v := q.Parse(b); v != wire.Serve {
		t.Fatalf("the query for %s does not parse: verdict %d", name, v)
	}
	return &q
}

// forwardTo returns a forward directive to the fakes with default settings, but frequent
// probes.
func forwardTo(to ...*fake) *config.Forward {
	cfg := &config.Forward{
		From:           wire.Root,
		Policy:         config.PolicySequential,
		MaxFails:       2,
		Expire:         10 * time.Second,
		ReadTimeout:    2 * time.Second,
		HealthInterval: 2 * time.Millisecond,
		HealthDomain:   wire.Root,
	}
	for _, f := range to {
		cfg.To = append(cfg.To, config.Target{Addr: f.addr})
	}
	return cfg
}

// newPool returns a Pool that is closed when the test ends. Its deadline is long and it
// sends no hedges, so that a busy machine fails no test.
func newPool(t testing.TB, cfg *config.Forward) *Pool {
	t.Helper()
	p := newHedgingPool(t, cfg)
	p.hedgeBudget.credit.Store(-1 << 40)
	return p
}

// newHedgingPool is newPool with hedges.
func newHedgingPool(t testing.TB, cfg *config.Forward) *Pool {
	t.Helper()
	p := New(cfg, Options{Deadline: 30 * time.Second, ProbeTimeout: 50 * time.Millisecond})
	t.Cleanup(func() { p.Close() })
	return p
}

// eventually waits until ok returns true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for give := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(give) {
			t.Fatalf("still waiting: %s", what)
		}
	}
}

// noError ends the test if err is not nil.
func noError(t testing.TB, err error) {
	if err != nil {
		t.Helper() // not before: benchmarks would measure it
		t.Fatal(err)
	}
}

// equal fails the test if want and got differ. What is said about them has the format of [fmt.Sprintf].
func equal(t testing.TB, want, got any, format string, args ...any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", fmt.Sprintf(format, args...), d)
	}
}

// count fails the test if there are not as many as wanted; what says of what.
func count[N comparable](t testing.TB, got, want N, what string) {
	t.Helper()
	if got != want {
		t.Errorf("%v %s, want %v", got, what, want)
	}
}
