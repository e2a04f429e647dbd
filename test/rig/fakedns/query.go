package fakedns

import (
	"crypto/tls"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"
	"github.com/quic-go/quic-go"
)

// Handler answers a query. The server calls it on the goroutine that reads, so queries of one
// socket or connection arrive in order; a handler that waits uses [Query.Go]. It may keep q
// and reply later, several times, or never.
type Handler func(q *Query)

// Query is a query with the way back. Replies to a client that has gone are dropped.
type Query struct {
	*dns.Msg
	Transport string         // UDP, TCP, TLS, HTTPS or QUIC
	From      netip.AddrPort // the client; zero for HTTPS
	Number    int            // of all queries to the server, from 1

	server *Server
	conn   net.Conn     // nil for UDP, HTTPS and QUIC
	frames *frameWriter // nil for UDP, HTTPS and QUIC
	http   chan<- []byte
	stream *quic.Stream // nil for others than QUIC
}

// frameWriter serializes the frames of a connection.
type frameWriter struct {
	mu   sync.Mutex
	conn net.Conn
}

func (w *frameWriter) write(b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = w.conn.Write(b)
}

// Conn returns the connection, for handlers that write parts of frames and close it when they like; nil for UDP, HTTPS and
// QUIC.
func (q *Query) Conn() net.Conn { return q.conn }

// Go runs f on a goroutine of its own, which the server's Close waits for.
func (q *Query) Go(f func()) { q.server.spawn(f) }

// Done returns a channel that is closed when the server closes, for handlers that wait.
func (q *Query) Done() <-chan struct{} { return q.server.closed }

// Reply sends m. A message that can't be packed is dropped.
func (q *Query) Reply(m *dns.Msg) {
	if b, err := m.Pack(); err == nil {
		q.Send(b)
	}
}

// ReplyAfter sends m after the time has passed, unless the server closes first.
func (q *Query) ReplyAfter(d time.Duration, m *dns.Msg) {
	if d == 0 {
		q.Reply(m)
		return
	}
	q.Go(func() {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			q.Reply(m)
		case <-q.server.closed:
		}
	})
}

// Send sends b as it is, with its length in front over TCP, TLS and QUIC, whose stream ends
// behind it.
func (q *Query) Send(b []byte) {
	switch {
	case q.stream != nil:
		q.sendStream(Frame(b))
	case q.http != nil:
		select {
		case q.http <- append([]byte(nil), b...):
		default: // a request has one response
		}
	case q.conn != nil:
		q.frames.write(Frame(b))
	default:
		_, _ = q.server.udp.WriteToUDPAddrPort(b, q.From)
	}
}

// SendPart sends the first n bytes of the frame of b and closes the connection, or ends
// the stream of QUIC. Over HTTPS the
// response is the first n bytes of b. Over UDP it has no effect.
func (q *Query) SendPart(b []byte, n int) {
	switch {
	case q.stream != nil:
		frame := Frame(b)
		q.sendStream(frame[:min(n, len(frame))])
		return
	case q.http != nil:
		q.Send(b[:min(n, len(b))])
		return
	}
	if q.conn == nil {
		return
	}
	if frame := Frame(b); n > 0 {
		q.frames.write(frame[:min(n, len(frame))])
	}
	q.conn.Close()
}

// Reset resets the connection, or the stream of HTTP or QUIC. Over UDP it has no effect.
func (q *Query) Reset() {
	if q.stream != nil {
		q.resetStream()
		return
	}
	if q.http != nil {
		select {
		case q.http <- nil:
		default:
		}
		return
	}
	raw := q.conn
	if t, ok := raw.(*tls.Conn); ok {
		raw = t.NetConn()
	}
	if t, ok := raw.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
		_ = t.Close()
	}
}

// MaxSize returns the size of the largest reply that the client accepts.
func (q *Query) MaxSize() int {
	if q.Transport != UDP {
		return dns.MaxMsgSize
	}
	if opt := q.IsEdns0(); opt != nil {
		return max(dns.MinMsgSize, int(opt.UDPSize()))
	}
	return dns.MinMsgSize
}

// Answers makes a Handler that replies with what reply returns; nil is no reply. Over UDP a
// reply that the client has no room for is truncated. reply runs on a goroutine of its own for
// each query.
func Answers(reply func(q *dns.Msg) *dns.Msg) Handler {
	return func(q *Query) {
		q.Go(func() {
			if m := reply(q.Msg); m != nil {
				m.Truncate(q.MaxSize())
				q.Reply(m)
			}
		})
	}
}

// Address returns a reply to q with the addresses, for queries of their type; otherwise NODATA
// without an SOA record. Texts that are not addresses panic.
func Address(q *dns.Msg, ttl uint32, addrs ...string) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	m.RecursionAvailable = true
	for _, text := range addrs {
		a := netip.MustParseAddr(text)
		head := dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: ttl}
		if a.Is6() {
			head.Rrtype = dns.TypeAAAA
		}
		switch {
		case q.Question[0].Qtype != head.Rrtype:
		case a.Is6():
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: head, AAAA: a.AsSlice()})
		default:
			m.Answer = append(m.Answer, &dns.A{Hdr: head, A: a.AsSlice()})
		}
	}
	return m
}

// Negative returns a reply to q with the rcode and an SOA record of the root. The TTL is that
// of the negative answer (RFC 2308, section 5).
func Negative(q *dns.Msg, rcode int, ttl uint32) *dns.Msg {
	m := new(dns.Msg).SetRcode(q, rcode)
	m.RecursionAvailable = true
	m.Ns = []dns.RR{&dns.SOA{
		Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: ttl},
		Ns:  "ns.", Mbox: "host.", Serial: 1, Refresh: 3600, Retry: 3600, Expire: 3600, Minttl: ttl,
	}}
	return m
}
