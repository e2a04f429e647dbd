// Inside the package: the tests use the DoQ transport without a Pool.

package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/nodens-dns/nodens/internal/wire"
)

// TestDoQRequest checks what a server receives, and that one connection is reused.
func TestDoQRequest(t *testing.T) {
	a := newAuthority(t)
	f := startFakeQUIC(t, a.server("dns.test"), nil, answerOK)
	via := newDoQ(t, a, f, connOptions{expire: time.Hour})
	for range 3 {
		q := fixedQuery(t)
		msg, err := roundTrip(t.Context(), via, q, time.Now().Add(20*time.Second))
		noError(t, err)
		if r, err := parseResponse(msg, q); err != nil || r.Answers != 1 {
			t.Errorf("%d answers, %v; want 1", r.Answers, err)
		}
	}
	for _, r := range f.requests() {
		if r.Id != 0 || r.stream.StreamID()%4 != 0 {
			t.Errorf("ID %d on stream %d, want 0 on a stream that the client opened", r.Id, r.stream.StreamID())
		}
		if s := r.quicConn.ConnectionState(); s.Used0RTT || s.TLS.NegotiatedProtocol != doqALPN {
			t.Errorf("0-RTT %t, protocol %q", s.Used0RTT, s.TLS.NegotiatedProtocol)
		}
	}
	if hits, misses := via.reuse(); hits != 2 || misses != 1 {
		t.Errorf("%d queries used the connection again and %d opened one, want 2 and 1", hits, misses)
	}
	if all, _ := f.quicConns(); all != 1 {
		t.Errorf("%d connections, want 1", all)
	}
}

// TestDoQErrors: an invalid reply is an error that gives the reason, and a server that
// violates the protocol loses the connection.
func TestDoQErrors(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	raw := func(b ...byte) script {
		return func(r request) {
			r.stream.Write(b)
			r.stream.Close()
		}
	}
	for _, tt := range []struct {
		name   string
		script script
		client *tls.Config
		want   string
		closed bool // the connection is closed with DOQ_PROTOCOL_ERROR
	}{
		{"nothing", raw(), nil, "ends within the reply", true},
		{"half a length", raw(0), nil, "ends within the reply", true},
		{"a length of 0", raw(0, 0), nil, "ends within the reply", true},
		{"cut off", raw(0, 100, 0, 0), nil, "ends within the reply", true},
		{"another ID", func(r request) {
			b := r.pack(r.answer(1))
			b[1] = 7
			r.send(b)
		}, nil, "is not 0", true},
		{"two replies", func(r request) {
			b := prefixed(r.pack(r.answer(1)))
			r.stream.Write(append(b, b...))
		}, nil, "more than one reply", true},
		{"garbage", raw(0, 12, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10), nil, errMismatch.Error(), false},
		{"another's answer", func(r request) {
			m := r.answer(1)
			m.Question[0].Name = "other.test."
			r.reply(m)
		}, nil, errMismatch.Error(), false},
		{"a stream reset", func(r request) { r.stream.CancelWrite(doqExcessiveLoad) }, nil, "DOQ_EXCESSIVE_LOAD", false},
		{"a connection closed", func(r request) { r.quicConn.CloseWithError(doqInternalError, "") }, nil, "DOQ_INTERNAL_ERROR", false},
		{"another name", answerOK, a.client("other.test"), "valid for dns.test, not other.test", false},
		{"another authority", answerOK, other.client("dns.test"), "unknown authority", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := startFakeQUIC(t, a.server("dns.test"), nil, tt.script)
			via := newDoQ(t, a, f, connOptions{expire: time.Hour, tls: tt.client})
			err := roundTripOnce(t, via)
			if err == nil || !strings.Contains(err.Error(), tt.want) || isTimeout(err) {
				t.Errorf("the error is %v, want one about %q", err, tt.want)
			}
			if !tt.closed {
				return
			}
			c := f.requests()[0].quicConn
			<-c.Context().Done()
			var app *quic.ApplicationError
			if err := context.Cause(c.Context()); !errors.As(err, &app) || app.ErrorCode != doqProtocolError {
				t.Errorf("the connection ended with %v, want DOQ_PROTOCOL_ERROR", err)
			}
			if via.brokenConns.Load() != 1 {
				t.Errorf("%d broken connections are counted, want 1", via.brokenConns.Load())
			}
		})
	}
}

// TestDoQHandshakeErrors: a server that can't be used is an error that says what to check.
func TestDoQHandshakeErrors(t *testing.T) {
	a := newAuthority(t)
	for _, tt := range []struct {
		name string
		set  func(*fakeQUIC)
		want string
	}{
		{"another version of QUIC", func(q *fakeQUIC) { q.config.Versions = []quic.Version{quic.Version2} }, "speaks no version of QUIC"},
		{"another protocol", func(q *fakeQUIC) { q.tls.NextProtos = []string{"h3"} }, "does not offer DNS over QUIC"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := startFakeQUIC(t, a.server("dns.test"), tt.set, answerOK)
			via := newDoQ(t, a, f, connOptions{expire: time.Hour})
			via.config.Versions = []quic.Version{quic.Version1}
			err := roundTripOnce(t, via)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "QUIC handshake with dns.test") {
				t.Errorf("the error is %v, want one about %q", err, tt.want)
			}
			if via.brokenConns.Load() != 1 {
				t.Errorf("%d broken connections are counted, want 1", via.brokenConns.Load())
			}
		})
	}
}

// TestDoQNobodyListens: the ICMP message of a host without a server ends the handshake at
// once, with an error that anyone could have forged.
func TestDoQNobodyListens(t *testing.T) {
	a := newAuthority(t)
	f := startFakeQUIC(t, a.server("dns.test"), nil, answerOK)
	f.killQUIC()
	via := newDoQ(t, a, f, connOptions{expire: time.Hour})
	if err := roundTripOnce(t, via); !isUnreachable(err) || !isLocal(err) {
		t.Errorf("the error is %v, want a local one that says that nothing listens", err)
	}
}

// TestDoQLongReply: the longest reply arrives complete.
func TestDoQLongReply(t *testing.T) {
	a := newAuthority(t)
	f := startFakeQUIC(t, a.server("dns.test"), nil, func(r request) {
		b := r.pack(r.answer(1))
		r.send(append(b, make([]byte, wire.MaxMessage-len(b))...))
	})
	via := newDoQ(t, a, f, connOptions{expire: time.Hour})
	for range 10 {
		msg, err := roundTrip(t.Context(), via, fixedQuery(t), time.Now().Add(20*time.Second))
		if err != nil || len(msg) != wire.MaxMessage {
			t.Fatalf("%d bytes, %v; want %d", len(msg), err, wire.MaxMessage)
		}
	}
}

// TestDoQWithoutEnd: a reply counts although the server does not end its stream, and the
// streams that it leaves open do not pile up.
func TestDoQWithoutEnd(t *testing.T) {
	a := newAuthority(t)
	f := startFakeQUIC(t, a.server("dns.test"), func(q *fakeQUIC) { q.config.MaxIncomingStreams = 2 * maxUnfinishedDoQ }, func(r request) {
		r.stream.Write(prefixed(r.pack(r.answer(1))))
		<-r.stream.Context().Done()
		r.stream.CancelWrite(doqNoError)
	})
	via := newDoQ(t, a, f, connOptions{expire: time.Hour})
	for range 3 * maxUnfinishedDoQ {
		q := startLong(t, via)
		if <-q.done; q.err != nil {
			t.Fatal(q.err)
		}
	}
	eventually(t, "few streams are open", func() bool {
		via.mu.Lock()
		defer via.mu.Unlock()
		return via.unfinished <= maxUnfinishedDoQ && via.running == via.unfinished && via.inFlight.Total() == 0
	})
}

// TestDoQCancelAndClose: a query ends at its deadline, when it is canceled, and when the
// transport closes; the server is told.
func TestDoQCancelAndClose(t *testing.T) {
	a := newAuthority(t)
	canceled := make(chan error, 16)
	f := startFakeQUIC(t, a.server("dns.test"), nil, func(r request) {
		<-r.stream.Context().Done()
		canceled <- context.Cause(r.stream.Context())
	})
	via := newDoQ(t, a, f, connOptions{expire: time.Hour})
	q := startLong(t, via)
	eventually(t, "the server has the query", func() bool { return len(f.requests()) == 1 })
	if !via.cancel(q) || via.cancel(q) {
		t.Error("a query in flight is canceled not at all or twice")
	}
	if over, _ := completed(q); over {
		t.Error("a canceled query is complete")
	}
	var stream *quic.StreamError
	if err := <-canceled; !errors.As(err, &stream) || stream.ErrorCode != doqRequestCancelled || !stream.Remote {
		t.Errorf("the server sees %v, want DOQ_REQUEST_CANCELLED", err)
	}
	// The reset of a stream may arrive before its query, which the server then never has
	// (RFC 9000, section 3.2): ask with more and more time until it has one.
	for wait := 50 * time.Millisecond; len(f.requests()) == 1; wait *= 2 {
		q = fixedQuery(t)
		q.deadline = time.Now().Add(wait)
		via.start(q)
		if <-q.done; !errors.Is(q.err, os.ErrDeadlineExceeded) {
			t.Fatalf("after its time: %v", q.err)
		}
	}
	if err := <-canceled; !errors.As(err, &stream) || stream.ErrorCode != doqRequestCancelled {
		t.Errorf("after its time the server sees %v, want DOQ_REQUEST_CANCELLED", err)
	}
	q = startLong(t, via)
	via.close()
	if <-q.done; !errors.Is(q.err, ErrClosed) {
		t.Errorf("in flight when the transport closed: %v, want ErrClosed", q.err)
	}
	if err := roundTripOnce(t, via); !errors.Is(err, ErrClosed) {
		t.Errorf("after close: %v, want ErrClosed", err)
	}
	eventually(t, "the connection is closed", func() bool { _, open := f.quicConns(); return open == 0 })
}

// TestDoQConnectionFails: queries on a failed connection are sent again, however it failed.
func TestDoQConnectionFails(t *testing.T) {
	a := newAuthority(t)
	for name, fail := range map[string]func(c *quic.Conn){
		"closed in order": func(c *quic.Conn) { c.CloseWithError(doqNoError, "") },
		"an error":        func(c *quic.Conn) { c.CloseWithError(doqInternalError, "") },
	} {
		t.Run(name, func(t *testing.T) {
			const n = 20
			var arrived atomic.Int64
			f := startFakeQUIC(t, a.server("dns.test"), nil, func(r request) {
				switch i := arrived.Add(1); {
				case i <= 1, i > 1+n:
					answerOK(r)
				case i == 1+n:
					fail(r.quicConn)
				}
			})
			via := newDoQ(t, a, f, connOptions{expire: time.Hour})
			noError(t, roundTripOnce(t, via))
			var queries []*query
			for range n {
				queries = append(queries, startLong(t, via))
			}
			for _, q := range queries {
				if <-q.done; q.err != nil {
					t.Error(q.err)
				}
			}
			count(t, via.brokenConns.Load(), 1, "broken connections are counted")
		})
	}
}

// TestDoQServerRestarts: queries to a server that has lost the connection are sent again on a
// new one, with a stateless reset and without.
func TestDoQServerRestarts(t *testing.T) {
	a := newAuthority(t)
	for name, key := range map[string]*quic.StatelessResetKey{"silent": nil, "stateless reset": {1}} {
		t.Run(name, func(t *testing.T) {
			cfg := a.server("dns.test")
			f := startFakeQUIC(t, cfg, func(q *fakeQUIC) { q.reset = key }, answerOK)
			via := newDoQ(t, a, f, connOptions{expire: time.Hour})
			noError(t, roundTripOnce(t, via))
			f.killQUIC()
			next := startFakeQUIC(t, cfg, func(q *fakeQUIC) { q.reset, q.at = key, f.addr.Port() }, answerOK)
			q := startLong(t, via)
			if <-q.done; q.err != nil {
				t.Errorf("the query in flight: %v", q.err)
			}
			if all, _ := next.quicConns(); all == 0 {
				t.Error("no new connection was made")
			}
		})
	}
}

// TestDoQSlowNames: a server that acknowledges queries and answers late keeps its connection.
func TestDoQSlowNames(t *testing.T) {
	a := newAuthority(t)
	hold := make(chan struct{})
	f := startFakeQUIC(t, a.server("dns.test"), nil, func(r request) {
		<-hold
		answerOK(r)
	})
	via := newDoQ(t, a, f, connOptions{expire: time.Hour})
	var queries []*query
	for range 8 {
		queries = append(queries, startLong(t, via))
	}
	var c *doqConn
	eventually(t, "the server has acknowledged the queries", func() bool {
		via.mu.Lock()
		defer via.mu.Unlock()
		c = via.current
		return len(f.requests()) == len(queries) && c.conn != nil && c.socket.unanswered.Load() < unansweredPackets
	})
	via.checkSilence(c)
	via.mu.Lock()
	if !c.silentSince.IsZero() || c != via.current {
		t.Error("the connection counts as silent")
	}
	via.mu.Unlock()
	close(hold)
	for _, q := range queries {
		if <-q.done; q.err != nil {
			t.Error(q.err)
		}
	}
}

// TestDoQWithoutStreams: a server that allows no streams is at fault, unless it is busy.
func TestDoQWithoutStreams(t *testing.T) {
	a := newAuthority(t)
	for name, tt := range map[string]struct {
		streams int64
		want    error
	}{
		"never any": {-1, os.ErrDeadlineExceeded},
		"too few":   {2, errNoCapacity},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFakeQUIC(t, a.server("dns.test"), func(q *fakeQUIC) { q.config.MaxIncomingStreams = tt.streams }, ignore)
			via := newDoQ(t, a, f, connOptions{expire: time.Hour})
			for range max(0, tt.streams) {
				startLong(t, via)
			}
			eventually(t, "the streams are used up", func() bool { return len(f.requests()) == int(max(0, tt.streams)) })
			var queries []*query
			for range 5 {
				q := fixedQuery(t)
				q.deadline = time.Now().Add(200 * time.Millisecond)
				via.start(q)
				queries = append(queries, q)
			}
			for _, q := range queries {
				if <-q.done; !errors.Is(q.err, tt.want) {
					t.Errorf("the error is %v, want %v", q.err, tt.want)
				}
			}
		})
	}
}
