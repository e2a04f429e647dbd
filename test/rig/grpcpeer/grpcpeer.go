// Package grpcpeer is CoreDNS's gRPC service with the library google.golang.org/grpc: a server for
// tests of upstreams, and a client for tests of listeners.
//
// Its messages are BytesValue of protocol buffers, whose one field has the same number and type as
// that of CoreDNS's DnsPacket.
package grpcpeer

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Method is the full name of the service's method.
const Method = "/coredns.dns.DnsService/Query"

// Handler answers the query msg. Its error is the status of the call.
type Handler func(ctx context.Context, msg []byte) ([]byte, error)

// Serve runs a server on a free port of 127.0.0.1 until the test ends, over TLS if cfg is not nil.
func Serve(t testing.TB, cfg *tls.Config, handle Handler, opts ...grpc.ServerOption) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(cfg, handle, opts)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Stop()
		<-served
	})
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func newServer(cfg *tls.Config, handle Handler, opts []grpc.ServerOption) *grpc.Server {
	if cfg != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(cfg)))
	}
	s := grpc.NewServer(opts...)
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "coredns.dns.DnsService",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Query", Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			in := new(wrapperspb.BytesValue)
			if err := decode(in); err != nil {
				return nil, err
			}
			msg, err := handle(ctx, in.GetValue())
			return wrapperspb.Bytes(msg), err
		}}},
	}, nil)
	return s
}

// Client is a client with one connection.
type Client struct{ conn *grpc.ClientConn }

// Dial returns a client of the server at addr, over TLS if cfg is not nil. It connects with the
// first query, and closes when the test ends.
func Dial(t testing.TB, addr netip.AddrPort, cfg *tls.Config, opts ...grpc.DialOption) *Client {
	t.Helper()
	creds := insecure.NewCredentials()
	if cfg != nil {
		creds = credentials.NewTLS(cfg)
	}
	opts = append(opts, grpc.WithTransportCredentials(creds), grpc.WithNoProxy())
	conn, err := grpc.NewClient("passthrough:///"+addr.String(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &Client{conn}
}

// Query sends msg and returns the reply. The error has the status of the call.
func (c *Client) Query(ctx context.Context, msg []byte, opts ...grpc.CallOption) ([]byte, error) {
	return c.Call(ctx, Method, msg, opts...)
}

// Call is Query for another method.
func (c *Client) Call(ctx context.Context, method string, msg []byte, opts ...grpc.CallOption) ([]byte, error) {
	out := new(wrapperspb.BytesValue)
	err := c.conn.Invoke(ctx, method, wrapperspb.Bytes(msg), out, opts...)
	return out.GetValue(), err
}

// Close closes the connection.
func (c *Client) Close() { _ = c.conn.Close() }
