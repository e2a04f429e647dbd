package kubernetes

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// What a connection to the API server may hold back and how its death is noticed.
const (
	// connWindow is how much a server may send ahead of the sinks on all streams
	// of a connection together, streamWindow on one of them. Go's own are 1 GiB
	// and 4 MiB: a first list would then lie in memory whole while the sinks are
	// behind. Half of a stream's would be under what a server 20 ms away can send at
	// 10 MB/s, twice the connection's would be a tenth of a small view.
	connWindow   = 2 << 20
	streamWindow = 512 << 10
	// pingInterval of silence a ping is sent, and the connection is given up when
	// nothing comes within pingWait. They are client-go's: half would ping each
	// idle watch between two of its bookmarks twice, double would hide a dead server
	// for a minute and a half.
	pingInterval = 30 * time.Second
	pingTimeout  = 15 * time.Second
	// idleConnTimeout closes a connection without a request. A view always has a watch
	// open, so that only one that was replaced is idle; half or double is as good.
	idleConnTimeout = 90 * time.Second
	// dialTimeout is for the TCP handshake and for the TLS handshake: three lost packets in
	// a row still fit, and double would be no sooner than the back-off's end.
	dialTimeout = 10 * time.Second
)

// connection is one view's own transport to its API server. client-go would share
// one among all views of the same credentials, with windows that fit a controller
// and not an agent on each node. It is made anew, with what the files of the
// credentials hold by then, when the server's certificate can't be verified or the
// server doesn't know the client any more. Safe for concurrent use.
type connection struct {
	config *rest.Config

	mu      sync.Mutex
	current *http.Transport
	open    map[net.Conn]struct{} // nil once it is closed
}

// newConnection prepares a connection; it opens none.
func newConnection(c *rest.Config) (*connection, error) {
	conn := &connection{config: c, open: map[net.Conn]struct{}{}}
	var err error
	conn.current, err = conn.newTransport()
	return conn, err
}

func (c *connection) newTransport() (*http.Transport, error) {
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
func (c *connection) RoundTrip(req *http.Request) (*http.Response, error) {
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

// replaceTransport replaces old, if that has not happened already. What runs on old goes on,
// and its connections close when they have been idle for long.
// Credentials that can't be read leave it as it is: the files may be half written.
func (c *connection) replaceTransport(old *http.Transport) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != old {
		return
	}
	if t, err := c.newTransport(); err == nil {
		c.current = t
	}
}

// dialFunc opens one connection.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// track makes dial note what it opens, so that close can end it.
func (c *connection) track(dial dialFunc) dialFunc {
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

// trackedConn is forgotten when it closes.
type trackedConn struct {
	net.Conn
	owner *connection
}

func (k *trackedConn) Close() error {
	k.owner.mu.Lock()
	delete(k.owner.open, k)
	k.owner.mu.Unlock()
	return k.Conn.Close()
}

// close ends all there is of c, with whatever goes on over it. No request
// can be made after it.
func (c *connection) close() {
	c.mu.Lock()
	open := c.open
	c.open = nil
	c.mu.Unlock()
	for conn := range open {
		_ = conn.Close() // nobody waits for what it had to say
	}
}

// httpClient gives the HTTP client that logs in over c.
func (c *connection) httpClient() (*http.Client, error) {
	conf, err := c.config.TransportConfig()
	if err != nil {
		return nil, err
	}
	rt, err := transport.HTTPWrappersForConfig(conf, c)
	if err != nil {
		return nil, fmt.Errorf("wrapping the transport: %w", err)
	}
	return &http.Client{Transport: rt}, nil
}
