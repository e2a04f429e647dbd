// Inside the package, as fake_test.go.

package upstream

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/quic-go/quic-go"

	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// fakeQUIC is the part of a [fake] that speaks DNS over QUIC.
type fakeQUIC struct {
	tls    *tls.Config
	config *quic.Config
	// reset is the key of stateless resets; nil: none are sent.
	reset *quic.StatelessResetKey
	// at is the port to listen on; 0: any.
	at uint16

	mu        sync.Mutex
	transport *quic.Transport
	conns     []*quic.Conn
	all       int
	done      sync.WaitGroup
}

// startFakeQUIC starts a fake that speaks DNS over QUIC.
func startFakeQUIC(t *testing.T, cfg *tls.Config, set func(*fakeQUIC), s script) *fake {
	t.Helper()
	f := &fake{t: t, quic: &fakeQUIC{tls: cfg, config: &quic.Config{}}}
	cfg.NextProtos = []string{doqALPN}
	if set != nil {
		set(f.quic)
	}
	f.run(s)
	return f
}

// runQUIC listens and serves until the test ends.
func (f *fake) runQUIC() {
	f.t.Helper()
	q := f.quic
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(q.at)})
	if err != nil {
		f.t.Fatal(err)
	}
	f.addr = socket.LocalAddr().(*net.UDPAddr).AddrPort()
	q.transport = &quic.Transport{Conn: socket, StatelessResetKey: q.reset}
	l, err := q.transport.Listen(q.tls, q.config)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(f.killQUIC)
	f.quic.done.Go(func() {
		for {
			c, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			q.mu.Lock()
			q.conns = append(q.conns, c)
			q.all++
			q.mu.Unlock()
			f.quic.done.Go(func() { f.serveQUIC(c) })
		}
	})
}

// killQUIC ends the server without a word to its clients, as a crash does.
func (f *fake) killQUIC() {
	f.quic.transport.Close()
	f.quic.transport.Conn.Close()
	f.quic.done.Wait()
}

// serveQUIC passes the queries of c to the script.
func (f *fake) serveQUIC(c *quic.Conn) {
	for {
		s, err := c.AcceptStream(context.Background())
		if err != nil {
			return
		}
		f.quic.done.Go(func() {
			b, err := io.ReadAll(s)
			if err != nil { // canceled
				return
			}
			if len(b) < 2 || len(b) != 2+int(binary.BigEndian.Uint16(b)) {
				f.t.Errorf("a stream has %x, want one message with its length", b)
				return
			}
			from := c.RemoteAddr().(*net.UDPAddr).AddrPort()
			m := new(dns.Msg)
			if err := m.Unpack(b[2:]); err != nil {
				f.t.Errorf("the pool sent what is no query: %v", err)
				return
			}
			f.take(request{Msg: m, over: fakedns.QUIC, stream: s, quicConn: c, from: from})
		})
	}
}

// quicConns returns how many connections were made, and how many are open.
func (f *fake) quicConns() (all, open int) {
	f.quic.mu.Lock()
	defer f.quic.mu.Unlock()
	for _, c := range f.quic.conns {
		if c.Context().Err() == nil {
			open++
		}
	}
	return f.quic.all, open
}

// newDoQ returns a transport to f that trusts a, with long timeouts.
func newDoQ(t *testing.T, a *authority, f *fake, opts connOptions) *doqTransport {
	t.Helper()
	if opts.tls == nil {
		opts.tls = a.client("dns.test")
	}
	via := newDoQTransport(f.addr, opts).(*doqTransport)
	t.Cleanup(via.close)
	return via
}

// startLong starts a query with a deadline that no test reaches.
func startLong(t *testing.T, via transport) *query {
	t.Helper()
	q := fixedQuery(t)
	q.deadline = time.Now().Add(time.Hour)
	via.start(q)
	return q
}
