// These tests use the limits of the gRPC server, which are not exported.

package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/grpcframe"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/grpcpeer"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

var grpcConfig = ListenerConfig{Transport: config.DNSOverGRPC}

// startGRPC serves zones over gRPC without TLS until the test ends.
func startGRPC(t *testing.T, limits Limits, timeouts config.Timeouts, zones ...*resolver.Zone) (*Server, netip.AddrPort) {
	t.Helper()
	addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	s := New(slog.New(slog.DiscardHandler), limits)
	cfg := withRoutes(ListenerConfig{Transport: config.DNSOverGRPC, Timeouts: timeouts}, zones...)
	if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: addr}: cfg}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
	})
	return s, addr
}

// askGRPC asks for q with gRPC's own client.
func askGRPC(c *grpcpeer.Client, q *dns.Msg) (*dns.Msg, error) {
	packet, err := q.Pack()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	reply, err := c.Query(ctx, packet)
	if err != nil {
		return nil, err
	}
	m := new(dns.Msg)
	return m, m.Unpack(reply)
}

// TestGRPC: gRPC's own client gets answers, with and without TLS, from the Corefile and from
// upstreams.
func TestGRPC(t *testing.T) {
	b := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1"))
	_, plain := startGRPC(t, patientLimits(), config.Timeouts{}, byHand(t, b.Addr()))
	_, secure, roots := startListener(t, patientLimits(), grpcConfig, byHand(t, b.Addr()))
	for name, c := range map[string]*grpcpeer.Client{
		"without TLS": grpcpeer.Dial(t, plain, nil),
		"TLS":         grpcpeer.Dial(t, secure, &tls.Config{RootCAs: roots}),
	} {
		t.Run(name, func(t *testing.T) {
			for _, qname := range []string{"by.hand.", "www.test.", "by.hand."} {
				q := question(qname, dns.TypeA)
				m, err := askGRPC(c, q)
				if err != nil || m.Id != q.Id || len(m.Answer) != 1 {
					t.Errorf("%s: %v, %v", qname, m, err)
				}
			}
		})
	}
}

// TestGRPCStatuses: what is no query ends with a status, and the connection goes on.
func TestGRPCStatuses(t *testing.T) {
	_, addr := startGRPC(t, patientLimits(), config.Timeouts{}, byHand(t))
	c := grpcpeer.Dial(t, addr, nil)
	for _, tt := range []struct {
		name, method string
		msg          []byte
		want         codes.Code
	}{
		{"nothing", grpcpeer.Method, nil, codes.InvalidArgument},
		{"no header", grpcpeer.Method, []byte("x"), codes.InvalidArgument},
		{"garbage", grpcpeer.Method, bytes.Repeat([]byte{0x01}, 40), codes.InvalidArgument},
		{"too long", grpcpeer.Method, make([]byte, wire.MaxMessage+1), codes.ResourceExhausted},
		{"another method", "/coredns.dns.DnsService/Watch", []byte("x"), codes.Unimplemented},
		{"reflection", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", nil, codes.Unimplemented},
	} {
		_, err := c.Call(t.Context(), tt.method, tt.msg)
		if got := status.Code(err); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
	if m, err := askGRPC(c, question("by.hand.", dns.TypeA)); err != nil || len(m.Answer) != 1 {
		t.Errorf("afterwards: %v, %v", m, err)
	}
}

// TestGRPCBounds: clients that send the beginning of a connection or of a call slowly, or something
// else, are cut off.
func TestGRPCBounds(t *testing.T) {
	s, addr := startGRPC(t, Limits{}, config.Timeouts{Read: 50 * time.Millisecond, Idle: 100 * time.Millisecond}, byHand(t))
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	const settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	for _, sent := range []string{
		"",
		preface[:10],
		preface,
		preface + settings,
		preface + settings + "\x00\x00\x01\x01\x00\x00\x00\x00\x01\x82", // a header without its end
		preface + settings + "\x00\x00\x08\x07",                         // half a frame
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"\x16\x03\x01\x00\x05hello", // TLS
	} {
		conn, err := net.Dial("tcp", addr.String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(conn, sent)
		if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Errorf("%.40q is waited for", sent)
		}
	}
	eventually(t, "all to be gone", func() bool { return connections(s, addr) == 0 })
}

// TestGRPCWaits: queries of one connection wait side by side. One more than there may be ends the
// first with UNAVAILABLE.
func TestGRPCWaits(t *testing.T) {
	b, asked, release := holdingBackend(t)
	_, addr := startGRPC(t, Limits{Waiting: 4, ReadTimeout: patience}, config.Timeouts{}, byHand(t, b.Addr()))
	c := grpcpeer.Dial(t, addr, nil)
	first := make(chan error, 1)
	go func() {
		_, err := askGRPC(c, question("first.test.", dns.TypeA))
		first <- err
	}()
	<-asked
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			if m, err := askGRPC(c, question("w"+itoa(i)+".test.", dns.TypeA)); err != nil || len(m.Answer) != 1 {
				t.Errorf("%v, %v", m, err)
			}
		})
		<-asked
	}
	if err := <-first; status.Code(err) != codes.Unavailable {
		t.Errorf("the first one ends with %v, want UNAVAILABLE", err)
	}
	close(release)
	all.Wait()
}

// panickingBody is a body that panics when it is read.
type panickingBody struct{}

func (panickingBody) Read([]byte) (int, error) { panic("boom") }

// TestRequestPanic: a panic while a request is read is counted and logged, ends the request with an error
// of its protocol, and leaves no place in use.
func TestRequestPanic(t *testing.T) {
	for _, tt := range []struct {
		name, path, kind, header, want string
		cfg                            ListenerConfig
	}{
		{"HTTPS", dohPath, dnsMessageType, "", "500", dohConfig},
		{"gRPC", grpcframe.Path, grpcframe.ContentType, grpcframe.StatusHeader, grpcframe.Internal.String(), grpcConfig},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, addr, _ := startListener(t, patientLimits(), tt.cfg, byHand(t))
			var logged bytes.Buffer
			s.log = slog.New(slog.NewTextHandler(&logged, nil))
			h := s.listeners[ListenAddr{AddrPort: addr}].https
			conn := new(httpsConn)
			conn.client = netip.AddrPortFrom(loopback, 1)
			r := httptest.NewRequest(http.MethodPost, tt.path, panickingBody{})
			r.Header.Set("Content-Type", tt.kind)
			w := httptest.NewRecorder()
			h.http.Handler.ServeHTTP(w, r.WithContext(context.WithValue(t.Context(), connKey{}, conn)))
			got := strconv.Itoa(w.Code)
			if tt.header != "" {
				got = w.Header().Get(tt.header)
			}
			if got != tt.want {
				t.Errorf("the request ends with %q, want %q", got, tt.want)
			}
			if s.Panics() != 1 || !strings.Contains(logged.String(), "panic=boom") || !strings.Contains(logged.String(), "panickingBody") {
				t.Errorf("%d panics are counted, and logged is %q", s.Panics(), &logged)
			}
			if n := s.Usage().Requests.Used; n != 0 {
				t.Errorf("%d requests are in flight", n)
			}
		})
	}
}

// TestGRPCShutdown: a call that waits is answered, and its client is told to go elsewhere.
func TestGRPCShutdown(t *testing.T) {
	b, asked, release := holdingBackend(t)
	s, addr := startGRPC(t, Limits{ReadTimeout: patience}, config.Timeouts{}, byHand(t, b.Addr()))
	c := grpcpeer.Dial(t, addr, nil)
	answered := make(chan error, 1)
	go func() {
		m, err := askGRPC(c, question("first.test.", dns.TypeA))
		if err == nil && len(m.Answer) != 1 {
			t.Errorf("not the answer: %v", m)
		}
		answered <- err
	}()
	<-asked
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		ended <- s.Shutdown(ctx)
	}()
	eventually(t, "the listener to be closed", func() bool {
		conn, err := net.Dial("tcp", addr.String())
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	close(release)
	if err := <-answered; err != nil {
		t.Errorf("the call that waited: %v", err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
