package reflector

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// Flow control and timeouts of a connection to the API server.
const (
	// connWindow bounds what the server sends ahead of the handlers on all streams of a
	// connection, streamWindow on one of them. Go's defaults, 1 GiB and 4 MiB, would buffer a
	// whole first list. The window of a stream lets a server at 20 ms send 10 MB/s.
	connWindow   = 2 << 20
	streamWindow = 512 << 10
	// After pingInterval of silence a ping is sent; without an answer within pingTimeout the
	// connection is closed. Both are client-go's.
	pingInterval = 30 * time.Second
	pingTimeout  = 15 * time.Second
	// idleConnTimeout closes a connection without requests. Its user always has a watch, so
	// only a replaced connection is idle.
	idleConnTimeout = 90 * time.Second
	// dialTimeout bounds the TCP handshake and the TLS handshake; three lost packets in a row
	// fit.
	dialTimeout = 10 * time.Second
)

// Connection is the transport of one user to an API server. client-go would share one among
// all users with the same credentials, with windows for a controller rather than an agent
// on each node. The transport is replaced, and credential files are read again, when the
// server's certificate can't be verified or the server rejects the credentials. Safe for
// concurrent use.
type Connection struct {
	config *rest.Config
	http   *http.Client // authenticates over the connection
	// codecs decode the Status of a request that fails: objects are decoded by [Reflector].
	// The scheme of client-go's clientset registers all API groups, which costs an agent on
	// each node memory.
	codecs serializer.CodecFactory

	// opening has an element while a request opens a connection and the others wait for it.
	opening chan struct{}

	mu        sync.Mutex
	current   *http.Transport
	open      map[net.Conn]struct{} // nil once it is closed
	connected bool                  // a request has got one of the open connections
}

// Connect prepares a connection to the API server of config, with its credentials, rate
// limits and wrappers. It opens none. Don't change config afterwards. Errors are about the
// credentials.
func Connect(config *rest.Config) (*Connection, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	c := &Connection{config: config, codecs: serializer.NewCodecFactory(scheme), open: map[net.Conn]struct{}{}, opening: make(chan struct{}, 1)}
	var err error
	if c.current, err = c.newTransport(); err != nil {
		return nil, err
	}
	conf, err := config.TransportConfig()
	if err != nil {
		return nil, err
	}
	rt, err := transport.HTTPWrappersForConfig(conf, c)
	if err != nil {
		return nil, fmt.Errorf("wrapping the transport: %w", err)
	}
	c.http = &http.Client{Transport: rt}
	return c, nil
}

func (c *Connection) newTransport() (*http.Transport, error) {
	conf, err := c.config.TransportConfig()
	if err != nil {
		return nil, err
	}
	tlsConfig, err := transport.TLSConfigFor(conf)
	if err != nil {
		return nil, err
	}
	dial := (&net.Dialer{Timeout: dialTimeout}).DialContext
	if conf.DialHolder != nil {
		dial = conf.DialHolder.Dial
	}
	proxy := conf.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	return &http.Transport{
		Proxy:               proxy,
		DialContext:         c.track(dial),
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: dialTimeout,
		IdleConnTimeout:     idleConnTimeout,
		DisableCompression:  conf.DisableCompression,
		ForceAttemptHTTP2:   true,
		HTTP2: &http.HTTP2Config{
			MaxReceiveBufferPerConnection: connWindow,
			MaxReceiveBufferPerStream:     streamWindow,
			SendPingTimeout:               pingInterval,
			PingTimeout:                   pingTimeout,
		},
	}, nil
}

// RoundTrip implements http.RoundTripper.
func (c *Connection) RoundTrip(req *http.Request) (*http.Response, error) {
	req, release := c.await(req)
	defer release()
	c.mu.Lock()
	t := c.current
	c.mu.Unlock()
	resp, err := t.RoundTrip(req)
	var unverified *tls.CertificateVerificationError
	if errors.As(err, &unverified) || err == nil && resp.StatusCode == http.StatusUnauthorized {
		c.replaceTransport(t)
	}
	return resp, err
}

// await waits until a connection is open, or it is the turn of req to open one, and returns what to send in place of req.
// net/http opens a connection for each request that comes before the first one is open, and closes all but one after their
// handshakes: an agent needs four, at a moment when all agents may do the same. Call release when the request has failed or
// has a response.
func (c *Connection) await(req *http.Request) (sent *http.Request, release func()) {
	c.mu.Lock()
	connected := c.connected
	c.mu.Unlock()
	if connected {
		return req, func() {}
	}
	select {
	case c.opening <- struct{}{}:
	case <-req.Context().Done(): // so that sending it fails
		return req, func() {}
	}
	release = sync.OnceFunc(func() { <-c.opening })
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		c.mu.Lock()
		c.connected = len(c.open) > 0
		c.mu.Unlock()
		release()
	}}
	return req.WithContext(httptrace.WithClientTrace(req.Context(), trace)), release
}

// replaceTransport replaces old, unless another caller has. Requests on old continue; its
// connections close when they are idle. If the credentials can't be read, old stays: the
// files may be half written.
func (c *Connection) replaceTransport(old *http.Transport) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != old {
		return
	}
	if t, err := c.newTransport(); err == nil {
		c.current = t
	}
}

// dialFunc opens a connection.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// track returns a dialFunc whose connections close can close.
func (c *Connection) track(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		raw, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		kept := &trackedConn{Conn: raw, owner: c}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.open == nil {
			return nil, errors.Join(net.ErrClosed, raw.Close())
		}
		c.open[kept] = struct{}{}
		return kept, nil
	}
}

// trackedConn removes itself from its owner when it is closed.
type trackedConn struct {
	net.Conn
	owner *Connection
}

func (k *trackedConn) Close() error {
	k.owner.mu.Lock()
	delete(k.owner.open, k)
	k.owner.connected = k.owner.connected && len(k.owner.open) > 0
	k.owner.mu.Unlock()
	return k.Conn.Close()
}

// Close closes all connections, which ends all requests. Later requests fail.
func (c *Connection) Close() {
	c.mu.Lock()
	open := c.open
	c.open = nil
	c.mu.Unlock()
	for conn := range open {
		_ = conn.Close() // there is nothing left to do about an error
	}
}

// Client returns a client of one API group. Each client has its own rate limit. Requests
// accept protobuf and JSON.
func (c *Connection) Client(gv schema.GroupVersion) (rest.Interface, error) {
	of := rest.CopyConfig(c.config)
	of.GroupVersion, of.APIPath = &gv, "/apis"
	if gv.Group == corev1.GroupName {
		of.APIPath = "/api"
	}
	of.NegotiatedSerializer = c.codecs.WithoutConversion()
	of.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	of.ContentType = runtime.ContentTypeProtobuf
	client, err := rest.RESTClientForConfigAndClient(of, c.http)
	if err != nil {
		return nil, err // names what is wrong
	}
	return client, nil
}
