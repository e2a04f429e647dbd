// Inside the package: the tests use the gRPC transport without a Pool.

package upstream

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/grpcframe"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/test/rig/grpcpeer"
)

// newGRPC returns a transport to addr, over TLS if cfg is not nil.
func newGRPC(t *testing.T, addr netip.AddrPort, cfg *tls.Config) *dohTransport {
	t.Helper()
	d := newGRPCTransport(config.Target{Transport: config.DNSOverGRPC, Addr: addr}, addr, connOptions{expire: time.Hour, tls: cfg}).(*dohTransport)
	t.Cleanup(d.close)
	return d
}

// TestGRPC asks a server that uses gRPC's own library, with and without TLS.
func TestGRPC(t *testing.T) {
	a := newAuthority(t)
	for _, tt := range []struct {
		name           string
		server, client *tls.Config
	}{
		{"without TLS", nil, nil},
		{"TLS", a.server("dns.test"), a.client("dns.test")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got atomic.Pointer[[]byte]
			addr := grpcpeer.Serve(t, tt.server, func(_ context.Context, msg []byte) ([]byte, error) {
				got.Store(&msg)
				return answerA(bytes.Clone(msg)), nil
			})
			d := newGRPC(t, addr, tt.client)
			for range 3 {
				q := fixedQuery(t)
				msg, err := roundTrip(t.Context(), d, q, time.Now().Add(time.Hour))
				noError(t, err)
				if r, err := parseResponse(msg, q); err != nil || r.Answers != 1 {
					t.Errorf("%d answers, %v; want 1", r.Answers, err)
				}
				if !bytes.Equal(*got.Load(), q.message()) {
					t.Errorf("the server got %x, want %x", *got.Load(), q.message())
				}
			}
			if hits, misses := d.reuse(); hits < 2 || misses != 1 {
				t.Errorf("%d queries used an existing connection and %d opened one, want 2 and 1", hits, misses)
			}
		})
	}
	t.Run("the largest reply", func(t *testing.T) {
		addr := grpcpeer.Serve(t, nil, func(_ context.Context, msg []byte) ([]byte, error) {
			return append(answerA(msg), make([]byte, wire.MaxMessage)...)[:wire.MaxMessage], nil
		})
		q := fixedQuery(t)
		msg, err := roundTrip(t.Context(), newGRPC(t, addr, nil), q, time.Now().Add(time.Hour))
		if err != nil || len(msg) != wire.MaxMessage {
			t.Errorf("%d bytes, %v; want %d", len(msg), err, wire.MaxMessage)
		}
	})
}

// TestGRPCStatus: NOT_FOUND is an NXDOMAIN, and another status is an error that names it.
func TestGRPCStatus(t *testing.T) {
	reply := make(chan error, 1)
	addr := grpcpeer.Serve(t, nil, func(context.Context, []byte) ([]byte, error) { return nil, <-reply })
	d := newGRPC(t, addr, nil)
	reply <- status.Error(codes.NotFound, "no such name")
	q := fixedQuery(t)
	msg, err := roundTrip(t.Context(), d, q, time.Now().Add(time.Hour))
	noError(t, err)
	if r, err := parseResponse(msg, q); err != nil || r.Rcode != wire.NXDomain {
		t.Errorf("NOT_FOUND is %v, %v; want NXDOMAIN", r.Rcode, err)
	}
	reply <- status.Error(codes.Unavailable, "back soon")
	if err := roundTripOnce(t, d); err == nil || !strings.Contains(err.Error(), `"14": "back soon"`) {
		t.Errorf("UNAVAILABLE is %v, want an error with status and message", err)
	}
	reply <- nil // an empty message
	if err := roundTripOnce(t, d); !errors.Is(err, errMismatch) {
		t.Errorf("an empty message is %v, want %v", err, errMismatch)
	}
}

// TestGRPCErrors: what is no gRPC response is an error that gives the reason.
func TestGRPCErrors(t *testing.T) {
	respond := func(header, trailer map[string]string, body []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			for k, v := range header {
				w.Header().Set(k, v)
			}
			w.WriteHeader(http.StatusOK)
			_, _ = w.Write(body)
			for k, v := range trailer {
				w.Header().Set(http.TrailerPrefix+k, v)
			}
		}
	}
	grpcType, ok := map[string]string{"Content-Type": "application/grpc+proto"}, map[string]string{"Grpc-Status": "0"}
	for _, tt := range []struct {
		name   string
		handle http.HandlerFunc
		want   string
	}{
		{"no gRPC", respond(map[string]string{"Content-Type": "text/html"}, ok, nil), "is it a gRPC server"},
		{"an HTTP error", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, "502"},
		{"no status", respond(grpcType, nil, grpcframe.Append(nil, []byte("x"))), errNoStatus.Error()},
		{"no message", respond(grpcType, ok, nil), grpcframe.ErrMalformed.Error()},
		{"two messages", respond(grpcType, ok, bytes.Repeat(grpcframe.Append(nil, []byte("x")), 2)), grpcframe.ErrMalformed.Error()},
		{"a compressed message", respond(grpcType, ok, []byte{1, 0, 0, 0, 0}), grpcframe.ErrCompressed.Error()},
		{"an endless message", respond(grpcType, ok, make([]byte, grpcframe.MaxFrame+1)), errTooLong.Error()},
		{"a status in the header", respond(map[string]string{"Content-Type": "application/grpc", "Grpc-Status": "8", "Grpc-Message": "busy"}, nil, nil), `"8": "busy"`},
		{"a status and no body", respond(map[string]string{"Content-Type": "application/grpc", "Grpc-Status": "0"}, nil, nil), grpcframe.ErrMalformed.Error()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := httptest.NewUnstartedServer(tt.handle)
			s.Config.Protocols = new(http.Protocols)
			s.Config.Protocols.SetUnencryptedHTTP2(true)
			s.Config.ErrorLog = log.New(io.Discard, "", 0)
			s.Start()
			t.Cleanup(s.Close)
			err := roundTripOnce(t, newGRPC(t, s.Listener.Addr().(*net.TCPAddr).AddrPort(), nil))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the error is %v, want %q in it", err, tt.want)
			}
		})
	}
}

// TestGRPCNeedsHTTP2: a server without HTTP/2 is an error, with and without TLS.
func TestGRPCNeedsHTTP2(t *testing.T) {
	a := newAuthority(t)
	for _, secure := range []bool{false, true} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.Method != "PRI" { // the preface of HTTP/2 (RFC 9113, 3.4), read as HTTP/1.1
				t.Errorf("it got %s %s", r.Method, r.URL)
			}
		}))
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		var client *tls.Config
		if s.TLS = a.server("dns.test"); secure {
			client = a.client("dns.test")
			s.StartTLS()
		} else {
			s.Start()
		}
		t.Cleanup(s.Close)
		if err := roundTripOnce(t, newGRPC(t, s.Listener.Addr().(*net.TCPAddr).AddrPort(), client)); err == nil {
			t.Errorf("TLS %v: no error", secure)
		}
	}
}

// TestGRPCStreams: queries beyond the server's limit of streams wait or go to another connection,
// and all are answered.
func TestGRPCStreams(t *testing.T) {
	const limit = 10
	var now, most atomic.Int64
	addr := grpcpeer.Serve(t, nil, func(_ context.Context, msg []byte) ([]byte, error) {
		n := now.Add(1)
		defer now.Add(-1)
		for seen := most.Load(); n > seen && !most.CompareAndSwap(seen, n); seen = most.Load() {
		}
		return answerA(msg), nil
	}, grpc.MaxConcurrentStreams(limit))
	d := newGRPC(t, addr, nil)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, err := roundTrip(t.Context(), d, fixedQuery(t), time.Now().Add(time.Hour)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := most.Load(); n > limit*maxConns {
		t.Errorf("the server had %d queries at once, want %d at most", n, limit*maxConns)
	}
}
